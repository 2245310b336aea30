"""Where the time of an update goes, kernel by kernel."""

import os
import re
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from gtmsm.bench.clock import Call

REPEATS = {"cuda": 20, "cpu": 2}
TOP = 12
REST = "all others"


@dataclass(frozen=True)
class Share:
    """The time of one kernel (on a CPU: of one operation) within a call."""

    kernel: str
    calls: float
    """In one call of the whole."""
    seconds: float
    share: float


def where_time_goes(call: Call, device: torch.device, top: int = TOP) -> list[Share]:
    """The slowest kernels, slowest first, and the others in one line; gaps between kernels are not counted."""
    on_gpu = device.type == "cuda"
    repeats = REPEATS["cuda" if on_gpu else "cpu"]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence some builds of PyTorch
    call()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as watched:  # else it warns that events are cleared
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
        shares.append(Share(REST, calls, seconds, seconds / total))
    return shares


def short(kernel: str) -> str:
    """A kernel's name without return type, name spaces and arguments.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>'
    """
    if kernel.startswith("aten::"):
        return kernel
    return re.sub(r"^void |\(anonymous namespace\)::|\w+::|\(.*", "", kernel)
