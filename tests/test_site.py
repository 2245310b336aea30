"""The documentation site that `make site` has built, in a real browser; pictures of it are kept in .page/."""

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

if not os.environ.get("GTMSM_BROWSER"):
    pytest.skip("`make site` opens the site in a browser", allow_module_level=True)

from playwright.sync_api import Browser

SITE = Path(__file__).parents[1] / "site"
PICTURES = Path(".page")
PATIENCE = 180_000
"""Milliseconds that the browser may take for a step: a busy machine with few cores needs more than the usual 30 s."""
KEPT = ("index", "results", "table-h200-table", "weights", "notebook")
WRONG = """() => {
    const missing = [...document.images].filter(one => !(one.complete && one.naturalWidth)).map(one => one.src);
    const { scrollWidth, clientWidth } = document.documentElement;
    return scrollWidth > clientWidth ? [...missing, `is ${scrollWidth} pixels wide`] : missing;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_the_screen_with_all_its_pictures_and_without_complaint(
    browser: Browser, address: str, width: int
) -> None:
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda said: complaints.append(f"{page.url}: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda problem: complaints.append(f"{page.url}: {problem}"))
    page.on("request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url))
    names = sorted(path.stem for path in SITE.glob("*.html"))
    assert {*KEPT} <= {*names}
    for name in names:
        page.goto(f"{address}/{name}.html")
        complaints += [f"{name}: {wrong}" for wrong in page.evaluate(WRONG)]
        if name in KEPT:
            PICTURES.mkdir(exist_ok=True)
            page.screenshot(path=PICTURES / f"site-{name}-{width}.png")
    context.close()
    assert complaints == []


def test_the_search_leads_to_a_page(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/index.html")
    # The button is heard once the page has loaded, before the dialog is made; a key would be lost until then.
    page.locator(".md-search__button").click()
    search = page.locator("dialog[open]")
    search.get_by_role("combobox").fill("unknown starts")
    search.get_by_role("option", name="Slips, unknown starts, single pictures").click()
    page.wait_for_url(f"{address}/results.html**")
    page.close()
