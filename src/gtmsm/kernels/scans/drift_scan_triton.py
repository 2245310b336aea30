"""The drift scan on a GPU: a lane for every axis of every sequence, and a loop over time.

What a step needs of memory is read two steps ahead.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

LANES = 32
"""Per program: one warp, so that few sequences still find many multiprocessors."""


@triton.jit
def _tanh(x):  # pragma: no cover - runs on the GPU
    """As exact as a float32 can be: by its series where the difference of exponentials would cancel."""
    x2 = tl.minimum(x * x, 0.08)
    series = x + x * x2 * (-0.333333333 + x2 * (0.133333333 + x2 * (-0.0539682540 + x2 * 0.0218694885)))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 16.0)) + 1.0)
    return tl.where(x * x < 0.08, series, tl.where(x < 0, -far, far))


@triton.jit
def _drift_scan_forward(start, push, keep, v, lanes, T, D, LANES: tl.constexpr):  # pragma: no cover - runs on the GPU
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    used = lane < lanes
    steps = tl.where(used, T, 0)
    axis = lane % D
    at = (lane // D).to(tl.int64) * T * D + axis
    k = tl.load(keep + axis, used, 0.0)
    speed = tl.load(start + lane, used, 0.0)
    u = tl.load(push + at, used, 0.0)
    upcoming = tl.load(push + at + D, steps > 1, 0.0)
    for t in range(T):
        far = tl.load(push + at + (t + 2) * D, steps > t + 2, 0.0)
        speed = _tanh(k * speed + u)
        tl.store(v + at + t * D, speed, used)
        u, upcoming = upcoming, far


@triton.jit
def _drift_scan_backward(
    start, keep, v, incoming, g_start, g_push, g_keep, lanes, T, D, LANES: tl.constexpr
):  # pragma: no cover - runs on the GPU
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    used = lane < lanes
    steps = tl.where(used, T, 0)
    axis = lane % D
    at = (lane // D).to(tl.int64) * T * D + axis
    k = tl.load(keep + axis, used, 0.0)
    first = tl.load(start + lane, used, 0.0)
    after = tl.load(v + at + (T - 1) * D, used, 0.0)
    before = tl.load(v + at + (T - 2) * D, steps > 1, 0.0)
    g = tl.load(incoming + at + (T - 1) * D, used, 0.0)
    upcoming = tl.load(incoming + at + (T - 2) * D, steps > 1, 0.0)
    owed = tl.zeros([LANES], tl.float32)  # to the velocity before, by all that follows
    into_keep = tl.zeros([LANES], tl.float32)
    for i in range(T):
        t = T - 1 - i
        ahead = steps > i + 2
        far_v = tl.load(v + at + (t - 2) * D, ahead, 0.0)
        far_g = tl.load(incoming + at + (t - 2) * D, ahead, 0.0)
        into = (g + owed) * (1.0 - after * after)
        tl.store(g_push + at + t * D, into, used)
        owed = k * into
        into_keep += into * tl.where(t > 0, before, first)
        after, before = before, far_v
        g, upcoming = upcoming, far_g
    tl.store(g_start + lane, owed, used)
    tl.store(g_keep + lane, into_keep, used)


class _DriftScan(torch.autograd.Function):
    """Velocities and their gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        start, push, keep = (x.contiguous() for x in inputs)
        v, (batch, steps, size) = torch.empty_like(push), push.shape
        if v.numel():
            lanes = batch * size
            _drift_scan_forward[(triton.cdiv(lanes, LANES),)](
                start, push, keep, v, lanes, steps, size, LANES=LANES, num_warps=1
            )  # fmt: skip
        ctx.save_for_backward(start, keep, v)
        return v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, ...]:
        start, keep, v = ctx.saved_tensors
        if not v.numel():
            return torch.zeros_like(start), torch.zeros_like(v), torch.zeros_like(keep)
        batch, steps, size = v.shape
        into_start, into_push, shares = (torch.empty_like(x) for x in (start, v, start))
        lanes = batch * size
        _drift_scan_backward[(triton.cdiv(lanes, LANES),)](
            start, keep, v, incoming.contiguous(), into_start, into_push, shares, lanes, steps, size,
            LANES=LANES, num_warps=1,
        )  # fmt: skip
        return into_start, into_push, shares.sum(0)


def scan(start: Tensor, push: Tensor, keep: Tensor) -> Tensor:
    """`drift_scan_by_steps` for float32 tensors."""
    return _DriftScan.apply(start, push, keep)  # type: ignore[no-any-return]
