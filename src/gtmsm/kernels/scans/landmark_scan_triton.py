"""The landmark scan on a GPU: one Triton program walks one sequence, a lane for each sight, sigma_d in registers.

What is known of the map is one table of rows (x, y, variance): the past, every step, and last the start. A program
writes the row of a step and reads it back later, so its single warp waits for itself between the two (`debug_barrier`).
Nothing but the table is stored on the way forward; the way back computes each step again. Names are those of `fuse`: 0
is a step that goes as planned, 1 one that goes otherwise.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.tensors import LOG_TWO_PI


@triton.jit
def _recall(table, log_odds, offset, noise, entry, at, used):  # pragma: no cover - runs on the GPU
    """Of every sight: where it puts the agent, the variance of its entry, its log odds and its noise."""
    x = tl.load(table + entry, used, 0.0) + tl.load(offset + 2 * at, used, 0.0)
    y = tl.load(table + entry + 1, used, 0.0) + tl.load(offset + 2 * at + 1, used, 0.0)
    known = tl.load(table + entry + 2, used, 0.0)
    return x, y, known, tl.load(log_odds + at, used, float("-inf")), tl.load(noise + at, used, 1.0)


@triton.jit
def _weigh(odds, far2, total_0, total_1, log_0, log_1):  # pragma: no cover - runs on the GPU
    """Bayes' rule: how likely each sight is on a step as planned, on another, and that none is right."""
    fit_0 = odds + log_0 - tl.log(total_0) - 0.5 * far2 / total_0
    fit_1 = odds + log_1 - tl.log(total_1) - 0.5 * far2 / total_1
    best = tl.maximum(tl.max(tl.maximum(fit_0, fit_1), 0), 0.0)
    w_0, w_1, lost = tl.exp(fit_0 - best), tl.exp(fit_1 - best), tl.exp(-best)
    all_of_them = tl.sum(w_0 + w_1, 0) + lost
    return w_0 / all_of_them, w_1 / all_of_them, lost / all_of_them


@triton.jit
def _landmark_scan_forward(
    table, displacement, W, b, v, c, index, log_odds, offset, noise, log_0, log_1, fresh_0, fresh_1, usual,
    T, N, H, K, HAS_GATE: tl.constexpr, HIDDEN: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    k = tl.arange(0, LANES)
    used = k < K
    if HAS_GATE:
        h = tl.arange(0, HIDDEN)
        w_x, w_y = tl.load(W + 2 * h, h < H, 0.0), tl.load(W + 2 * h + 1, h < H, 0.0)
        bias, out, level = tl.load(b + h, h < H, 0.0), tl.load(v + h, h < H, 0.0), tl.load(c)
    table += 3 * row * (N + T + 1)
    begin = table + 3 * (N + T)
    x, y, variance = tl.load(begin), tl.load(begin + 1), tl.load(begin + 2)
    upcoming = tl.load(index + row * T * K + k, used & (k < T * K), 0)  # read a step ahead: addresses first
    for t in range(T):
        step = row * T + t
        at = step * K + k
        s_x, s_y, known, odds, n = _recall(table, log_odds, offset, noise, 3 * upcoming, at, used)
        upcoming = tl.load(index + at + K, used & (at + K < (row + 1) * T * K), 0)
        d_x, d_y = tl.load(displacement + 2 * step), tl.load(displacement + 2 * step + 1)
        if HAS_GATE:
            u = tl.maximum(w_x * (x + d_x) + w_y * (y + d_y) + bias, 0.0)
            g = tl.sigmoid(tl.sum(u * out, 0) + level)
            x += d_x * g
            y += d_y * g
        else:
            x += d_x
            y += d_y
        a_x, a_y = s_x - x, s_y - y
        far2 = a_x * a_x + a_y * a_y
        since = tl.maximum(variance - known, 0.0)
        free_0, free_1 = since + fresh_0, since + fresh_1
        w_0, w_1, lost = _weigh(odds, far2, free_0 + n, free_1 + n, log_0, log_1)
        gain_0, gain_1 = free_0 / (free_0 + n), free_1 / (free_1 + n)
        beta = w_0 * gain_0 + w_1 * gain_1
        moved_x, moved_y = tl.sum(beta * a_x, 0), tl.sum(beta * a_y, 0)
        scatter = tl.sum((w_0 * gain_0 * gain_0 + w_1 * gain_1 * gain_1) * far2, 0)
        between = 0.5 * tl.maximum(scatter - moved_x * moved_x - moved_y * moved_y, 0.0)
        within = tl.sum((w_0 + w_1) * known + beta * n, 0)
        variance = lost * (variance + usual) + within + between
        x += moved_x
        y += moved_y
        here = table + 3 * (N + t)
        tl.store(here, x)
        tl.store(here + 1, y)
        tl.store(here + 2, variance)
        tl.debug_barrier()


@triton.jit
def _landmark_scan_backward(
    table, displacement, W, b, v, c, index, log_odds, offset, noise, log_0, log_1, fresh_0, fresh_1, usual,
    g_table, g_displacement, g_log_odds, g_offset, g_noise, g_W, g_b, g_v, g_c,
    T, N, H, K, HAS_GATE: tl.constexpr, HIDDEN: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0)
    k = tl.arange(0, LANES)
    used = k < K
    if HAS_GATE:
        h = tl.arange(0, HIDDEN)
        w_x, w_y = tl.load(W + 2 * h, h < H, 0.0), tl.load(W + 2 * h + 1, h < H, 0.0)
        bias, out, level = tl.load(b + h, h < H, 0.0), tl.load(v + h, h < H, 0.0), tl.load(c)
        sum_wx, sum_wy = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32)
        sum_b, sum_v, sum_c = tl.zeros([HIDDEN], tl.float32), tl.zeros([HIDDEN], tl.float32), 0.0
    table += 3 * row * (N + T + 1)
    g_table += 3 * row * (N + T + 1)
    # what later steps owe to this one for having been the step before
    ds_x, ds_y, d_variance = 0.0, 0.0, 0.0
    for i in range(T):
        t = T - 1 - i
        step = row * T + t
        at = step * K + k
        entry = 3 * tl.load(index + at, used, 0)
        # the step again
        s_x, s_y, known, odds, n = _recall(table, log_odds, offset, noise, entry, at, used)
        d_x, d_y = tl.load(displacement + 2 * step), tl.load(displacement + 2 * step + 1)
        last = table + 3 * tl.where(t > 0, N + t - 1, N + T)
        x, y, variance = tl.load(last), tl.load(last + 1), tl.load(last + 2)
        q_x, q_y = x + d_x, y + d_y
        if HAS_GATE:
            pre = w_x * q_x + w_y * q_y + bias
            u = tl.maximum(pre, 0.0)
            g = tl.sigmoid(tl.sum(u * out, 0) + level)
            a_x, a_y = s_x - (x + d_x * g), s_y - (y + d_y * g)
        else:
            a_x, a_y = s_x - q_x, s_y - q_y
        far2 = a_x * a_x + a_y * a_y
        since = tl.maximum(variance - known, 0.0)
        free_0, free_1 = since + fresh_0, since + fresh_1
        w_0, w_1, lost = _weigh(odds, far2, free_0 + n, free_1 + n, log_0, log_1)
        sure_0, sure_1 = 1.0 / (free_0 + n), 1.0 / (free_1 + n)
        gain_0, gain_1 = free_0 * sure_0, free_1 * sure_1
        beta = w_0 * gain_0 + w_1 * gain_1
        moved_x, moved_y = tl.sum(beta * a_x, 0), tl.sum(beta * a_y, 0)
        squared = w_0 * gain_0 * gain_0 + w_1 * gain_1 * gain_1
        spread = tl.sum(squared * far2, 0) >= moved_x * moved_x + moved_y * moved_y
        # what is asked of its row: of x and y, of the variance, and of the part of that between hypotheses;
        # past the L1 cache, since other lanes have added to it further down
        here = g_table + 3 * (N + t)
        ds_x += tl.load(here, cache_modifier=".cg")
        ds_y += tl.load(here + 1, cache_modifier=".cg")
        d_variance += tl.load(here + 2, cache_modifier=".cg")
        d_between = tl.where(spread, d_variance, 0.0)
        # gradients of weights, of their logarithms, and of gains
        m_x, m_y = ds_x - d_between * moved_x, ds_y - d_between * moved_y
        along = m_x * a_x + m_y * a_y + d_variance * n
        stretch = 0.5 * d_between * far2
        worth_0 = d_variance * known + gain_0 * (along + gain_0 * stretch)
        worth_1 = d_variance * known + gain_1 * (along + gain_1 * stretch)
        average = lost * d_variance * (variance + usual) + tl.sum(w_0 * worth_0 + w_1 * worth_1, 0)
        fit_0, fit_1 = w_0 * (worth_0 - average), w_1 * (worth_1 - average)
        bend_0 = w_0 * (along + 2 * gain_0 * stretch) * sure_0 * sure_0
        bend_1 = w_1 * (along + 2 * gain_1 * stretch) * sure_1 * sure_1
        tl.store(g_log_odds + at, fit_0 + fit_1, used)
        # through log weights and gains to the variances they are made of
        slack = 0.5 * (fit_0 * sure_0 * (far2 * sure_0 - 2) + fit_1 * sure_1 * (far2 * sure_1 - 2))
        tl.store(g_noise + at, slack - bend_0 * free_0 - bend_1 * free_1 + d_variance * beta, used)
        # to what is away: its entry, its offset, and the plan
        outward = d_between * squared - fit_0 * sure_0 - fit_1 * sure_1
        da_x, da_y = beta * m_x + outward * a_x, beta * m_y + outward * a_y
        tl.store(g_offset + 2 * at, da_x, used)
        tl.store(g_offset + 2 * at + 1, da_y, used)
        right = used & (odds > float("-inf"))
        tl.atomic_add(g_table + entry, da_x, right, sem="relaxed")
        tl.atomic_add(g_table + entry + 1, da_y, right, sem="relaxed")
        # of what was added since an entry: a gradient passes where nothing was, as `clamp_min` has it
        d_since = tl.where(variance >= known, slack + (bend_0 + bend_1) * n, 0.0)
        tl.atomic_add(g_table + entry + 2, d_variance * (w_0 + w_1) - d_since, right, sem="relaxed")
        ds_x -= tl.sum(da_x, 0)
        ds_y -= tl.sum(da_y, 0)
        d_variance = d_variance * lost + tl.sum(d_since, 0)
        # through the gate
        if HAS_GATE:
            logit = (ds_x * d_x + ds_y * d_y) * g * (1 - g)
            into = tl.where(pre > 0, logit * out, 0.0)
            sum_v += logit * u
            sum_c += logit
            sum_b += into
            sum_wx += into * q_x
            sum_wy += into * q_y
            dq_x, dq_y = tl.sum(into * w_x, 0), tl.sum(into * w_y, 0)
            tl.store(g_displacement + 2 * step, ds_x * g + dq_x)
            tl.store(g_displacement + 2 * step + 1, ds_y * g + dq_y)
            ds_x += dq_x
            ds_y += dq_y
        else:
            tl.store(g_displacement + 2 * step, ds_x)
            tl.store(g_displacement + 2 * step + 1, ds_y)
        tl.debug_barrier()
    begin = g_table + 3 * (N + T)
    tl.store(begin, ds_x)
    tl.store(begin + 1, ds_y)
    tl.store(begin + 2, d_variance)
    if HAS_GATE:
        tl.store(g_W + 2 * (row * H + h), sum_wx, h < H)
        tl.store(g_W + 2 * (row * H + h) + 1, sum_wy, h < H)
        tl.store(g_b + row * H + h, sum_b, h < H)
        tl.store(g_v + row * H + h, sum_v, h < H)
        tl.store(g_c + row, sum_c)


def _rows(past: Tensor, past_variance: Tensor, steps: int, start: Tensor, variance: Tensor) -> Tensor:
    """The table before the first step: the past, room for the steps, the start."""
    first = past.shape[1]
    table = past.new_zeros(len(past), first + steps + 1, 3)
    table[:, :first, :2], table[:, :first, 2:] = past, past_variance
    table[:, -1, :2], table[:, -1, 2:] = start, variance
    return table


class _LandmarkScan(torch.autograd.Function):
    """Poses and variances of a walk and their gradients, one program a sequence."""

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, variance: Tensor, past: Tensor, past_variance: Tensor, numbers: Sequence[float],
        displacement: Tensor, index: Tensor, log_odds: Tensor, offset: Tensor, noise: Tensor, *gate: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        first, (batch, steps, K) = past.shape[1], index.shape
        table = _rows(past, past_variance, steps, start, variance)
        d, *weights = (x.contiguous() for x in (displacement, *gate))
        seen = [x.contiguous() for x in (index, log_odds, offset, noise)]
        ctx.save_for_backward(table, d, *seen, *weights)
        ctx.numbers = numbers
        hidden = len(weights[1]) if gate else 1
        ctx.sizes = {
            "T": steps, "N": first, "H": hidden, "K": K, "HAS_GATE": bool(gate),
            "HIDDEN": triton.next_power_of_2(hidden), "LANES": triton.next_power_of_2(max(K, 1)),
        }  # fmt: skip
        # one warp, whose lanes see what the others stored; one stage, so that no read is moved ahead of a write
        _landmark_scan_forward[(batch,)](
            table, d, *(weights or [d] * 4), *seen, *numbers, **ctx.sizes, num_warps=1, num_stages=1
        )
        # copies, since the caller may overwrite them and backward still needs them
        made = table[:, first:-1].split([2, 1], dim=-1)
        poses, variances = (part.clone(memory_format=torch.contiguous_format) for part in made)
        return poses, variances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, into_poses: Tensor, into_variance: Tensor) -> tuple[Tensor | None, ...]:
        table, d, index, *seen = ctx.saved_tensors
        seen, weights = seen[:3], seen[3:]
        first, batch = ctx.sizes["N"], len(d)
        grad = torch.zeros_like(table)
        grad[:, first:-1, :2], grad[:, first:-1, 2:] = into_poses, into_variance
        into = [torch.empty_like(x) for x in (d, *seen)]
        shares = [x.new_empty((batch, *x.shape)) for x in weights]
        _landmark_scan_backward[(batch,)](
            table, d, *(weights or [d] * 4), index, *seen, *ctx.numbers, grad, *into, *(shares or [d] * 4),
            **ctx.sizes, num_warps=1, num_stages=1,
        )  # fmt: skip
        past, begin = grad[:, :first], grad[:, -1]
        return (
            begin[:, :2],
            begin[:, 2:],
            past[..., :2],
            past[..., 2:],
            None,
            into[0],
            None,
            *into[1:],
            *(share.sum(0) for share in shares),
        )


def scan(
    start: Tensor,
    displacement: Tensor,
    gate: Sequence[Tensor] | None,
    variance: Tensor,
    sights: Sequence[Tensor],
    past: tuple[Tensor, Tensor],
    surprise: tuple[float, Sequence[float], Sequence[float]],
) -> tuple[Tensor, Tensor]:
    """`landmark_scan_by_steps` for float32 CUDA tensors of two-dimensional positions."""
    chance, (planned, *_), (stray, *_) = surprise
    logs = (math.log(1 - chance) - LOG_TWO_PI, math.log(chance) - LOG_TWO_PI)
    numbers = (*logs, planned, stray, (1 - chance) * planned + chance * stray)
    return _LandmarkScan.apply(  # type: ignore[no-any-return]
        start, variance, *past, numbers, displacement, *sights, *(gate or ())
    )
