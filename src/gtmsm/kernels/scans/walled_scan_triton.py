"""The walled scan on a GPU: a loop over time on the way forward, a parallel scan over it on the way back.

Forward, a program walks a few sequences in one warp, a few lanes for each: fewer lanes to sum over is a shorter wait at
every step, and what a step needs of memory is read two steps ahead. Nothing but the poses is stored.

Backward, they are known for all steps at once, and so is all of the gate. What is left is linear: the gradient of s_t
passes step t as A_t = I + slope_t d_t^T, and such maps compose in a scan, the last step first. Each program does one
sequence and writes its own share of the weights' gradients, the sum of which needs no atomics.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW = 1024
"""Sequences for which a GPU has room to spare."""
STEPS_AT_ONCE = 512
"""Per round of the way back: four in each thread."""
TILE = 1024
"""Steps times hidden units whose share of the weights' gradients is summed at once: eight in each thread."""

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _gate(level):  # pragma: no cover - runs on the GPU
    """1 / (1 + 2^level), without the care for the smallest numbers of all that costs a fifth of every step."""
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
    start, displacement, noise, W, b, v, c, poses, batch, distinct, shaken, T,
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
    x = tl.load(start + 2 * (row % distinct), used, 0.0)
    y = tl.load(start + 2 * (row % distinct) + 1, used, 0.0)
    # The last `shaken` of the sequences are; sequence i does the displacements of i modulo `distinct`.
    move = displacement + 2 * (row % distinct).to(tl.int64) * T
    shake = noise + 2 * (row - (batch - shaken)).to(tl.int64) * T
    there = poses + 2 * row.to(tl.int64) * T
    # of this step and of the next; loads of the one after it are under way while a step is made
    d_x = tl.load(move, used, 0.0)
    d_y = tl.load(move + 1, used, 0.0)
    next_x = tl.load(move + 2, steps > 1, 0.0)
    next_y = tl.load(move + 3, steps > 1, 0.0)
    if HAS_NOISE:
        shakes = tl.where(row >= batch - shaken, steps, 0)
        e_x = tl.load(shake, shakes > 0, 0.0)
        e_y = tl.load(shake + 1, shakes > 0, 0.0)
        next_ex = tl.load(shake + 2, shakes > 1, 0.0)
        next_ey = tl.load(shake + 3, shakes > 1, 0.0)
    pushed = w_x * d_x[None, :] + (w_y * d_y[None, :] + bias)
    for t in tl.range(0, T, loop_unroll_factor=4):
        ahead = steps > t + 2
        far_x = tl.load(move + 2 * t + 4, ahead, 0.0)
        far_y = tl.load(move + 2 * t + 5, ahead, 0.0)
        u = tl.maximum(w_x * x[None, :] + (w_y * y[None, :] + pushed), 0.0)
        pushed = w_x * next_x[None, :] + (w_y * next_y[None, :] + bias)
        g = _gate(tl.sum(u * out, 0) + offset)
        if HAS_NOISE:
            far_ex = tl.load(shake + 2 * t + 4, shakes > t + 2, 0.0)
            far_ey = tl.load(shake + 2 * t + 5, shakes > t + 2, 0.0)
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
    """Two maps of a gradient, each a matrix and what is added to its result, one after the other, as one."""
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
    """The displacements of steps t, and where they would lead."""
    d_x = tl.load(displacement + 2 * t, used, 0.0)
    d_y = tl.load(displacement + 2 * t + 1, used, 0.0)
    later = used & (t > 0)
    x = tl.load(poses + 2 * t - 2, later, 0.0) + tl.load(start + 2 * t, used & (t == 0), 0.0)
    y = tl.load(poses + 2 * t - 1, later, 0.0) + tl.load(start + 2 * t + 1, used & (t == 0), 0.0)
    return d_x, d_y, x + d_x, y + d_y


@triton.jit
def _walled_scan_backward(
    start, displacement, W, b, v, c, poses, incoming, incoming_later, g_start, g_displacement, g_noise, logits, shares,
    distinct, T,
    H: tl.constexpr, HIDDEN: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64)
    start += 2 * (row % distinct)
    displacement += 2 * (row % distinct) * T
    poses += 2 * row * T
    if row >= distinct:
        incoming = incoming_later
    incoming += 2 * (row % distinct) * T
    g_displacement += 2 * row * T
    g_noise += 2 * row * T
    logits += row * T
    shares += row * (4 * H + 1)
    level = tl.load(c)
    into_c = 0.0
    # of what later rounds asked of the pose before them; nothing is later than the last step
    ds_x, ds_y = 0.0, 0.0
    for done in range(0, T, STEPS):
        t = T - 1 - done - tl.arange(0, STEPS)  # the last step first, which is the way gradients go
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
        # e_{t-1} = A_t (e_t + incoming_t): what is asked of a pose by all that follows it
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
        # a step needs what is asked of the pose it leads to, which lies with its neighbour: through memory
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
    # now hidden units side by side, and steps one after the other
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


class _WalledScan(torch.autograd.Function):
    """Poses of walks and their gradients. Where `twice`, each is walked without and with noise: two lots of poses."""

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, displacement: Tensor, noise: Tensor | None, twice: bool, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        start, d, W, b, v, c = (x.contiguous() for x in (start, displacement, *weights))
        (distinct, steps, size), hidden = d.shape, len(b)
        batch = 2 * distinct if twice else distinct
        poses = d.new_empty(batch, steps, size)
        if poses.numel():
            HIDDEN = triton.next_power_of_2(hidden)
            # Few wait least in pairs, many go four abreast; so many that the weights fit into registers.
            SEQUENCES = max(1, min(2 if batch <= FEW else 4, 256 // HIDDEN))
            shaken = 0 if noise is None else len(noise)
            _walled_scan_forward[(triton.cdiv(batch, SEQUENCES),)](
                start, d, d if noise is None else noise.contiguous(), W, b, v, c, poses, batch, distinct, shaken, steps,
                H=hidden, HAS_NOISE=noise is not None, HIDDEN=HIDDEN, SEQUENCES=SEQUENCES,
                num_warps=max(1, min(8, HIDDEN // 512)),
            )  # fmt: skip
        lots = poses.split(distinct) if twice else (poses,)
        ctx.save_for_backward(start, d, W, b, v, c, poses)
        ctx.is_noisy = noise is not None
        return lots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        start, d, W, b, v, c, poses = ctx.saved_tensors
        (distinct, steps, _), hidden, batch = d.shape, len(b), len(poses)
        if not poses.numel():
            return tuple(torch.zeros_like(x) for x in (start, d)) + (
                torch.zeros_like(d) if ctx.is_noisy else None,
                None,
                *(torch.zeros_like(x) for x in (W, b, v, c)),
            )
        into_start, into_d, into_noise = (
            d.new_empty(batch, d.shape[-1]),
            torch.empty_like(poses),
            torch.empty_like(poses),
        )
        shares = d.new_empty(batch, 4 * hidden + 1)
        HIDDEN = triton.next_power_of_2(hidden)
        _walled_scan_backward[(batch,)](
            start, d, W, b, v, c, poses, incoming[0].contiguous(), incoming[-1].contiguous(), into_start, into_d,
            into_noise, d.new_empty(batch, steps), shares, distinct, steps, H=hidden, HIDDEN=HIDDEN,
            STEPS=max(128, min(STEPS_AT_ONCE, triton.next_power_of_2(steps))),  # at least one for every thread
            ROWS=max(1, min(64, TILE // HIDDEN)), num_warps=4,
        )  # fmt: skip
        into_W, into_b, into_v, into_c = shares.sum(0).split([2 * hidden, hidden, hidden, 1])
        weights = (into_W.view_as(W), into_b, into_v, into_c.view_as(c))
        if batch > distinct:
            into_d, into_noise = into_d[:distinct] + into_d[distinct:], into_noise[distinct:]
            if ctx.needs_input_grad[0]:
                into_start = into_start[:distinct] + into_start[distinct:]
        return (
            into_start if ctx.needs_input_grad[0] else None,
            into_d,
            into_noise if ctx.is_noisy else None,
            None,
            *weights,
        )


def scan(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> Tensor:
    """`walled_scan_by_steps` for float32 tensors of two-dimensional poses."""
    (poses,) = _WalledScan.apply(start, displacement, noise, False, W, b, v, c)
    return poses  # type: ignore[no-any-return]


def scan_twice(
    start: Tensor, displacement: Tensor, noise: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Without and with noise, side by side, from the same start."""
    mean, sample = _WalledScan.apply(start, displacement, noise, True, W, b, v, c)
    return mean, sample
