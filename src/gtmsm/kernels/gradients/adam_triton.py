"""Clipping and Adam on a GPU in three launches: square, decide, step."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import math

import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.gradients.adam import BETAS, BLOCK, EPSILON, Schedule, Shelf, Tally


@triton.jit
def _square(gradient, squares, BLOCK: tl.constexpr):  # pragma: no cover - runs on the GPU
    stretch = tl.program_id(0)
    g = tl.load(gradient + stretch.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(squares + stretch, tl.sum(g * g, 0))


@triton.jit
def _decide(
    squares, group, faster, clip, loss, count, first_bad, length, shorten, step, root,
    blocks, clip_norm, first_rate, last_rate, fall, rise,
    LOG_BETA_1: tl.constexpr, LOG_BETA_2: tl.constexpr,
    GROUPS: tl.constexpr, LANES: tl.constexpr, PORTION: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    lane = tl.arange(0, LANES)
    there = lane < GROUPS
    length2 = tl.zeros([LANES], tl.float32)
    for begin in range(0, blocks, PORTION):
        at = begin + tl.arange(0, PORTION)
        some = tl.load(squares + at, at < blocks, 0.0)
        mine = tl.load(group + at, at < blocks, -1)
        length2 += tl.sum(tl.where(mine[:, None] == lane[None, :], some[:, None], 0.0), 0)
    clips = tl.load(clip + lane, there, -1)
    counted = there & (clips >= 0)
    together = tl.sum(tl.where(clips[:, None] == clips[None, :], length2[None, :], 0.0), 1)
    tl.store(shorten + lane, tl.where(counted, tl.minimum(clip_norm / (tl.sqrt(together) + 1e-6), 1.0), 1.0), there)
    all_of_it = tl.sqrt(tl.sum(tl.where(counted, length2, 0.0), 0))
    tl.store(length, all_of_it)
    done = tl.load(count)
    rate = first_rate + (last_rate - first_rate) * tl.minimum(done.to(tl.float64) / fall, 1.0)
    if rise > 0:
        rate *= tl.minimum(done.to(tl.float64) / rise, 1.0)
    done += 1
    tl.store(count, done)
    # In double precision: after the first update the second moment's scale is a thousandth, a difference of ones.
    first_scale = 1.0 - tl.exp(LOG_BETA_1 * done.to(tl.float64))
    second_scale = 1.0 - tl.exp(LOG_BETA_2 * done.to(tl.float64))
    faster_here = tl.load(faster + lane, there, 0.0).to(tl.float64)
    tl.store(step + lane, (rate * faster_here / first_scale).to(tl.float32), there)
    tl.store(root, tl.sqrt(second_scale).to(tl.float32))
    total = tl.load(loss).to(tl.float32) + all_of_it  # not finite where either is not
    bad = (total != total) | (tl.abs(total) == float("inf"))
    before = tl.load(first_bad)
    tl.store(first_bad, tl.where(bad & (before == 0), done, before))


@triton.jit
def _step(
    weight, gradient, first, second, group, shorten, step, root,
    BETA_1: tl.constexpr, BETA_2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    stretch = tl.program_id(0)
    at = stretch.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(group + stretch)
    g = tl.load(gradient + at) * tl.load(shorten + mine)
    m = tl.load(first + at)
    m += (g - m) * (1 - BETA_1)
    v = tl.load(second + at) * BETA_2 + g * g * (1 - BETA_2)
    tl.store(first + at, m)
    tl.store(second + at, v)
    move = tl.load(step + mine) * m / (tl.sqrt(v) / tl.load(root) + EPSILON)
    tl.store(weight + at, tl.load(weight + at) - move)
    tl.store(gradient + at, tl.zeros([BLOCK], tl.float32))


def adam(
    shelf: Shelf, faster: Tensor, clip: Tensor, clip_norm: float, schedule: Schedule, loss: Tensor, tally: Tally
) -> Tensor:
    """`adam_by_parts` for float32 CUDA tensors."""
    groups, blocks = len(faster), len(shelf.group)
    squares, shorten, step = (faster.new_empty(n) for n in (blocks, groups, groups))
    length, root = faster.new_empty(()), faster.new_empty(())
    _square[(blocks,)](shelf.gradient, squares, BLOCK=BLOCK)
    log_beta = [math.log(beta) for beta in BETAS]
    _decide[(1,)](
        squares, shelf.group, faster, clip, loss, *tally, length, shorten, step, root,
        blocks, clip_norm, schedule.first, schedule.last, schedule.fall, schedule.rise,
        LOG_BETA_1=log_beta[0], LOG_BETA_2=log_beta[1],
        GROUPS=groups, LANES=max(2, triton.next_power_of_2(groups)), PORTION=1_024,
    )  # fmt: skip
    _step[(blocks,)](
        shelf.weight, shelf.gradient, shelf.first, shelf.second, shelf.group, shorten, step, root,
        BETA_1=BETAS[0], BETA_2=BETAS[1], EPSILON=EPSILON, BLOCK=BLOCK,
    )  # fmt: skip
    return length
