"""The page in a real browser; pictures of it are kept in .page/, to be looked at."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from visitor import png

if not os.environ.get("GTMSM_BROWSER"):
    pytest.skip("`make page` tests the page in a browser", allow_module_level=True)

from playwright.sync_api import Browser, BrowserContext, Page

PICTURES = Path(".page")
READY = "gtmsm.state.moments.at(-1)?.imagined && !gtmsm.state.busy"
ARROWS = ("ArrowUp", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """`gtmsm play`, as people start it."""
    words = [sys.executable, "-c", "from gtmsm_command import main; main()", "play", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        yield found[0]
        server.terminate()
        assert server.wait(20) == 143


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Open]:
    """Opens the page; nothing may complain, and nothing be asked for from elsewhere."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def visit(
        world: str = "image", size: tuple[int, int] = (1280, 800), scheme: Any = "light", touch: bool = False,
        beside: Page | None = None,
    ) -> Page:  # fmt: skip
        if beside is None:
            viewport: Any = {"width": size[0], "height": size[1]}
            contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, has_touch=touch))
        page = contexts[-1].new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda problem: complaints.append(str(problem)))
        page.on("request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url))
        page.goto(f"{address}/#world={world}&seed=8")
        until(page, READY)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def until(page: Page, condition: str, seconds: float = 60) -> None:
    """Wait; the page's own rules forbid Playwright to do it, which would evaluate text inside of it."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, condition
        time.sleep(0.01)


def count(page: Page) -> int:
    return int(page.evaluate("gtmsm.state.moments.length"))


def walk(page: Page, *keys: str) -> None:
    for key in keys:
        before = count(page)
        page.keyboard.press(key)
        until(page, f"gtmsm.state.moments.length > {before} && {READY}")


def keep(page: Page, name: str, whole: bool = False) -> None:
    PICTURES.mkdir(exist_ok=True)
    page.wait_for_timeout(60)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)


def drop(page: Page, picture: bytes, on: str) -> None:
    """Drag a file over the page, and let it go there."""
    page.evaluate(
        """([bytes, on]) => {
            const dragged = new DataTransfer();
            dragged.items.add(new File([new Uint8Array(bytes)], "picture.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("dragover", { dataTransfer: dragged, bubbles: true }));
            document.querySelector(on).dispatchEvent(new DragEvent("drop", { dataTransfer: dragged, bubbles: true }));
        }""",
        [list(picture), on],
    )


def colours_of(page: Page, canvas: str) -> int:
    """How many there are on a canvas: one on an empty one."""
    script = """(id) => { const canvas = document.createElement("canvas"), size = [0, 0, 32, 32];
        const pen = canvas.getContext("2d", { willReadFrequently: true });
        pen.drawImage(document.getElementById(id), ...size);
        return new Set(new Uint32Array(pen.getImageData(...size).data.buffer)).size; }"""
    return int(page.evaluate(script, canvas))


def test_forty_steps_are_walked_and_forty_dreamt(visit: Open) -> None:
    page = visit()
    walk(page, *ARROWS * 5)
    assert count(page) == 41
    real, imagined = (median(page.evaluate(f"gtmsm.latency.{kind}")) for kind in ("real", "imagined"))
    print(f"key to the real frame: {real:.1f} ms, to the imagined one: {imagined:.1f} ms")
    assert min(real, imagined) > 0  # how long it may take is measured on idle cores, by benchmarks/page_latency.py
    keep(page, "walk-light")
    here = page.evaluate("gtmsm.state.moments.at(-1).here")
    walk(page, " ")
    assert page.locator("#sleep").inner_text().startswith("Wake up")
    walk(page, *ARROWS * 5)
    assert page.evaluate("gtmsm.state.moments.filter(moment => moment.dream).length") == 41
    assert page.evaluate("gtmsm.state.moments.filter(moment => moment.memorised).length") == 41
    keep(page, "dream-light")
    page.keyboard.press("t")
    keep(page, "hidden-light")
    assert page.locator("#psnr").inner_text() == "hidden"
    walk(page, " ")
    assert page.evaluate("gtmsm.state.moments.at(-1).here") == here


def test_a_dropped_picture_is_walked_on_or_looked_for(visit: Open) -> None:
    page = visit("obstacles")
    page.keyboard.press("x")
    until(page, "gtmsm.state.moments.length > 30")
    page.keyboard.press("x")
    until(page, READY)
    view = page.evaluate("Array.from(gtmsm.state.moments[12].real.getContext('2d').getImageData(0, 0, 8, 8).data)")
    drop(page, png(np.array(view, np.uint8).reshape(8, 8, 4)[..., :3]), "[data-drop=where]")
    until(page, "document.getElementById('answer').textContent.startsWith('Seen at A')")
    found, true = page.evaluate("[gtmsm.state.found[0].at, gtmsm.state.moments[12].true]")
    assert np.hypot(*np.subtract(found, true)) < 0.06
    keep(page, "found-light")
    own = np.linspace(0, 255, 64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)
    drop(page, png(own), "[data-drop=own]")
    until(page, f"gtmsm.state.place.own && {READY}")
    assert page.title() == "gtmsm: own picture"
    drop(page, b"no picture at all", "[data-drop=own]")
    until(page, "!document.getElementById('notice').hidden")
    assert "cannot be read as a PNG or JPEG" in page.locator("#notice").inner_text()
    walk(page, "ArrowUp")


def test_a_goal_on_the_map_is_walked_to_and_a_place_imagined(visit: Open) -> None:
    page = visit()
    walk(page, *ARROWS)
    box = page.locator("#map-view").bounding_box()
    assert box
    page.keyboard.press("g")
    page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + 0.7 * box["height"])
    until(page, "gtmsm.state.way")
    keep(page, "goal-light")
    until(page, f"!gtmsm.state.auto && {READY}")
    assert page.evaluate("gtmsm.state.moments.at(-1).true") == pytest.approx([0.25, 0.7], abs=0.1)
    page.keyboard.press("i")
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    until(page, f"gtmsm.state.moments.at(-1).dream && {READY}")
    assert page.evaluate("gtmsm.state.moments.at(-1).here") == pytest.approx([0.5, 0.4], abs=0.02)


def test_the_timeline_is_dragged_back_and_walking_on_forks(visit: Open) -> None:
    page = visit()
    walk(page, *ARROWS)
    box = page.locator("#timeline").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=8)
    page.mouse.up()
    at = page.evaluate("gtmsm.state.cursor")
    assert 3 <= at <= 5
    assert count(page) == 9
    keep(page, "back-light")
    page.keyboard.press("ArrowUp")
    until(page, f"gtmsm.state.moments.length === {at + 2} && {READY}")


def test_hovering_ties_a_recalled_view_to_its_place(visit: Open) -> None:
    page = visit()
    walk(page, *ARROWS)
    thumb = page.locator("#recalled li").nth(1)
    thumb.hover()
    until(page, f"gtmsm.state.lit === {thumb.get_attribute('data-moment')}")
    x, y = page.evaluate("gtmsm.state.moments[gtmsm.state.moments.at(-1).recalled[0]].here")
    box = page.locator("#map-view").bounding_box()
    assert box
    lit = "document.querySelectorAll('#recalled li.lit').length"
    page.mouse.move(0, 0)
    until(page, f"{lit} === 0")
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    until(page, f"{lit} === 1")


def test_every_world_can_be_chosen_and_walked(visit: Open) -> None:
    page = visit(scheme="dark")
    for world in ("room", "rooms", "maze", "obstacles", "image"):
        page.select_option("#world", world)
        until(page, f"gtmsm.state.place.world === '{world}' && {READY}")
        walk(page, "ArrowUp", "ArrowLeft", "ArrowUp")
        assert colours_of(page, "real-view") > 8
        assert colours_of(page, "dream-view") > 8
        until(page, "gtmsm.state.place.picture")
        if world != "image":
            page.keyboard.press("x")
            until(page, "gtmsm.state.moments.length > 20")
            page.keyboard.press("x")
            until(page, READY)
        keep(page, f"{world}-dark")


def test_a_reload_in_the_middle_goes_on_where_it_was(visit: Open) -> None:
    page = visit()
    page.keyboard.press("x")
    until(page, "gtmsm.state.moments.length > 12")
    page.reload()
    until(page, f"gtmsm.state.moments.length > 12 && {READY}")
    before = count(page)
    assert page.evaluate("gtmsm.state.moments.every(moment => moment.imagined && moment.here)")
    walk(page, "ArrowUp")
    assert count(page) == before + 1


def test_two_tabs_walk_apart(visit: Open) -> None:
    one = visit()
    two = visit(beside=one)
    walk(one, "ArrowUp", "ArrowUp", "ArrowLeft")
    walk(two, "ArrowDown")
    assert (count(one), count(two)) == (4, 2)
    assert one.evaluate("sessionStorage.session") != two.evaluate("sessionStorage.session")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_small_screen_it_is_walked_by_touch(visit: Open, scheme: str) -> None:
    page = visit("room", size=(360, 740), scheme=scheme, touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for name in ("forward", "turn left", "forward"):
        before = count(page)
        page.get_by_label(name, exact=True).tap()
        until(page, f"gtmsm.state.moments.length > {before} && {READY}")
    page.locator("#sleep").tap()
    until(page, f"gtmsm.state.moments.at(-1).dream && {READY}")
    page.locator("#recalled li").nth(1).tap()
    keep(page, f"small-{scheme}", whole=True)


def test_nothing_is_wider_than_the_screen(visit: Open) -> None:
    page = visit()
    for width, height in ((360, 640), (540, 900), (721, 1000), (800, 1100), (1280, 800), (2560, 1300)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(60)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for canvas in ("real-view", "dream-view", "map-view"):
            view, around = (page.locator(f"#{canvas}"), page.locator(f"figure:has(#{canvas})"))
            inner, outer = view.bounding_box(), around.bounding_box()
            assert inner and outer
            assert outer["x"] <= inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"]
            assert abs(inner["width"] - inner["height"]) < 1
