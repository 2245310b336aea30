"""Steps put together on a GPU: a program for every sequence, all of whose steps are added up in parallel scans.

Longer walks than fit into a program go round by round, the last steps first on the way back. Nothing is kept but what
was given and the poses: headings are read off these. Everything is found by its strides, since noise and gradients are
often the first three columns of something wider.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

FEWEST_STEPS, MOST_STEPS = 128, 1024
"""Per round: from one to eight in each thread."""

# pi / 2 in three parts: the products of the first two with a whole number below 2^13 are exact
HALF_PI_HIGH = tl.constexpr(1.5703125)
HALF_PI_MIDDLE = tl.constexpr(4.837512969970703125e-4)
HALF_PI_LOW = tl.constexpr(7.54978995489188216e-8)
TWO_OVER_PI = tl.constexpr(0.6366197723675814)


@triton.jit
def direction(angle):  # pragma: no cover - runs on the GPU
    """cos and sin, as exact as a float32 can be: those of the hardware are wrong after a few dozen turns.

    The angle is taken to within an eighth of a turn of 0, where a short series will do: after Cephes' sinf and cosf.
    """
    quarters = tl.floor(angle * TWO_OVER_PI + 0.5)
    x = ((angle - quarters * HALF_PI_HIGH) - quarters * HALF_PI_MIDDLE) - quarters * HALF_PI_LOW
    x2 = x * x
    s = x + x * x2 * (-1.6666654611e-1 + x2 * (8.3321608736e-3 - x2 * 1.9515295891e-4))
    c = 1.0 - 0.5 * x2 + x2 * x2 * (4.166664568298827e-2 + x2 * (-1.388731625493765e-3 + x2 * 2.443315711809948e-5))
    quarter = quarters.to(tl.int32) & 3
    odd = (quarter & 1) == 1
    cosine, sine = tl.where(odd, s, c), tl.where(odd, c, s)
    return tl.where((quarter == 1) | (quarter == 2), -cosine, cosine), tl.where(quarter >= 2, -sine, sine)


@triton.jit
def _compose_forward(
    start, d, noise, poses, T, start_batch, start_axis, d_batch, d_time, d_axis, noise_batch, noise_time, noise_axis,
    HAS_NOISE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64)
    start += row * start_batch
    d += row * d_batch
    noise += row * noise_batch
    poses += row * T * 3
    x, y, facing = tl.load(start), tl.load(start + start_axis), tl.load(start + 2 * start_axis)
    for first in range(0, T, STEPS):
        step = first + tl.arange(0, STEPS)
        used = step < T
        t = step.to(tl.int64)
        ahead = tl.load(d + t * d_time, used, 0.0)
        left = tl.load(d + t * d_time + d_axis, used, 0.0)
        turn = tl.load(d + t * d_time + 2 * d_axis, used, 0.0)
        if HAS_NOISE:
            turn += tl.load(noise + t * noise_time + 2 * noise_axis, used, 0.0)
        turned = tl.cumsum(turn, 0)
        c, s = direction(facing + (turned - turn))
        moved_x = c * ahead - s * left
        moved_y = s * ahead + c * left
        if HAS_NOISE:
            moved_x += tl.load(noise + t * noise_time, used, 0.0)
            moved_y += tl.load(noise + t * noise_time + noise_axis, used, 0.0)
        tl.store(poses + t * 3, x + tl.cumsum(moved_x, 0), used)
        tl.store(poses + t * 3 + 1, y + tl.cumsum(moved_y, 0), used)
        tl.store(poses + t * 3 + 2, facing + turned, used)
        x += tl.sum(moved_x, 0)
        y += tl.sum(moved_y, 0)
        facing += tl.sum(turn, 0)


@triton.jit
def _compose_backward(
    start, d, poses, incoming, g_start, g_d, g_noise, T,
    start_batch, start_axis, d_batch, d_time, d_axis, in_batch, in_time, in_axis,
    INTO_NOISE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64)
    facing = tl.load(start + row * start_batch + 2 * start_axis)
    d += row * d_batch
    poses += row * T * 3
    incoming += row * in_batch
    g_d += row * T * 3
    g_noise += row * T * 3
    # what all that follows a round asks of where it ended
    later_x, later_y, later_facing = 0.0, 0.0, 0.0
    for done in range(0, T, STEPS):
        step = T - 1 - done - tl.arange(0, STEPS)  # the last step first, which is the way gradients go
        used = step >= 0
        t = step.to(tl.int64)
        ahead = tl.load(d + t * d_time, used, 0.0)
        left = tl.load(d + t * d_time + d_axis, used, 0.0)
        c, s = direction(tl.where(step > 0, tl.load(poses + t * 3 - 1, step > 0, 0.0), facing))
        in_x = tl.load(incoming + t * in_time, used, 0.0)
        in_y = tl.load(incoming + t * in_time + in_axis, used, 0.0)
        g_x = later_x + tl.cumsum(in_x, 0)
        g_y = later_y + tl.cumsum(in_y, 0)
        # a heading is asked for by itself, and by the move along it: that of the step after, so not by a turn's own
        along = g_y * (c * ahead - s * left) - g_x * (s * ahead + c * left)
        asked = tl.load(incoming + t * in_time + 2 * in_axis, used, 0.0) + along
        g_turn = later_facing + (tl.cumsum(asked, 0) - along)
        tl.store(g_d + t * 3, c * g_x + s * g_y, used)
        tl.store(g_d + t * 3 + 1, c * g_y - s * g_x, used)
        tl.store(g_d + t * 3 + 2, g_turn, used)
        if INTO_NOISE:
            tl.store(g_noise + t * 3, g_x, used)
            tl.store(g_noise + t * 3 + 1, g_y, used)
            tl.store(g_noise + t * 3 + 2, g_turn, used)
        later_x += tl.sum(in_x, 0)
        later_y += tl.sum(in_y, 0)
        later_facing += tl.sum(asked, 0)
    tl.store(g_start + row * 3, later_x)
    tl.store(g_start + row * 3 + 1, later_y)
    tl.store(g_start + row * 3 + 2, later_facing)


def _at_once(steps: int) -> int:
    """Steps per round."""
    return max(FEWEST_STEPS, min(MOST_STEPS, triton.next_power_of_2(steps)))


class _Compose(torch.autograd.Function):
    """Poses, and gradients of where they began, of displacements and of noise."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, d: Tensor, noise: Tensor | None) -> Tensor:
        poses, (batch, steps, _) = d.new_empty(d.shape), d.shape
        shaken = d if noise is None else noise
        _compose_forward[(batch,)](
            start, d, shaken, poses, steps, *start.stride(), *d.stride(), *shaken.stride(),
            HAS_NOISE=noise is not None, STEPS=_at_once(steps), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(start, d, poses)
        return poses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        start, d, poses = ctx.saved_tensors
        into_start, into_d, into_noise = ctx.needs_input_grad
        g_start, g_d, (batch, steps, _) = start.new_empty(start.shape), d.new_empty(d.shape), d.shape
        g_noise = d.new_empty(d.shape) if into_noise else g_d
        _compose_backward[(batch,)](
            start, d, poses, incoming, g_start, g_d, g_noise, steps,
            *start.stride(), *d.stride(), *incoming.stride(),
            INTO_NOISE=into_noise, STEPS=_at_once(steps), num_warps=4,
        )  # fmt: skip
        return g_start if into_start else None, g_d if into_d else None, g_noise if into_noise else None


def scan(start: Tensor, d: Tensor, noise: Tensor | None) -> Tensor:
    """`compose_by_sums` for float32 tensors."""
    return _Compose.apply(start, d, noise)  # type: ignore[no-any-return]
