"""The glide scan on a GPU: one Triton program follows one sequence, the hidden layer in registers."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _forward(
    start, u, cos, sin, pre, keep, W, V, d, v, T, H, HIDDEN: tl.constexpr
):  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    h = tl.arange(0, HIDDEN)
    used = h < H
    w_x, w_y = tl.load(W + 2 * h, used, 0.0), tl.load(W + 2 * h + 1, used, 0.0)
    o_0, o_1 = tl.load(V + h, used, 0.0), tl.load(V + H + h, used, 0.0)
    o_2, o_3 = tl.load(V + 2 * H + h, used, 0.0), tl.load(V + 3 * H + h, used, 0.0)
    k_x, k_y = tl.load(keep), tl.load(keep + 1)
    x, y = tl.load(start + 2 * row), tl.load(start + 2 * row + 1)
    for t in range(T):
        at = row * T + t
        hidden = tl.maximum(tl.load(pre + at * H + h, used, 0.0) + w_x * x + w_y * y, 0.0)
        drift_x = k_x * x + tl.load(u + 2 * at)
        drift_y = k_y * y + tl.load(u + 2 * at + 1)
        tl.store(d + 2 * at, drift_x + tl.sum(o_0 * hidden, 0))
        tl.store(d + 2 * at + 1, drift_y + tl.sum(o_1 * hidden, 0))
        left_x = drift_x + tl.sum(o_2 * hidden, 0)
        left_y = drift_y + tl.sum(o_3 * hidden, 0)
        c, s = tl.load(cos + at), tl.load(sin + at)
        x = c * left_x + s * left_y
        y = c * left_y - s * left_x
        tl.store(v + 2 * at, x)
        tl.store(v + 2 * at + 1, y)


@triton.jit
def _backward(
    start, u, cos, sin, pre, keep, W, V, v, into_d, into_v,
    g_start, g_u, g_cos, g_sin, g_pre, g_keep, g_W, g_V, T, H, HIDDEN: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    h = tl.arange(0, HIDDEN)
    used = h < H
    w_x, w_y = tl.load(W + 2 * h, used, 0.0), tl.load(W + 2 * h + 1, used, 0.0)
    o_0, o_1 = tl.load(V + h, used, 0.0), tl.load(V + H + h, used, 0.0)
    o_2, o_3 = tl.load(V + 2 * H + h, used, 0.0), tl.load(V + 3 * H + h, used, 0.0)
    k_x, k_y = tl.load(keep), tl.load(keep + 1)
    first_x, first_y = tl.load(start + 2 * row), tl.load(start + 2 * row + 1)
    sum_wx, sum_wy = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
    sum_0, sum_1 = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
    sum_2, sum_3 = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
    sum_kx, sum_ky = 0.0, 0.0
    dv_x, dv_y = 0.0, 0.0
    for i in range(T):
        t = T - 1 - i
        at = row * T + t
        before_x = tl.load(v + 2 * at - 2, mask=t > 0, other=0.0)
        before_y = tl.load(v + 2 * at - 1, mask=t > 0, other=0.0)
        x = tl.where(t > 0, before_x, first_x)
        y = tl.where(t > 0, before_y, first_y)
        pre_t = tl.load(pre + at * H + h, used, 0.0) + w_x * x + w_y * y
        hidden = tl.maximum(pre_t, 0.0)
        left_x = k_x * x + tl.load(u + 2 * at) + tl.sum(o_2 * hidden, 0)
        left_y = k_y * y + tl.load(u + 2 * at + 1) + tl.sum(o_3 * hidden, 0)
        c, s = tl.load(cos + at), tl.load(sin + at)
        dv_x += tl.load(into_v + 2 * at)
        dv_y += tl.load(into_v + 2 * at + 1)
        dd_x, dd_y = tl.load(into_d + 2 * at), tl.load(into_d + 2 * at + 1)
        tl.store(g_cos + at, dv_x * left_x + dv_y * left_y)
        tl.store(g_sin + at, dv_x * left_y - dv_y * left_x)
        dl_x = c * dv_x - s * dv_y
        dl_y = s * dv_x + c * dv_y
        drift_x = dd_x + dl_x
        drift_y = dd_y + dl_y
        tl.store(g_u + 2 * at, drift_x)
        tl.store(g_u + 2 * at + 1, drift_y)
        sum_kx += drift_x * x
        sum_ky += drift_y * y
        sum_0 += dd_x * hidden
        sum_1 += dd_y * hidden
        sum_2 += dl_x * hidden
        sum_3 += dl_y * hidden
        into = tl.where(pre_t > 0, o_0 * dd_x + o_1 * dd_y + o_2 * dl_x + o_3 * dl_y, 0.0)
        tl.store(g_pre + at * H + h, into, used)
        sum_wx += into * x
        sum_wy += into * y
        dv_x = k_x * drift_x + tl.sum(into * w_x, 0)
        dv_y = k_y * drift_y + tl.sum(into * w_y, 0)
    tl.store(g_start + 2 * row, dv_x)
    tl.store(g_start + 2 * row + 1, dv_y)
    tl.store(g_keep + 2 * row, sum_kx)
    tl.store(g_keep + 2 * row + 1, sum_ky)
    tl.store(g_W + 2 * (row * H + h), sum_wx, used)
    tl.store(g_W + 2 * (row * H + h) + 1, sum_wy, used)
    tl.store(g_V + (4 * row) * H + h, sum_0, used)
    tl.store(g_V + (4 * row + 1) * H + h, sum_1, used)
    tl.store(g_V + (4 * row + 2) * H + h, sum_2, used)
    tl.store(g_V + (4 * row + 3) * H + h, sum_3, used)


class _GlideScan(torch.autograd.Function):
    """Displacements and velocities of a walk and their gradients, one program a sequence."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        start, u, cos, sin, pre, keep, W, V = (x.contiguous() for x in inputs)
        d, v = torch.empty_like(u), torch.empty_like(u)
        (batch, steps, _), hidden = u.shape, len(W)
        _forward[(batch,)](
            start, u, cos, sin, pre, keep, W, V, d, v, steps, hidden,
            HIDDEN=triton.next_power_of_2(hidden), num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(start, u, cos, sin, pre, keep, W, V, v)
        return d, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, into_d: Tensor, into_v: Tensor) -> tuple[Tensor, ...]:
        start, u, cos, sin, pre, keep, W, V, v = ctx.saved_tensors
        (batch, steps, _), hidden = u.shape, len(W)
        own = [torch.empty_like(x) for x in (start, u, cos, sin, pre)]
        shares = [x.new_empty((batch, *x.shape)) for x in (keep, W, V)]
        _backward[(batch,)](
            start, u, cos, sin, pre, keep, W, V, v, into_d.contiguous(), into_v.contiguous(), *own, *shares,
            steps, hidden, HIDDEN=triton.next_power_of_2(hidden), num_warps=1,
        )  # fmt: skip
        return *own, *(share.sum(0) for share in shares)


def scan(
    start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, keep: Tensor, W: Tensor, V: Tensor
) -> tuple[Tensor, Tensor]:
    """`glide_scan_by_steps` for float32 CUDA tensors."""
    return _GlideScan.apply(start, u, cos, sin, pre, keep, W, V)  # type: ignore[no-any-return]
