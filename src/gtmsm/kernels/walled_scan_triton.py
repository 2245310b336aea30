"""The walled scan on a GPU: one Triton program walks one sequence, the hidden layer of sigma_d in registers.

Nothing but the poses is stored on the way forward; the way back computes the gate again, which is cheaper
than reading it. Each program sums its own share of the weights' gradients.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _forward(
    start, displacement, noise, W, b, v, c, poses, T, H, HIDDEN: tl.constexpr
):  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    h = tl.arange(0, HIDDEN)
    used = h < H
    w_x, w_y = tl.load(W + 2 * h, used, 0.0), tl.load(W + 2 * h + 1, used, 0.0)
    bias, out, offset = tl.load(b + h, used, 0.0), tl.load(v + h, used, 0.0), tl.load(c)
    x, y = tl.load(start + 2 * row), tl.load(start + 2 * row + 1)
    for t in range(T):
        at = 2 * (row * T + t)
        d_x, d_y = tl.load(displacement + at), tl.load(displacement + at + 1)
        u = tl.maximum(w_x * (x + d_x) + w_y * (y + d_y) + bias, 0.0)
        g = tl.sigmoid(tl.sum(u * out, 0) + offset)
        x += d_x * g + tl.load(noise + at)
        y += d_y * g + tl.load(noise + at + 1)
        tl.store(poses + at, x)
        tl.store(poses + at + 1, y)


@triton.jit
def _backward(
    start, displacement, W, b, v, c, poses, incoming,
    g_start, g_displacement, g_noise, g_W, g_b, g_v, g_c, T, H, HIDDEN: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    h = tl.arange(0, HIDDEN)
    used = h < H
    w_x, w_y = tl.load(W + 2 * h, used, 0.0), tl.load(W + 2 * h + 1, used, 0.0)
    bias, out, offset = tl.load(b + h, used, 0.0), tl.load(v + h, used, 0.0), tl.load(c)
    sum_wx, sum_wy = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
    sum_b, sum_v, sum_c = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32), 0.0
    ds_x, ds_y = 0.0, 0.0
    first_x, first_y = tl.load(start + 2 * row), tl.load(start + 2 * row + 1)
    for i in range(T):
        t = T - 1 - i
        at = 2 * (row * T + t)
        d_x, d_y = tl.load(displacement + at), tl.load(displacement + at + 1)
        x = tl.load(poses + at - 2, mask=t > 0, other=0.0)
        y = tl.load(poses + at - 1, mask=t > 0, other=0.0)
        q_x = tl.where(t > 0, x, first_x) + d_x
        q_y = tl.where(t > 0, y, first_y) + d_y
        pre = w_x * q_x + w_y * q_y + bias
        u = tl.maximum(pre, 0.0)
        g = tl.sigmoid(tl.sum(u * out, 0) + offset)
        ds_x += tl.load(incoming + at)
        ds_y += tl.load(incoming + at + 1)
        tl.store(g_noise + at, ds_x)
        tl.store(g_noise + at + 1, ds_y)
        logit = (ds_x * d_x + ds_y * d_y) * g * (1 - g)
        into = tl.where(pre > 0, logit * out, 0.0)
        sum_v += logit * u
        sum_c += logit
        sum_b += into
        sum_wx += into * q_x
        sum_wy += into * q_y
        dq_x, dq_y = tl.sum(into * w_x, 0), tl.sum(into * w_y, 0)
        tl.store(g_displacement + at, ds_x * g + dq_x)
        tl.store(g_displacement + at + 1, ds_y * g + dq_y)
        ds_x += dq_x
        ds_y += dq_y
    tl.store(g_start + 2 * row, ds_x)
    tl.store(g_start + 2 * row + 1, ds_y)
    tl.store(g_W + 2 * (row * H + h), sum_wx, used)
    tl.store(g_W + 2 * (row * H + h) + 1, sum_wy, used)
    tl.store(g_b + row * H + h, sum_b, used)
    tl.store(g_v + row * H + h, sum_v, used)
    tl.store(g_c + row, sum_c)


class _WalledScan(torch.autograd.Function):
    """Poses of a walk and their gradients, one program a sequence."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        start, displacement, noise, W, b, v, c = (x.contiguous() for x in inputs)
        poses = torch.empty_like(displacement)
        batch, steps, _ = displacement.shape
        hidden = len(b)
        _forward[(batch,)](
            start, displacement, noise, W, b, v, c, poses, steps, hidden,
            HIDDEN=triton.next_power_of_2(hidden), num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(start, displacement, W, b, v, c, poses)
        return poses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, ...]:
        start, displacement, W, b, v, c, poses = ctx.saved_tensors
        batch, steps, _ = displacement.shape
        hidden = len(b)
        into_start, into_d, into_noise = (torch.empty_like(x) for x in (start, displacement, displacement))
        shares = [x.new_empty((batch, *x.shape)) for x in (W, b, v, c)]
        _backward[(batch,)](
            start, displacement, W, b, v, c, poses, incoming.contiguous(),
            into_start, into_d, into_noise, *shares, steps, hidden,
            HIDDEN=triton.next_power_of_2(hidden), num_warps=1,
        )  # fmt: skip
        return into_start, into_d, into_noise, *(share.sum(0) for share in shares)


def scan(start: Tensor, displacement: Tensor, noise: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """`walled_scan_by_steps` for float32 CUDA tensors of two-dimensional poses."""
    return _WalledScan.apply(start, displacement, noise, W, b, v, c)  # type: ignore[no-any-return]
