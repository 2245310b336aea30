"""What this device can do at its best: measured before anything else, so that every speed has something beside it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from gtmsm.bench.clock import Call, captured, time_calls
from gtmsm.bench.sizes import Sizes
from gtmsm.kernels.choice import float32_products

Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""Of multiplications; tf32 has float32's range and rounds to 10 bits, on GPUs only."""

LAUNCHES = 256
"""Kernels in the graph that the cost of one is measured with."""


@dataclass(frozen=True)
class Ceilings:
    """The most that this device does in a second."""

    bandwidth: float
    """Bytes read or written."""
    flops: Mapping[Precision, float]
    """Multiplications and additions, in each precision that it has."""
    launch: float | None = None
    """Seconds that a kernel with nothing to do takes in a CUDA graph; a CPU launches none."""

    def or_better(self, other: "Ceilings") -> "Ceilings":
        """The best of two measurements of one device."""
        flops = {precision: max(rate, other.flops[precision]) for precision, rate in self.flops.items()}
        launches = [launch for launch in (self.launch, other.launch) if launch is not None]
        return Ceilings(max(self.bandwidth, other.bandwidth), flops, min(launches, default=None))


def measure_ceilings(device: torch.device, sizes: Sizes) -> Ceilings:
    """The best of several, of the fastest known way to keep memory, or arithmetic, busy."""
    budget = min(0.5, sizes.seconds)
    bandwidth = max(moved / time_calls(call, device, budget).best for moved, call in _movers(device, sizes.copied))
    precisions: tuple[Precision, ...] = ("float32", "tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    flops = {precision: _matmul_rate(precision, device, sizes.matmul, budget) for precision in precisions}
    return Ceilings(bandwidth, flops, _launch_seconds(device, budget))


def _movers(device: torch.device, count: int) -> Iterator[tuple[int, Call]]:
    """Bytes moved, and a call that moves them: a copy, and a triad a + s b."""
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    size = a.element_size() * count
    yield 2 * size, lambda: c.copy_(a)
    yield 3 * size, lambda: torch.add(a, b, alpha=0.5, out=c)


def _matmul_rate(precision: Precision, device: torch.device, side: int, budget: float) -> float:
    """FLOP/s of a large square product."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a, b, c = (torch.randn(side, side, device=device).to(dtype) for _ in range(3))
    with float32_products("high" if precision == "tf32" else "highest"):
        return 2 * side**3 / time_calls(lambda: torch.mm(a, b, out=c), device, budget).best


def _launch_seconds(device: torch.device, budget: float) -> float | None:
    """Of one of many tiny kernels, each of which has to wait for the one before."""
    if device.type != "cuda":
        return None
    x = torch.zeros(1, device=device)

    def nearly_nothing() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    return time_calls(captured(nearly_nothing, device), device, budget).best / LAUNCHES
