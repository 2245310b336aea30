"""How long a call takes, on the clock of the device that runs it; and the best rates of the device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from gtmsm.kernels.precision import float32_products

Call = Callable[[], object]
Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""Of products; tf32 has float32's range and rounds to 10 bits, on GPUs only."""

FEWEST, MOST = 3, 200
"""Number of timed calls; one fewer where a single call exceeds the budget."""
WARM_UP = {"cuda": 3, "cpu": 1}
"""Calls before those: the first ones compile a GPU's kernels."""


def time_calls(call: Call, device: torch.device, budget: float) -> list[float]:
    """Seconds of each call, repeated for about `budget` seconds."""
    clock = _on_gpu if device.type == "cuda" else _on_cpu
    for _ in range(WARM_UP[device.type]):
        call()
    first = clock(call, 1)
    fewest = FEWEST if first[0] < budget else FEWEST - 1
    more = int(min(MOST, max(fewest, budget / max(first[0], 1e-6)))) - 1
    return first + clock(call, more)


def _on_cpu(call: Call, repeats: int) -> list[float]:
    """By the clock of the host."""
    seconds = []
    for _ in range(repeats):
        since = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - since)
    return seconds


def _on_gpu(call: Call, repeats: int) -> list[float]:
    """Between events in the device's queue, which the host only has to keep filled."""
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return [1e-3 * before.elapsed_time(after) for before, after in zip(marks[:-1], marks[1:], strict=True)]


@dataclass(frozen=True)
class Ceilings:
    """The best rates of a device."""

    bandwidth: float
    """Bytes per second, read or written."""
    flops: dict[Precision, float]
    """FLOP per second of matrix products, in each precision that the device has."""


def measure_ceilings(device: torch.device, count: int, side: int, budget: float) -> Ceilings:
    """From copying `count` numbers, and from products of matrices of this side."""
    a, b = (torch.ones(count, device=device) for _ in range(2))
    bandwidth = 2 * 4 * count / min(time_calls(lambda: b.copy_(a), device, budget))
    precisions: tuple[Precision, ...] = ("float32", "tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    return Ceilings(bandwidth, {precision: _matmul_rate(precision, device, side, budget) for precision in precisions})


def _matmul_rate(precision: Precision, device: torch.device, side: int, budget: float) -> float:
    """FLOP/s of a large square product."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a, b, c = (torch.randn(side, side, device=device).to(dtype) for _ in range(3))
    with float32_products("high" if precision == "tf32" else "highest"):
        return 2 * side**3 / min(time_calls(lambda: torch.mm(a, b, out=c), device, budget))
