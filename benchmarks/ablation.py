"""What each operator of `gtmsm.kernels` saves: `python benchmarks/ablation.py [NAMES] [--device cuda]`.

Times updates of presets, 300 updates into training, and calls that users wait for, with all fast implementations.
Then it switches off one operator after the other, captures the update anew and times it again; last, all of them.
Prints a markdown table of milliseconds and percent; a dash where an operator is not used. Names: presets, imagine,
localise, memorise, imagine-long, long-memory, raycast. Run it in the root of the repository, where the weights are. On
a CPU it counts the processor's time and goes round several times, since others may work there, too:
`OMP_NUM_THREADS=1 python benchmarks/ablation.py image-walk-small obstacles-small memorise imagine-long --device cpu`.
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
ROUNDS_ON_CPU = 4

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


def a_long_walk(imagines: bool) -> Callable[[torch.device], Call]:
    """A walk of 2,000 steps over an image, memorised with landmarks, or imagined further without."""

    def set_up(device: torch.device) -> Call:
        model = WorldModel.load("image-walk-celeba" if imagines else "obstacles-celeba").to(device)
        generator = torch.Generator().manual_seed(0)
        frames = torch.rand(1, 2_000, *model.frame_shape, generator=generator).to(device)
        taken = torch.randint(model.action_size, (1, 2_000), generator=generator)
        actions = torch.eye(model.action_size)[taken].to(device)
        with torch.no_grad():
            memory, belief = model.memorise(frames, actions)
        if imagines:
            return torch.no_grad()(lambda: model.imagine(memory, belief, actions[:, :512]).frames)
        return torch.no_grad()(lambda: model.memorise(frames, actions))

    return set_up


def set_up(name: str, sizes: Sizes, device: torch.device) -> tuple[Call, Call]:
    """The call of a column, and what to call after operators were switched."""
    if name in PRESETS:
        return an_update(name, sizes, device)
    sizes = replace(sizes, remembered=(min(REMEMBERED, sizes.remembered[-1]),), drawn=min(DRAWN, sizes.drawn))
    tasks = {"imagine": imagine, "long-memory": long_memories, "raycast": raycasting}
    walks = {"localise": a_localisation, "memorise": a_long_walk(False), "imagine-long": a_long_walk(True)}
    call = walks[name](device) if name in walks else next(iter(tasks[name](sizes, device))).call
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
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        since = clock()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (clock() - since) / count

    for _ in range(UNTIL_CAPTURED if device.type == "cuda" else 1):
        call()
    count = max(1, min(200, int(1e3 * budget / series(1))))
    return min(series(count) for _ in range(3))


def ablate(name: str, sizes: Sizes, device: torch.device, budget: float = SECONDS) -> dict[str, float]:
    """Milliseconds of one column: with all operators, without each that it uses, and without any."""
    call, renew = set_up(name, sizes, device)
    renew()
    used = sorted(used_by(call))
    variants = {"none": []} | {each: [OPERATORS[each]] for each in used} | {"all": [OPERATORS[each] for each in used]}
    found = dict.fromkeys(variants, float("inf"))
    for label in [*variants] * (1 if device.type == "cuda" else ROUNDS_ON_CPU):
        with switched_off(*variants[label]):
            renew()
            found[label] = min(found[label], milliseconds(call, device, budget))
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
