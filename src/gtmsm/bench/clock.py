"""How long a call takes, on the clock of the device that does it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

Call = Callable[[], object]

FEWEST, MOST = 3, 200
"""How many calls count; where one takes longer than all are meant to, one fewer must do."""
WARM_UP = {"cuda": 3, "cpu": 1}
"""Calls before those: in the first a GPU's kernels are compiled."""


@dataclass(frozen=True)
class Timing:
    """Of a call that was made again and again, warm."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What it usually takes."""
        return median(self.seconds)

    @property
    def best(self) -> float:
        """What it takes when nothing disturbs it."""
        return min(self.seconds)


def time_calls(call: Call, device: torch.device, budget: float) -> Timing:
    """Repeat a call for about `budget` seconds."""
    clock = _on_gpu if device.type == "cuda" else _on_cpu
    for _ in range(WARM_UP[device.type]):
        call()
    first = clock(call, 1)
    fewest = FEWEST if first[0] < budget else FEWEST - 1
    more = int(min(MOST, max(fewest, budget / max(first[0], 1e-6)))) - 1
    return Timing((*first, *clock(call, more)))


def _on_cpu(call: Call, repeats: int) -> list[float]:
    """By the clock on the wall."""
    seconds = []
    for _ in range(repeats):
        since = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - since)
    return seconds


def _on_gpu(call: Call, repeats: int) -> list[float]:
    """Between marks in the device's own queue: the host only has to keep it filled."""
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [1e-3 * before.elapsed_time(after) for before, after in zip(marks[:-1], marks[1:], strict=True)]


def captured(call: Call, device: torch.device) -> Call:
    """The same as a CUDA graph, as training runs it: without the time that the host takes to launch it."""
    if device.type != "cuda":
        return call
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # everything must have been compiled and allocated before
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def peak_bytes(call: Call, device: torch.device) -> int | None:
    """The most memory that a call takes beyond what was taken before it; a CPU does not say."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
