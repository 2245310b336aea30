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
def load_xy(x, i, there):  # pragma: no cover - runs on the GPU
    """Both coordinates of vectors i."""
    return tl.load(x + 2 * i, there, 0.0), tl.load(x + 2 * i + 1, there, 0.0)


@triton.jit
def store_xy(to, i, x, y, there):  # pragma: no cover - runs on the GPU
    """Write both coordinates of vectors i."""
    tl.store(to + 2 * i, x, there)
    tl.store(to + 2 * i + 1, y, there)


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
    x, y = load_xy(start, row, used)
    move = displacement + 2 * row.to(tl.int64) * T
    shake = noise + 2 * row.to(tl.int64) * T
    there = poses + 2 * row.to(tl.int64) * T
    # of this step and the next; the step after that is loaded meanwhile
    d_x, d_y = load_xy(move, 0, used)
    next_x, next_y = load_xy(move, 1, steps > 1)
    if HAS_NOISE:
        e_x, e_y = load_xy(shake, 0, used)
        next_ex, next_ey = load_xy(shake, 1, steps > 1)
    pushed = w_x * d_x[None, :] + (w_y * d_y[None, :] + bias)
    for t in tl.range(0, T, loop_unroll_factor=4):
        ahead = steps > t + 2
        far_x, far_y = load_xy(move, t + 2, ahead)
        u = tl.maximum(w_x * x[None, :] + (w_y * y[None, :] + pushed), 0.0)
        pushed = w_x * next_x[None, :] + (w_y * next_y[None, :] + bias)
        g = _gate(tl.sum(u * out, 0) + offset)
        if HAS_NOISE:
            far_ex, far_ey = load_xy(shake, t + 2, ahead)
            x += e_x
            y += e_y
            e_x, e_y = next_ex, next_ey
            next_ex, next_ey = far_ex, far_ey
        x += d_x * g
        y += d_y * g
        store_xy(there, t, x, y, used)
        d_x, d_y = next_x, next_y
        next_x, next_y = far_x, far_y


@triton.jit
def _one_map(
    xx, xy, yx, yy, x, y, then_xx, then_xy, then_yx, then_yy, then_x, then_y
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """The composition of two affine maps of a gradient."""
    return (
        then_xx * xx + then_xy * yx,
        then_xx * xy + then_xy * yy,
        then_yx * xx + then_yy * yx,
        then_yx * xy + then_yy * yy,
        then_xx * x + then_xy * y + then_x,
        then_yx * x + then_yy * y + then_y,
    )


@triton.jit
def before(start, after, t, used):  # pragma: no cover - runs on the GPU
    """Vectors before steps t, from those after each step."""
    x, y = load_xy(after, t - 1, used & (t > 0))
    first_x, first_y = load_xy(start, t, used & (t == 0))
    return x + first_x, y + first_y


@triton.jit
def chained(
    xx, xy, yx, yy, b_x, b_y, in_x, in_y, incoming, totals, later_x, later_y, t, used, done, T, STEPS: tl.constexpr
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Gradients of the vectors after steps t, the last step first, and of the vector before the earliest of them.

    A gradient e passes a step as the map A e + b, with `in` added on its way out. `later` is the gradient of the vector
    after these steps from all later ones. `totals` is memory for all gradients.
    """
    xx, xy, yx, yy, e_x, e_y = tl.associative_scan((xx, xy, yx, yy, b_x, b_y), 0, _one_map)
    before_x = xx * later_x + xy * later_y + e_x
    before_y = yx * later_x + yy * later_y + e_y
    # a step needs the gradient of the vector after it, which the neighbouring thread has: exchange through memory
    store_xy(totals, t, later_x + in_x, later_y + in_y, used & (t == T - 1 - done))
    inner = (t > 0) & (t > T - done - STEPS)
    own_x, own_y = load_xy(incoming, t - 1, inner)
    store_xy(totals, t - 1, before_x + own_x, before_y + own_y, inner)
    tl.debug_barrier()
    first = t == tl.maximum(T - done - STEPS, 0)
    later_x = tl.sum(tl.where(first, before_x, 0.0), 0)
    later_y = tl.sum(tl.where(first, before_y, 0.0), 0)
    g_x, g_y = load_xy(totals, t, used)
    return g_x, g_y, later_x, later_y


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
        d_x, d_y = load_xy(displacement, t, used)
        x, y = before(start, poses, t, used)
        q_x, q_y = x + d_x, y + d_y
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
        in_x, in_y = load_xy(incoming, t, used)
        along = d_x * in_x + d_y * in_y
        g_x, g_y, ds_x, ds_y = chained(
            1 + tilt_x * d_x, tilt_x * d_y, tilt_y * d_x, 1 + tilt_y * d_y, in_x + tilt_x * along,
            in_y + tilt_y * along, in_x, in_y, incoming, g_noise, ds_x, ds_y, t, used, done, T, STEPS,
        )  # fmt: skip
        along = g_x * d_x + g_y * d_y
        store_xy(g_displacement, t, g_x * g + tilt_x * along, g_y * g + tilt_y * along, used)
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
        d_x, d_y = load_xy(displacement, r, r < T)
        x, y = before(start, poses, r, r < T)
        q_x, q_y = x + d_x, y + d_y
        into_logit = tl.load(logits + r, r < T, 0.0)
        pre = w_x * q_x[:, None] + w_y * q_y[:, None] + bias
        sum_v += into_logit[:, None] * tl.maximum(pre, 0.0)
        sum_b += tl.where(pre > 0, into_logit[:, None], 0.0)
        sum_x += tl.where(pre > 0, (into_logit * q_x)[:, None], 0.0)
        sum_y += tl.where(pre > 0, (into_logit * q_y)[:, None], 0.0)
    out = tl.load(v + h, h < H, 0.0)
    store_xy(shares, h, tl.sum(sum_x, 0) * out, tl.sum(sum_y, 0) * out, h < H)
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
    # In pairs, few sequences have the least latency; many go four at a time, if registers can hold the weights.
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
