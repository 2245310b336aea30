"""Milliseconds from a key to the new frame on the page, in a real browser.

    python benchmarks/page_latency.py                 # as fast as answers come
    python benchmarks/page_latency.py --pause 0.2     # as a visitor does, five keys a second

Starts `gtmsm play` and Debian's chromium, presses an arrow key some dozens of times in each world, one key at a time,
and reads the page's own clock: from the key event to when the frame has been drawn on its canvas. While the visitor
pauses, the server imagines what each key would show.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from statistics import median

from playwright.sync_api import Page, sync_playwright

KEYS = ("ArrowUp", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown")


def until(page: Page, condition: str) -> None:
    end = time.monotonic() + 60
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, condition
        time.sleep(0.005)


def press(page: Page, key: str, pause: float = 0.0) -> None:
    time.sleep(pause)
    before = page.evaluate("gtmsm.state.moments.length")
    page.keyboard.press(key)
    until(page, f"gtmsm.state.moments.length > {before} && gtmsm.state.moments.at(-1).imagined && !gtmsm.state.busy")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--pause", type=float, default=0.0, help="seconds before each key")
    flags.add_argument("--worlds", nargs="+", default=["image", "obstacles", "room", "rooms", "maze"])
    given = flags.parse_args()
    command = [sys.executable, "-c", "from gtmsm_command import main; main()", "play", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "the server did not start"
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        load = os.getloadavg()[0]
        print(f"median ms of {given.steps} keys; load of this machine before: {load:.1f} on {os.cpu_count()} cores")
        print(f"{'world':<10} {'real frame':>11} {'imagined':>9} {'dream: imagined':>16}")
        for world in given.worlds:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(f"{found[0]}/#world={world}&seed=6")
            until(page, "gtmsm.state.moments.at(-1)?.imagined && !gtmsm.state.busy")
            for i in range(given.steps):
                press(page, KEYS[i % len(KEYS)], given.pause)
            real, imagined = (median(page.evaluate(f"gtmsm.latency.{kind}")) for kind in ("real", "imagined"))
            press(page, " ")
            page.evaluate("gtmsm.latency.imagined.length = 0")
            for i in range(given.steps):
                press(page, KEYS[i % len(KEYS)], given.pause)
            dreamt = median(page.evaluate("gtmsm.latency.imagined"))
            print(f"{world:<10} {real:11.1f} {imagined:9.1f} {dreamt:16.1f}", flush=True)
            page.close()
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
