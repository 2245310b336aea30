"""Clipping and Adam on a GPU in three launches: square, decide, step."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.adam import BETAS, BLOCK, EPSILON
from gtmsm.kernels.operator import Fast


@triton.jit
def _square(gradient, squares, BLOCK: tl.constexpr):  # pragma: no cover - runs on the GPU
    block = tl.program_id(0)
    g = tl.load(gradient + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(squares + block, tl.sum(g * g, 0))


@triton.jit
def _decide(
    squares, group, faster, clip, counts, progress, loss, norm, scale, step, root, active,
    blocks, clip_norm, first_rate, last_rate, fall, rise,
    LOG_BETA_1: tl.constexpr, LOG_BETA_2: tl.constexpr,
    GROUPS: tl.constexpr, LANES: tl.constexpr, PORTION: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    lane = tl.arange(0, LANES)
    there = lane < GROUPS
    norm2 = tl.zeros([LANES], tl.float32)
    for begin in range(0, blocks, PORTION):
        at = begin + tl.arange(0, PORTION)
        some = tl.load(squares + at, at < blocks, 0.0)
        mine = tl.load(group + at, at < blocks, -1)
        norm2 += tl.sum(tl.where(mine[:, None] == lane[None, :], some[:, None], 0.0), 0)
    clips = tl.load(clip + lane, there, -1)
    counted = there & (clips >= 0)
    together = tl.sum(tl.where(clips[:, None] == clips[None, :], norm2[None, :], 0.0), 1)
    tl.store(scale + lane, tl.minimum(clip_norm / (tl.sqrt(together) + 1e-6), 1.0), there)
    total = tl.sqrt(tl.sum(tl.where(counted, norm2, 0.0), 0)) + 0.0 * tl.load(loss).to(tl.float32)
    tl.store(norm, total)
    spread = total + tl.zeros([LANES], tl.float32)
    live = (counted & (spread == spread) & (tl.abs(spread) != float("inf"))).to(tl.int32)
    tl.store(active + lane, live, there)
    done = tl.load(progress)
    rate = first_rate + (last_rate - first_rate) * tl.minimum(done.to(tl.float64) / fall, 1.0)
    if rise > 0:
        rate *= tl.minimum(done.to(tl.float64) / rise, 1.0)
    tl.store(progress, done + 1)
    bad = (total != total) | (tl.abs(total) == float("inf"))
    first_bad = tl.load(progress + 1)
    tl.store(progress + 1, tl.where(bad & (first_bad == 0), done + 1, first_bad))
    seen = tl.load(counts + lane, there, 0) + live.to(tl.int64)
    tl.store(counts + lane, seen, there)
    # In double precision: after the first update 1 - beta_2 is a thousandth, a difference of numbers close to 1.
    seen = tl.maximum(seen, 1).to(tl.float64)
    rate *= tl.load(faster + lane, there, 0.0).to(tl.float64)
    tl.store(step + lane, (rate / (1.0 - tl.exp(LOG_BETA_1 * seen))).to(tl.float32), there)
    tl.store(root + lane, tl.sqrt(1.0 - tl.exp(LOG_BETA_2 * seen)).to(tl.float32), there)


@triton.jit
def _step(
    weight, gradient, first, second, group, scale, step, root, active,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    block = tl.program_id(0)
    mine = tl.load(group + block)
    if tl.load(active + mine) != 0:
        at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + at) * tl.load(scale + mine)
        m = tl.load(first + at)
        m += (g - m) * (1 - BETA_1)
        v = tl.load(second + at) * BETA_2 + g * g * (1 - BETA_2)
        tl.store(first + at, m)
        tl.store(second + at, v)
        move = tl.load(step + mine) * m / (tl.sqrt(v) / tl.load(root + mine) + EPSILON)
        tl.store(weight + at, tl.load(weight + at) - move)


def _forward(
    weight: Tensor, first: Tensor, second: Tensor, counts: Tensor, progress: Tensor, gradient: Tensor, group: Tensor,
    faster: Tensor, clip: Tensor, loss: Tensor, clip_norm: float, *schedule: float,
) -> list[Tensor]:  # fmt: skip
    groups, blocks = len(faster), len(group)
    squares, scale, step, root = (faster.new_empty(n) for n in (blocks, groups, groups, groups))
    norm, active = faster.new_empty(()), torch.empty_like(clip)
    _square[(blocks,)](gradient, squares, BLOCK=BLOCK)
    log_beta = [math.log(beta) for beta in BETAS]
    _decide[(1,)](
        squares, group, faster, clip, counts, progress, loss, norm, scale, step, root, active,
        blocks, clip_norm, *schedule, LOG_BETA_1=log_beta[0], LOG_BETA_2=log_beta[1],
        GROUPS=groups, LANES=max(2, triton.next_power_of_2(groups)), PORTION=1_024,
    )  # fmt: skip
    _step[(blocks,)](
        weight, gradient, first, second, group, scale, step, root, active,
        BETA_1=BETAS[0], BETA_2=BETAS[1], EPSILON=EPSILON, BLOCK=BLOCK,
    )  # fmt: skip
    return [norm]


adam_step = Fast(
    _forward,
    lambda weight, *rest: [weight.new_empty(())],
    supports=lambda weight, *rest: weight.dtype == torch.float32,
)
