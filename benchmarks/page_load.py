"""Many visitors on one page server: do they all get answers, and does its memory stay flat?

    python benchmarks/page_load.py --clients 100 --seconds 300

Starts `gtmsm play` on a free port of this machine, lets that many pages walk, dream, ask and go back, and watches the
server's resident memory. Histories are short, so that all of them are full in the first part of the time: what grows
afterwards is a leak. Exit code 1 where anything was refused, or memory grew by more than 5% in the second half.
"""

import argparse
import asyncio
import io
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from PIL import Image
from websockets.asyncio.client import ClientConnection, connect

WORLDS = ("image",) * 8 + ("obstacles", "room")
"""A tenth of the visitors walk in a room, where a step is twenty times the work."""


def packed(content: bytes = b"", **said: Any) -> bytes:
    head = json.dumps(said).encode()
    return len(head).to_bytes(4, "little") + head + content


class Visitor:
    """Asks, and waits for the answer."""

    def __init__(self, page: ClientConnection, chance: random.Random, world: str) -> None:
        self.page, self.chance, self.world = page, chance, world
        self.dreams, self.length = False, 1

    async def ask(self, message: bytes) -> float:
        began = time.perf_counter()
        await self.page.send(message)
        while True:
            answer = await self.page.recv()
            said = json.loads(answer[4 : 4 + int.from_bytes(answer[:4], "little")])
            if said["t"] == "error":
                raise RuntimeError(said["why"])
            if said["t"] == "imagined":
                self.length = said["at"] + 1
            if said["t"] == "done":
                return time.perf_counter() - began

    async def walk(self, until: float, took: list[float]) -> None:
        await self.ask(packed(do="hello", session=None))
        await self.ask(packed(do="begin", world=self.world, seed=self.chance.randrange(1000)))
        view = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(noise).save(view, "PNG")
        while time.monotonic() < until:
            dice = self.chance.random()
            if dice < 0.02 or (self.dreams and dice < 0.2):
                self.dreams = not self.dreams
                await self.ask(packed(do="dream", on=self.dreams))
            elif dice < 0.03 and self.length > 16:
                await self.ask(packed(view.getvalue(), do="where"))
            elif dice < 0.04 and not self.dreams:
                await self.ask(packed(do="explore", **{"from": self.length - 1}))
            else:
                took.append(await self.ask(packed(do="step", action=self.chance.randrange(4))))


async def load(address: str, clients: int, seconds: float, server: int) -> int:
    took: list[float] = []
    problems: list[str] = []
    until = time.monotonic() + seconds

    async def one(number: int) -> None:
        chance = random.Random(number)
        try:
            async with connect(
                f"ws://{address}/walk", origin=f"http://{address}", open_timeout=60, ping_timeout=None
            ) as page:  # type: ignore[arg-type]
                await Visitor(page, chance, WORLDS[number % len(WORLDS)]).walk(until, took)
        except Exception as problem:
            problems.append(f"visitor {number}: {problem!r}")

    visitors = [asyncio.create_task(one(number)) for number in range(clients)]
    resident = []
    print(f"{'seconds':>8} {'steps':>8} {'server MB':>10}")
    for part in range(10):
        await asyncio.sleep(seconds / 10)
        resident.append(memory_of(server))
        print(f"{(part + 1) * seconds / 10:8.0f} {len(took):8,} {resident[-1]:10.0f}", flush=True)
    await asyncio.gather(*visitors)
    grown = resident[-1] / resident[4] - 1
    slow = quantiles(took, n=20)[-1]
    print(
        f"{clients} visitors, {seconds:.0f} s: {len(took):,} steps, {len(took) / seconds:.0f} a second; "
        f"median {1e3 * median(took):.0f} ms, 95th percentile {1e3 * slow:.0f} ms; "
        f"memory {100 * grown:+.1f}% in the second half; refused or failed: {len(problems)}"
    )
    for problem in problems[:10]:
        print(problem)
    return int(bool(problems) or grown > 0.05)


def memory_of(process: int) -> float:
    """Resident MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1024


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--clients", type=int, default=100)
    flags.add_argument("--seconds", type=float, default=300)
    flags.add_argument("--history", type=int, default=48)
    given = flags.parse_args()
    command = [sys.executable, "-c", "from gtmsm_command import main; main()", "play", "--port", "0"]
    with subprocess.Popen([*command, "--history", str(given.history)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://(\S+)", server.stdout.readline())
        assert found, "the server did not start"
        try:
            code = asyncio.run(load(found[1], given.clients, given.seconds, server.pid))
        finally:
            server.terminate()
        print(f"the server ended with exit code {server.wait(30)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
