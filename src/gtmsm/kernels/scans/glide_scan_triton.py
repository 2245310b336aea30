"""The glide scan on a GPU: a loop over time in the forward pass, a parallel scan over time in the backward pass.

As in the walled scan: forward, a program computes a few sequences in one warp and loads ahead. Backward, all velocities
are known, so the network's part is computed for all steps at once and a chain of linear maps is left. Each program does
one sequence and writes its own part of the weights' gradients.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors
from gtmsm.kernels.scans.walled_scan_triton import STEPS_AT_ONCE, TILE, before, chained, load_xy, store_xy

SEQUENCES_AT_ONCE = 4
"""Sequences per program of the forward pass: eight lanes for each."""

NOTES = 12
"""Numbers that the backward pass stores for every step."""


@triton.jit(do_not_specialize=["pre_unit"])  # specialised to 1, every unit of a sequence would get a lane of its own
def _glide_scan_forward(
    start, u, cos, sin, pre, keep, W, V, d, v, batch, T, pre_unit,
    H: tl.constexpr, HIDDEN: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    used = row < batch
    steps = tl.where(used, T, 0)
    h = tl.arange(0, HIDDEN)
    real = h < H
    w_x = tl.load(W + 2 * h, real, 0.0)[:, None]
    w_y = tl.load(W + 2 * h + 1, real, 0.0)[:, None]
    o_0 = tl.load(V + h, real, 0.0)[:, None]
    o_1 = tl.load(V + H + h, real, 0.0)[:, None]
    o_2 = tl.load(V + 2 * H + h, real, 0.0)[:, None]
    o_3 = tl.load(V + 3 * H + h, real, 0.0)[:, None]
    k_x, k_y = tl.load(keep), tl.load(keep + 1)
    x, y = load_xy(start, row, used)
    at = row.to(tl.int64) * T
    told_at = pre + at[None, :] * H + h[:, None] * pre_unit
    told = tl.load(told_at, used[None, :] & real[:, None], 0.0)
    next_told = tl.load(told_at + H, (steps > 1)[None, :] & real[:, None], 0.0)
    u_x, u_y = load_xy(u, at, used)
    c = tl.load(cos + at, used, 0.0)
    s = tl.load(sin + at, used, 0.0)
    for t in range(T):
        ahead = steps > t + 1
        far_told = tl.load(told_at + (t + 2) * H, (steps > t + 2)[None, :] & real[:, None], 0.0)
        next_ux, next_uy = load_xy(u, at + t + 1, ahead)
        next_c = tl.load(cos + at + t + 1, ahead, 0.0)
        next_s = tl.load(sin + at + t + 1, ahead, 0.0)
        hidden = tl.maximum(w_x * x[None, :] + (w_y * y[None, :] + told), 0.0)
        drift_x = k_x * x + u_x
        drift_y = k_y * y + u_y
        left_x = drift_x + tl.sum(o_2 * hidden, 0)
        left_y = drift_y + tl.sum(o_3 * hidden, 0)
        x = c * left_x + s * left_y
        y = c * left_y - s * left_x
        store_xy(d, at + t, drift_x + tl.sum(o_0 * hidden, 0), drift_y + tl.sum(o_1 * hidden, 0), used)
        store_xy(v, at + t, x, y, used)
        told, next_told = next_told, far_told
        u_x, u_y, c, s = next_ux, next_uy, next_c, next_s


@triton.jit
def _glide_scan_backward(
    start, u, cos, sin, pre, keep, W, V, v, into_d, into_v, g_start, g_u, g_cos, g_sin, g_pre, shares, notes, T,
    H: tl.constexpr, HIDDEN: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, NOTES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64)
    start += 2 * row
    g_start += 2 * row
    u += 2 * row * T
    v += 2 * row * T
    into_d += 2 * row * T
    into_v += 2 * row * T
    g_u += 2 * row * T
    cos += row * T
    sin += row * T
    g_cos += row * T
    g_sin += row * T
    pre += row * T * H
    g_pre += row * T * H
    notes += row * NOTES * T
    shares += row * (6 * H + 2)
    k_x, k_y = tl.load(keep), tl.load(keep + 1)
    h = tl.arange(0, HIDDEN)
    real = h < H
    w_x = tl.load(W + 2 * h, real, 0.0)[None, :]
    w_y = tl.load(W + 2 * h + 1, real, 0.0)[None, :]
    o_0 = tl.load(V + h, real, 0.0)[None, :]
    o_1 = tl.load(V + H + h, real, 0.0)[None, :]
    o_2 = tl.load(V + 2 * H + h, real, 0.0)[None, :]
    o_3 = tl.load(V + 3 * H + h, real, 0.0)[None, :]
    # the network's corrections at every velocity and their Jacobians: sums over hidden units
    for first_row in range(0, T, ROWS):
        r = first_row + tl.arange(0, ROWS)
        there = (r < T)[:, None] & real[None, :]
        x, y = before(start, v, r, r < T)
        pre_r = tl.load(pre + r[:, None] * H + h[None, :], there, 0.0) + w_x * x[:, None] + w_y * y[:, None]
        hidden = tl.maximum(pre_r, 0.0)
        on_x = tl.where(pre_r > 0, w_x, 0.0)
        on_y = tl.where(pre_r > 0, w_y, 0.0)
        d_x, d_y = load_xy(into_d, r, r < T)
        from_d = o_0 * d_x[:, None] + o_1 * d_y[:, None]
        tl.store(notes + r, tl.sum(o_2 * hidden, 1), r < T)
        tl.store(notes + T + r, tl.sum(o_3 * hidden, 1), r < T)
        tl.store(notes + 2 * T + r, tl.sum(on_x * o_2, 1), r < T)
        tl.store(notes + 3 * T + r, tl.sum(on_x * o_3, 1), r < T)
        tl.store(notes + 4 * T + r, tl.sum(on_y * o_2, 1), r < T)
        tl.store(notes + 5 * T + r, tl.sum(on_y * o_3, 1), r < T)
        tl.store(notes + 6 * T + r, tl.sum(on_x * from_d, 1), r < T)
        tl.store(notes + 7 * T + r, tl.sum(on_y * from_d, 1), r < T)
    tl.debug_barrier()
    # the gradient of the velocity before the steps of later rounds; the last step has none
    dv_x, dv_y = 0.0, 0.0
    sum_kx, sum_ky = 0.0, 0.0
    for done in range(0, T, STEPS):
        t = T - 1 - done - tl.arange(0, STEPS)  # the last step first
        used = t >= 0
        x, y = before(start, v, t, used)
        c = tl.load(cos + t, used, 1.0)
        s = tl.load(sin + t, used, 0.0)
        d_x, d_y = load_xy(into_d, t, used)
        in_x, in_y = load_xy(into_v, t, used)
        # the gradient of the velocity left passes to the one before by this matrix, after a turn of the frame
        m_xx = k_x + tl.load(notes + 2 * T + t, used, 0.0)
        m_xy = tl.load(notes + 3 * T + t, used, 0.0)
        m_yx = tl.load(notes + 4 * T + t, used, 0.0)
        m_yy = k_y + tl.load(notes + 5 * T + t, used, 0.0)
        a_xx, a_xy = m_xx * c + m_xy * s, m_xy * c - m_xx * s
        a_yx, a_yy = m_yx * c + m_yy * s, m_yy * c - m_yx * s
        b_x = a_xx * in_x + a_xy * in_y + k_x * d_x + tl.load(notes + 6 * T + t, used, 0.0)
        b_y = a_yx * in_x + a_yy * in_y + k_y * d_y + tl.load(notes + 7 * T + t, used, 0.0)
        to_x, to_y, dv_x, dv_y = chained(
            a_xx, a_xy, a_yx, a_yy, b_x, b_y, in_x, in_y, into_v, notes + 8 * T, dv_x, dv_y, t, used, done, T, STEPS
        )
        u_x, u_y = load_xy(u, t, used)
        left_x = k_x * x + u_x + tl.load(notes + t, used, 0.0)
        left_y = k_y * y + u_y + tl.load(notes + T + t, used, 0.0)
        tl.store(g_cos + t, to_x * left_x + to_y * left_y, used)
        tl.store(g_sin + t, to_x * left_y - to_y * left_x, used)
        l_x = c * to_x - s * to_y
        l_y = s * to_x + c * to_y
        store_xy(notes + 10 * T, t, l_x, l_y, used)
        store_xy(g_u, t, d_x + l_x, d_y + l_y, used)
        sum_kx += tl.sum((d_x + l_x) * x, 0)
        sum_ky += tl.sum((d_y + l_y) * y, 0)
    tl.store(g_start, dv_x)
    tl.store(g_start + 1, dv_y)
    tl.store(shares + 6 * H, sum_kx)
    tl.store(shares + 6 * H + 1, sum_ky)
    tl.debug_barrier()
    # the weights: sums over steps
    sum_wx = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_wy = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_0 = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_1 = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_2 = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_3 = tl.zeros([ROWS, HIDDEN], tl.float32)
    for first_row in range(0, T, ROWS):
        r = first_row + tl.arange(0, ROWS)
        there = (r < T)[:, None] & real[None, :]
        x, y = before(start, v, r, r < T)
        pre_r = tl.load(pre + r[:, None] * H + h[None, :], there, 0.0) + w_x * x[:, None] + w_y * y[:, None]
        hidden = tl.maximum(pre_r, 0.0)
        d_x, d_y = load_xy(into_d, r, r < T)
        l_x, l_y = load_xy(notes + 10 * T, r, r < T)
        into = o_0 * d_x[:, None] + o_1 * d_y[:, None] + o_2 * l_x[:, None] + o_3 * l_y[:, None]
        into = tl.where(pre_r > 0, into, 0.0)
        tl.store(g_pre + r[:, None] * H + h[None, :], into, there)
        sum_wx += into * x[:, None]
        sum_wy += into * y[:, None]
        sum_0 += d_x[:, None] * hidden
        sum_1 += d_y[:, None] * hidden
        sum_2 += l_x[:, None] * hidden
        sum_3 += l_y[:, None] * hidden
    store_xy(shares, h, tl.sum(sum_wx, 0), tl.sum(sum_wy, 0), real)
    tl.store(shares + 2 * H + h, tl.sum(sum_0, 0), real)
    tl.store(shares + 3 * H + h, tl.sum(sum_1, 0), real)
    tl.store(shares + 4 * H + h, tl.sum(sum_2, 0), real)
    tl.store(shares + 5 * H + h, tl.sum(sum_3, 0), real)


def _empty(start: Tensor, u: Tensor, *rest: Tensor) -> list[Tensor]:
    """Displacements and velocities."""
    return [u.new_empty(u.shape), u.new_empty(u.shape)]


def _forward(*args: Tensor) -> list[Tensor]:
    """One launch."""
    start, u, cos, sin, pre, keep, W, V = (x.contiguous() for x in args)
    d, v = _empty(start, u)
    (batch, steps, _), hidden = u.shape, len(W)
    HIDDEN = triton.next_power_of_2(hidden)
    SEQUENCES = max(1, min(SEQUENCES_AT_ONCE, 256 // HIDDEN))  # never so many that registers cannot hold the weights
    _glide_scan_forward[(triton.cdiv(batch, SEQUENCES),)](
        start, u, cos, sin, pre, keep, W, V, d, v, batch, steps, pre.stride(2),
        H=hidden, HIDDEN=HIDDEN, SEQUENCES=SEQUENCES, num_warps=max(1, min(8, HIDDEN // 256)),
    )  # fmt: skip
    return [d, v]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """One launch, and a sum of the weights' gradients over sequences."""
    start, u, cos, sin, pre, keep, W, V = (x.contiguous() for x in args)
    (batch, steps, _), hidden = u.shape, len(W)
    own = [torch.empty_like(x) for x in (start, u, cos, sin, pre)]
    parts = u.new_empty(batch, 6 * hidden + 2)
    HIDDEN = triton.next_power_of_2(hidden)
    _glide_scan_backward[(batch,)](
        start, u, cos, sin, pre, keep, W, V, made[1], *(x.contiguous() for x in gradients), *own, parts,
        u.new_empty(batch, NOTES, steps), steps, H=hidden, HIDDEN=HIDDEN,
        STEPS=max(128, min(STEPS_AT_ONCE, triton.next_power_of_2(steps))),  # at least one for every thread
        ROWS=max(1, min(64, TILE // HIDDEN)), NOTES=NOTES, num_warps=4,
    )  # fmt: skip
    into_W, into_V, into_keep = parts.sum(0).split([2 * hidden, 4 * hidden, 2])
    return *own, into_keep, into_W.view_as(W), into_V.view_as(V)


def _supports(start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, *weights: Tensor) -> bool:
    """Single precision, some steps, and a network with hidden units."""
    return u.dtype == torch.float32 and u.numel() > 0 and pre.shape[-1] > 0


glide_steps = Fast(_forward, _empty, _backward, _supports)
