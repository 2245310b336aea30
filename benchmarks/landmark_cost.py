"""What recognising places adds to a walk between walls: `python benchmarks/landmark_cost.py [cpu|cuda]`.

64 walks of 512 steps, a gate of 64 hidden units, 8 sights a step: the landmark scan against the walled scan, forward,
warm. On a CPU only the ratio is printed.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gtmsm.kernels.scans.walled_scan import Gate, walled_poses
from gtmsm.model.landmark_filter import Sights, Surprise, filter_positions

BATCH, STEPS, K, HIDDEN, PAST = 64, 512, 8, 64, 256

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
torch.set_num_threads(1)
torch.manual_seed(0)
on_gpu = device.type == "cuda"
repeats = 50 if on_gpu else 5


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device=device)


start, displacement, noise = draw(BATCH, 2), 0.3 * draw(BATCH, STEPS, 2), torch.zeros(BATCH, STEPS, 2, device=device)
gate = Gate(draw(HIDDEN, 2), draw(HIDDEN), draw(HIDDEN) / HIDDEN, draw())
# at each step, K different ones of the past and the steps so far
written = torch.arange(PAST + STEPS, device=device) < PAST + torch.arange(STEPS, device=device)[:, None]
index = torch.where(written, torch.rand(BATCH, STEPS, PAST + STEPS, device=device), -1).topk(K).indices
seen = 1 + draw(BATCH, STEPS, K), 0.3 * draw(BATCH, STEPS, K, 2), 0.1 * draw(BATCH, STEPS, K, 1).exp()
variance, past = torch.full((BATCH, 1), 0.1, device=device), (draw(BATCH, PAST, 2), 0.1 * draw(BATCH, PAST, 1).exp())


def between_walls() -> Tensor:
    return walled_poses(start, displacement, noise, *gate)


def by_landmarks() -> Tensor:
    return filter_positions(
        start, displacement, gate, variance, Sights(index, *seen), past, Surprise(0.1, (0.02,), (0.5,))
    )[0]


def milliseconds(call: Callable[[], object]) -> float:
    """Of the median run, on the device's own clock."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        if on_gpu:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            call()
            ended.record()
            torch.cuda.synchronize()
            times.append(began.elapsed_time(ended))
        else:
            since = time.process_time()
            call()
            times.append(1e3 * (time.process_time() - since))
    return sorted(times)[repeats // 2]


plain, fused = milliseconds(between_walls), milliseconds(by_landmarks)
times = f"walled scan {plain:.3f} ms, landmark scan {fused:.3f} ms, " if on_gpu else ""
print(f"{device}: {times}{fused / plain:.2f} times as long (median of {repeats})")
