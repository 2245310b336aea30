"""The landmark scan on a GPU: one Triton program per sequence, a lane for each sight, sigma_d in registers.

The map is one table of rows (x, y, variance): the past, every step, and last the start. A program writes the row of a
step and reads it back later, so its single warp waits for itself between the two (`debug_barrier`). Names are those of
the readable function: 0 is a step that goes as planned, 1 a step that goes otherwise.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast
from gtmsm.kernels.scans.landmark_scan_cpu import empty
from gtmsm.tensors import LOG_TWO_PI


@triton.jit
def _recall(table, log_odds, offset, noise, entry, at, used):  # pragma: no cover - runs on the GPU
    """For every sight: the position it implies, the variance of its entry, its log odds and its noise."""
    x = tl.load(table + entry, used, 0.0) + tl.load(offset + 2 * at, used, 0.0)
    y = tl.load(table + entry + 1, used, 0.0) + tl.load(offset + 2 * at + 1, used, 0.0)
    known = tl.load(table + entry + 2, used, 0.0)
    return x, y, known, tl.load(log_odds + at, used, float("-inf")), tl.load(noise + at, used, 1.0)


@triton.jit
def _weigh(odds, far2, total_0, total_1, log_0, log_1):  # pragma: no cover - runs on the GPU
    """Bayes' rule: probabilities of each sight after a step as planned, of each after another step, and of none."""
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


def _forward(
    start: Tensor, displacement: Tensor, W: Tensor | None, b: Tensor | None, v: Tensor | None, c: Tensor | None,
    variance: Tensor, index: Tensor, log_odds: Tensor, offset: Tensor, noise: Tensor,
    past: Tensor, past_variance: Tensor, chance: float, planned: float, stray: float,
) -> list[Tensor]:  # fmt: skip
    """Positions and variances, by one program per sequence."""
    first, (batch, steps, K) = past.shape[1], index.shape
    table = past.new_zeros(batch, first + steps + 1, 3)
    table[:, :first, :2], table[:, :first, 2:] = past, past_variance
    table[:, -1, :2], table[:, -1, 2:] = start, variance
    d, *seen = (x.contiguous() for x in (displacement, index, log_odds, offset, noise))
    gate = [x.contiguous() for x in (W, b, v, c) if x is not None]
    hidden = len(gate[0]) if gate else 1
    logs = math.log(1 - chance) - LOG_TWO_PI, math.log(chance) - LOG_TWO_PI
    usual = (1 - chance) * planned + chance * stray
    # one warp, whose lanes see what the others stored; one stage, so that no read is moved ahead of a write
    _landmark_scan_forward[(batch,)](
        table, d, *(gate or [d] * 4), *seen, *logs, planned, stray, usual,
        T=steps, N=first, H=hidden, K=K, HAS_GATE=bool(gate), HIDDEN=triton.next_power_of_2(hidden),
        LANES=triton.next_power_of_2(max(K, 1)), num_warps=1, num_stages=1,
    )  # fmt: skip
    made = table[:, first:-1].split([2, 1], dim=-1)
    return [part.clone(memory_format=torch.contiguous_format) for part in made]


def _supports(start: Tensor, displacement: Tensor, *rest: object) -> bool:
    """Positions of two coordinates in float32."""
    return len(start) > 0 and start.shape[-1] == 2 and displacement.dtype == torch.float32


landmark_scan = Fast(_forward, empty, supports=_supports)
