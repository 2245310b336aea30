"""The time of a call by the clock of its device, the kernels that take it, and the best rates of the device."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile

from gtmsm.kernels.precision import float32_products

Call = Callable[[], object]
Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""Precision of products; tf32 has float32's range and rounds to 10 bits, on GPUs only."""

FEWEST, MOST = 3, 200
"""Limits of the number of timed calls; one fewer if a single call exceeds the budget."""


def time_calls(call: Call, device: torch.device, budget: float) -> list[float]:
    """Seconds of each call, repeated for about `budget` seconds."""
    clock = _on_gpu if device.type == "cuda" else _on_cpu
    for _ in range(3 if device.type == "cuda" else 1):  # the first ones compile a GPU's kernels
        call()
    first = clock(call, 1)
    fewest = FEWEST if first[0] < budget else FEWEST - 1
    more = int(min(MOST, max(fewest, budget / max(first[0], 1e-6)))) - 1
    return first + clock(call, more)


def _on_cpu(call: Call, repeats: int) -> list[float]:
    """Seconds by the clock of the host."""
    seconds = []
    for _ in range(repeats):
        since = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - since)
    return seconds


def _on_gpu(call: Call, repeats: int) -> list[float]:
    """Seconds between events in the device's queue, which the host only has to keep filled."""
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
    """Measure the best rates: copy `count` numbers, and multiply matrices of side `side`."""
    a, b = (torch.ones(count, device=device) for _ in range(2))
    bandwidth = 2 * 4 * count / min(time_calls(lambda: b.copy_(a), device, budget))
    precisions: tuple[Precision, ...] = ("float32", "tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    rates: dict[Precision, float] = {}
    for precision in precisions:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        x, y, z = (torch.randn(side, side, device=device).to(dtype) for _ in range(3))
        multiply = partial(torch.mm, x, y, out=z)
        with float32_products("high" if precision == "tf32" else "highest"):
            rates[precision] = 2 * side**3 / min(time_calls(multiply, device, budget))
    return Ceilings(bandwidth, rates)


@dataclass(frozen=True)
class Share:
    """The time of one kernel (on a CPU: of one operation) within a call."""

    kernel: str
    calls: float
    """Number of its calls in one timed call."""
    seconds: float
    share: float


def where_time_goes(call: Call, device: torch.device, top: int = 12) -> list[Share]:
    """The `top` slowest kernels, slowest first, then all others as one; gaps between kernels are not counted."""
    on_gpu = device.type == "cuda"
    repeats = 20 if on_gpu else 2
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence some builds of PyTorch
    call()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as watched:  # otherwise it warns that events are cleared
        for _ in range(repeats):
            call()
        if on_gpu:
            torch.cuda.synchronize()
    taken = dict[str, tuple[float, float]]()
    for event in watched.key_averages():
        spent = float(event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        if event.device_type.name == ("CUDA" if on_gpu else "CPU") and spent > 0:
            seconds, calls = taken.get(name := short(event.key), (0.0, 0.0))
            taken[name] = seconds + 1e-6 * spent / repeats, calls + event.count / repeats
    total = sum(seconds for seconds, _ in taken.values())
    ordered = sorted(taken.items(), key=lambda item: item[1], reverse=True)
    shares = [Share(name, calls, seconds, seconds / total) for name, (seconds, calls) in ordered[:top]]
    if left := [spent for _, spent in ordered[top:]]:
        seconds, calls = (sum(part) for part in zip(*left, strict=True))
        shares.append(Share("all others", calls, seconds, seconds / total))
    return shares


def short(kernel: str) -> str:
    """A kernel's name without return type, name spaces and arguments.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>'
    """
    if kernel.startswith("aten::"):
        return kernel
    return re.sub(r"^void |\(anonymous namespace\)::|\w+::|\(.*", "", kernel)
