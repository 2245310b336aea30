"""The walled scan on a GPU: a loop over time in the forward pass, a parallel scan over time in the backward pass.

Forward, a program computes a few sequences in one warp, with a few lanes for each: sums over fewer lanes have a lower
latency. Loads are issued two steps ahead. Nothing but the poses is stored.

Backward, all poses are known, and so is the gate of every step. What is left is linear: the gradient of s_t passes step
t as A_t = I + slope_t d_t^T, and such maps compose in a scan from the last step to the first. Each program does one
sequence and writes its own part of the weights' gradients, so that their sum needs no atomics.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors

FEW = 1024
"""Number of sequences that leave a GPU partly idle."""
STEPS_AT_ONCE = 512
"""Steps per round of the backward pass: four in each thread."""
TILE = 1024
"""Steps times hidden units summed at once for the weights' gradients: eight in each thread."""

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _gate(level):  # pragma: no cover - runs on the GPU
    """1 / (1 + 2^level); denormal numbers are flushed to 0, which saves a fifth of every step."""
    if INTERPRETED:
        g = 1.0 / (1.0 + tl.exp2(level))
    else:
        g = tl.inline_asm_elementwise(
            "{ .reg .f32 e; ex2.approx.ftz.f32 e, $1; add.f32 e, e, 0f3F800000; rcp.approx.ftz.f32 $0, e; }",
            "=f,f", [level], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return g


@triton.jit
def _walled_scan_forward(
    start, displacement, noise, W, b, v, c, poses, batch, T,
    H: tl.constexpr, HAS_NOISE: tl.constexpr, HIDDEN: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    used = row < batch
    steps = tl.where(used, T, 0)
    h = tl.arange(0, HIDDEN)
    w_x = tl.load(W + 2 * h, h < H, 0.0)[:, None]
    w_y = tl.load(W + 2 * h + 1, h < H, 0.0)[:, None]
    bias = tl.load(b + h, h < H, 0.0)[:, None]
    out = tl.load(v + h, h < H, 0.0)[:, None] * -LOG2_E
    offset = tl.load(c) * -LOG2_E
    x = tl.load(start + 2 * row, used, 0.0)
    y = tl.load(start + 2 * row + 1, used, 0.0)
    move = displacement + 2 * row.to(tl.int64) * T
    shake = noise + 2 * row.to(tl.int64) * T
    there = poses + 2 * row.to(tl.int64) * T
    # of this step and the next; the step after that is loaded meanwhile
    d_x = tl.load(move, used, 0.0)
    d_y = tl.load(move + 1, used, 0.0)
    next_x = tl.load(move + 2, steps > 1, 0.0)
    next_y = tl.load(move + 3, steps > 1, 0.0)
    if HAS_NOISE:
        e_x = tl.load(shake, used, 0.0)
        e_y = tl.load(shake + 1, used, 0.0)
        next_ex = tl.load(shake + 2, steps > 1, 0.0)
        next_ey = tl.load(shake + 3, steps > 1, 0.0)
    pushed = w_x * d_x[None, :] + (w_y * d_y[None, :] + bias)
    for t in tl.range(0, T, loop_unroll_factor=4):
        ahead = steps > t + 2
        far_x = tl.load(move + 2 * t + 4, ahead, 0.0)
        far_y = tl.load(move + 2 * t + 5, ahead, 0.0)
        u = tl.maximum(w_x * x[None, :] + (w_y * y[None, :] + pushed), 0.0)
        pushed = w_x * next_x[None, :] + (w_y * next_y[None, :] + bias)
        g = _gate(tl.sum(u * out, 0) + offset)
        if HAS_NOISE:
            far_ex = tl.load(shake + 2 * t + 4, ahead, 0.0)
            far_ey = tl.load(shake + 2 * t + 5, ahead, 0.0)
            x += e_x
            y += e_y
            e_x, e_y = next_ex, next_ey
            next_ex, next_ey = far_ex, far_ey
        x += d_x * g
        y += d_y * g
        tl.store(there + 2 * t, x, used)
        tl.store(there + 2 * t + 1, y, used)
        d_x, d_y = next_x, next_y
        next_x, next_y = far_x, far_y


@triton.jit
def one_map(
    xx, xy, yx, yy, x, y, then_xx, then_xy, then_yx, then_yy, then_x, then_y
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Two affine maps of a gradient, one after the other, as one."""
    return (
        then_xx * xx + then_xy * yx,
        then_xx * xy + then_xy * yy,
        then_yx * xx + then_yy * yx,
        then_yx * xy + then_yy * yy,
        then_xx * x + then_xy * y + then_x,
        then_yx * x + then_yy * y + then_y,
    )


@triton.jit
def _tried(start, displacement, poses, t, used):  # pragma: no cover - runs on the GPU
    """The displacements of steps t, and the poses they would lead to without walls."""
    d_x = tl.load(displacement + 2 * t, used, 0.0)
    d_y = tl.load(displacement + 2 * t + 1, used, 0.0)
    later = used & (t > 0)
    x = tl.load(poses + 2 * t - 2, later, 0.0) + tl.load(start + 2 * t, used & (t == 0), 0.0)
    y = tl.load(poses + 2 * t - 1, later, 0.0) + tl.load(start + 2 * t + 1, used & (t == 0), 0.0)
    return d_x, d_y, x + d_x, y + d_y


@triton.jit
def _walled_scan_backward(
    start, displacement, W, b, v, c, poses, incoming, g_start, g_displacement, g_noise, logits, shares, T,
    H: tl.constexpr, HIDDEN: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64)
    start += 2 * row
    displacement += 2 * row * T
    poses += 2 * row * T
    incoming += 2 * row * T
    g_displacement += 2 * row * T
    g_noise += 2 * row * T
    logits += row * T
    shares += row * (4 * H + 1)
    level = tl.load(c)
    into_c = 0.0
    # the gradient of the pose before the steps of later rounds; the last step has none
    ds_x, ds_y = 0.0, 0.0
    for done in range(0, T, STEPS):
        t = T - 1 - done - tl.arange(0, STEPS)  # the last step first
        used = t >= 0
        d_x, d_y, q_x, q_y = _tried(start, displacement, poses, t, used)
        logit = tl.zeros([STEPS], tl.float32) + level
        tilt_x = tl.zeros([STEPS], tl.float32)
        tilt_y = tl.zeros([STEPS], tl.float32)
        for unit in range(H):
            w_x, w_y = tl.load(W + 2 * unit), tl.load(W + 2 * unit + 1)
            bias, out = tl.load(b + unit), tl.load(v + unit)
            pre = w_x * q_x + w_y * q_y + bias
            logit += out * tl.maximum(pre, 0.0)
            tilt_x += tl.where(pre > 0, out * w_x, 0.0)
            tilt_y += tl.where(pre > 0, out * w_y, 0.0)
        g = tl.sigmoid(logit)
        steep = tl.where(used, g * (1 - g), 0.0)
        tilt_x *= steep
        tilt_y *= steep
        # e_{t-1} = A_t (e_t + incoming_t): the gradient of a pose from all later ones
        in_x = tl.load(incoming + 2 * t, used, 0.0)
        in_y = tl.load(incoming + 2 * t + 1, used, 0.0)
        along = d_x * in_x + d_y * in_y
        xx, xy, yx, yy, e_x, e_y = tl.associative_scan(
            (
                1 + tilt_x * d_x, tilt_x * d_y, tilt_y * d_x, 1 + tilt_y * d_y,
                in_x + tilt_x * along, in_y + tilt_y * along,
            ), 0, one_map,
        )  # fmt: skip
        before_x = xx * ds_x + xy * ds_y + e_x
        before_y = yx * ds_x + yy * ds_y + e_y
        # a step needs the gradient of the pose after it, which the neighbouring thread has: exchange through memory
        last = t == T - 1 - done
        tl.store(g_noise + 2 * t, ds_x + in_x, used & last)
        tl.store(g_noise + 2 * t + 1, ds_y + in_y, used & last)
        inner = (t > 0) & (t > T - done - STEPS)
        tl.store(g_noise + 2 * t - 2, before_x + tl.load(incoming + 2 * t - 2, inner, 0.0), inner)
        tl.store(g_noise + 2 * t - 1, before_y + tl.load(incoming + 2 * t - 1, inner, 0.0), inner)
        tl.debug_barrier()
        first = t == tl.maximum(T - done - STEPS, 0)
        ds_x = tl.sum(tl.where(first, before_x, 0.0), 0)
        ds_y = tl.sum(tl.where(first, before_y, 0.0), 0)
        g_x = tl.load(g_noise + 2 * t, used, 0.0)
        g_y = tl.load(g_noise + 2 * t + 1, used, 0.0)
        along = g_x * d_x + g_y * d_y
        tl.store(g_displacement + 2 * t, g_x * g + tilt_x * along, used)
        tl.store(g_displacement + 2 * t + 1, g_y * g + tilt_y * along, used)
        into_logit = along * steep
        tl.store(logits + t, into_logit, used)
        into_c += tl.sum(into_logit, 0)
    tl.store(g_start + 2 * row, ds_x)
    tl.store(g_start + 2 * row + 1, ds_y)
    tl.store(shares + 4 * H, into_c)
    tl.debug_barrier()
    # the weights: hidden units in parallel, steps in a loop
    h = tl.arange(0, HIDDEN)
    w_x = tl.load(W + 2 * h, h < H, 0.0)[None, :]
    w_y = tl.load(W + 2 * h + 1, h < H, 0.0)[None, :]
    bias = tl.load(b + h, h < H, 0.0)[None, :]
    sum_x = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_y = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_b = tl.zeros([ROWS, HIDDEN], tl.float32)
    sum_v = tl.zeros([ROWS, HIDDEN], tl.float32)
    for first_row in range(0, T, ROWS):
        r = first_row + tl.arange(0, ROWS)
        _, _, q_x, q_y = _tried(start, displacement, poses, r, r < T)
        into_logit = tl.load(logits + r, r < T, 0.0)
        pre = w_x * q_x[:, None] + w_y * q_y[:, None] + bias
        sum_v += into_logit[:, None] * tl.maximum(pre, 0.0)
        sum_b += tl.where(pre > 0, into_logit[:, None], 0.0)
        sum_x += tl.where(pre > 0, (into_logit * q_x)[:, None], 0.0)
        sum_y += tl.where(pre > 0, (into_logit * q_y)[:, None], 0.0)
    out = tl.load(v + h, h < H, 0.0)
    tl.store(shares + 2 * h, tl.sum(sum_x, 0) * out, h < H)
    tl.store(shares + 2 * h + 1, tl.sum(sum_y, 0) * out, h < H)
    tl.store(shares + 2 * H + h, tl.sum(sum_b, 0) * out, h < H)
    tl.store(shares + 3 * H + h, tl.sum(sum_v, 0), h < H)


def _empty(start: Tensor, displacement: Tensor, *rest: Tensor | None) -> list[Tensor]:
    """Poses."""
    return [displacement.new_empty(displacement.shape)]


def _forward(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> list[Tensor]:
    """One launch."""
    (poses,) = _empty(start, displacement)
    batch, steps, _ = poses.shape
    hidden, HIDDEN = len(b), triton.next_power_of_2(len(b))
    # Few sequences wait least in pairs, many go four at a time; never so many that registers cannot hold the weights.
    SEQUENCES = max(1, min(2 if batch <= FEW else 4, 256 // HIDDEN))
    inputs = (start, displacement, displacement if noise is None else noise, W, b, v, c)
    _walled_scan_forward[(triton.cdiv(batch, SEQUENCES),)](
        *(x.contiguous() for x in inputs), poses, batch, steps,
        H=hidden, HAS_NOISE=noise is not None, HIDDEN=HIDDEN, SEQUENCES=SEQUENCES,
        num_warps=max(1, min(8, HIDDEN // 512)),
    )  # fmt: skip
    return [poses]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """One launch, and a sum of the weights' gradients over sequences."""
    noise, (start, d, W, b, v, c) = args[2], (x.contiguous() for x in (*args[:2], *args[3:]))
    (batch, steps, _), hidden = d.shape, len(b)
    into_start, into_d, into_noise = torch.empty_like(start), torch.empty_like(d), torch.empty_like(d)
    parts = d.new_empty(batch, 4 * hidden + 1)
    HIDDEN = triton.next_power_of_2(hidden)
    _walled_scan_backward[(batch,)](
        start, d, W, b, v, c, made[0], gradients[0].contiguous(), into_start, into_d, into_noise,
        d.new_empty(batch, steps), parts, steps, H=hidden, HIDDEN=HIDDEN,
        STEPS=max(128, min(STEPS_AT_ONCE, triton.next_power_of_2(steps))),  # at least one for every thread
        ROWS=max(1, min(64, TILE // HIDDEN)), num_warps=4,
    )  # fmt: skip
    into_W, into_b, into_v, into_c = parts.sum(0).split([2 * hidden, hidden, hidden, 1])
    weights = into_W.view_as(W), into_b, into_v, into_c.view_as(c)
    return into_start, into_d, None if noise is None else into_noise, *weights


def _supports(start: Tensor, d: Tensor, noise: Tensor | None, W: Tensor, *rest: Tensor) -> bool:
    """Two-dimensional poses in single precision, some steps, and a gate with hidden units."""
    return d.shape[-1] == 2 and d.dtype == torch.float32 and d.numel() > 0 and len(W) > 0


walled_poses = Fast(_forward, _empty, _backward, _supports)
