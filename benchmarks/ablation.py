"""What each operator of `gtmsm.kernels` saves: `python benchmarks/ablation.py [NAMES] [--device cuda]`.

Times updates of presets, 300 updates into training, and calls that users wait for, with all fast implementations.
Then it switches off one operator after the other, captures the update anew and times it again; last, all of them.
Prints a markdown table of milliseconds and percent; a dash where an operator is not used. Names: presets, imagine,
localise, long-memory, raycast. Run it in the root of the repository, where the weights are that a preset begins with.
"""

import argparse
import gc
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

import gtmsm.kernels
from gtmsm.bench.sizes import ON_CPU, ON_GPU, Sizes
from gtmsm.bench.tasks import build_updater, imagine, learn, long_memories, raycasting
from gtmsm.kernels.operator import OPERATORS, Operator
from gtmsm.model.gtmsm import WorldModel
from gtmsm.presets import PRESETS
from gtmsm.training.engine import tuned

UPDATES = ("image-walk", "walk", "walk-strong", "obstacles", "walk-landmarks")
REMEMBERED, DRAWN = 1_000_000, 4_096
SECONDS = 0.3
"""Of a series of calls; the best of three counts."""
UNTIL_CAPTURED = 6
"""Updates after which a graph has been captured and replayed."""

Call = Callable[[], object]


def load_operators() -> None:
    """Import every module of kernels/, so that all operators are registered."""
    for module in pkgutil.walk_packages(gtmsm.kernels.__path__, "gtmsm.kernels."):
        if not module.name.endswith(("_triton", "_cpu")):
            importlib.import_module(module.name)


def an_update(preset: str, sizes: Sizes, device: torch.device) -> tuple[Call, Call]:
    """An update, and what to call after operators were switched."""
    updater = build_updater(preset, sizes, device)
    learn(updater, sizes.learned)

    def renew() -> None:
        if device.type == "cuda":
            updater.recapture()

    def call() -> None:
        with tuned():
            updater.run()

    return call, renew


def a_localisation(device: torch.device) -> Call:
    """Where was the last frame of a short clip seen, in a walk of 300 steps?"""
    torch.manual_seed(0)
    model = WorldModel(PRESETS["walk-landmarks"][1].model, (3, 32, 32), 8).to(device).eval()
    frames, actions = torch.rand(1, 300, 3, 32, 32, device=device), torch.rand(1, 300, 8, device=device)
    with torch.no_grad():
        memory, _ = model.memorise(frames, actions)
    return torch.no_grad()(lambda: model.localise(memory, frames[:, :16], actions[:, :16]))


def set_up(name: str, sizes: Sizes, device: torch.device) -> tuple[Call, Call]:
    """The call of a column, and what to call after operators were switched."""
    if name in PRESETS:
        return an_update(name, sizes, device)
    sizes = replace(sizes, remembered=(min(REMEMBERED, sizes.remembered[-1]),), drawn=min(DRAWN, sizes.drawn))
    tasks = {"imagine": imagine, "long-memory": long_memories, "raycast": raycasting}
    call = a_localisation(device) if name == "localise" else next(iter(tasks[name](sizes, device))).call
    return call, lambda: None


@contextmanager
def switched_off(*operators: Operator) -> Iterator[None]:
    """Within this, these run their readable functions."""
    for each in operators:
        each.enabled = False
    try:
        yield
    finally:
        for each in operators:
            each.enabled = True


def used_by(call: Call) -> set[str]:
    """Names of the operators that a call runs."""
    names = set[str]()
    plain = Operator.__call__

    def noted(self: Operator, *args: object, **kwargs: object) -> object:
        names.add(self.name)
        return plain(self, *args, **kwargs)

    Operator.__call__ = noted
    try:
        call()
    finally:
        Operator.__call__ = plain
    return names


def milliseconds(call: Call, device: torch.device, budget: float) -> float:
    """Of one of many calls in a row: the best of three series."""

    def series(count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        since = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - since) / count

    for _ in range(UNTIL_CAPTURED):
        call()
    count = max(2, min(200, int(1e3 * budget / series(2))))
    return min(series(count) for _ in range(3))


def ablate(name: str, sizes: Sizes, device: torch.device, budget: float = SECONDS) -> dict[str, float]:
    """Milliseconds of one column: with all operators, without each that it uses, and without any."""
    call, renew = set_up(name, sizes, device)
    renew()
    used = sorted(used_by(call))
    variants = {"none": []} | {each: [OPERATORS[each]] for each in used} | {"all": [OPERATORS[each] for each in used]}
    found = {}
    for label, operators in variants.items():
        with switched_off(*operators):
            renew()
            found[label] = milliseconds(call, device, budget)
        more = "" if label == "none" else f" {100 * (found[label] / found['none'] - 1):+.0f}%"
        print(f"{name}, plain: {label}: {found[label]:.3f} ms{more}", file=sys.stderr, flush=True)
    return found


def as_markdown(found: dict[str, dict[str, float]]) -> str:
    """A row for each operator made plain, a column for each thing timed."""
    rows = ["none", *sorted({label for column in found.values() for label in column} - {"none", "all"}), "all"]

    def cell(column: dict[str, float], label: str) -> str:
        if label not in column:
            return "–"
        more = column[label] / column["none"] - 1
        return f"{column[label]:.3g}" + (f" ({100 * more:+.0f}%)" if label != "none" else "")

    head = ["plain instead", *(f"{name}, ms" for name in found)]
    lines = [head, ["---"] * len(head), *([row, *(cell(column, row) for column in found.values())] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Read flags, time, print."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("names", nargs="*", default=[*UPDATES, "imagine", "localise", "long-memory", "raycast"])
    flags.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    asked = flags.parse_args()
    device = torch.device(asked.device)
    load_operators()
    found = {}
    for name in asked.names:
        found[name] = ablate(name, ON_GPU if device.type == "cuda" else ON_CPU, device)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print(as_markdown(found))


if __name__ == "__main__":
    main()
