"""The mean bound on a GPU in one launch each way: so few numbers that a single Triton program adds them up."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.bound.mean_bound import MeanBound
from gtmsm.tensors import LOG_TWO_PI

AT_ONCE = 4096
"""Frames added up together, at most."""
PORTION = 512
"""Frames whose gradients a program writes."""


@triton.jit
def _mean_bound_forward(
    error2, kl, log_sigma, counts, loss, bound, log_likelihood, mean_kl, kept,
    error2_step, kl_step, counts_step, N, pixels,
    LOG_TWO_PI: tl.constexpr, HAS_COUNTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    errors = tl.zeros([BLOCK], tl.float32)
    kls = tl.zeros([BLOCK], tl.float32)
    frames = tl.zeros([BLOCK], tl.float32)
    for first in range(0, N, BLOCK):
        at = (first + tl.arange(0, BLOCK)).to(tl.int64)
        used = at < N
        if HAS_COUNTS:
            used = used & (tl.load(counts + at * counts_step, used, 0) != 0)
        errors += tl.load(error2 + at * error2_step, used, 0.0)
        kls += tl.load(kl + at * kl_step, used, 0.0)
        frames += tl.where(used, 1.0, 0.0)
    count = tl.sum(frames, 0)
    share = 1.0 / tl.maximum(count, 1.0)
    log_width = tl.load(log_sigma)
    # Of the constant, every frame that counts has the same: as a mean it is itself, or 0 where none does.
    any_counts = tl.minimum(count, 1.0)
    misfit = tl.sum(errors, 0) * share * tl.exp(-2.0 * log_width)
    fit = -0.5 * (misfit + any_counts * (pixels * (2.0 * log_width + LOG_TWO_PI)))
    divergence = tl.sum(kls, 0) * share
    tl.store(loss, divergence - fit)
    tl.store(bound, fit - divergence)
    tl.store(log_likelihood, fit)
    tl.store(mean_kl, divergence)
    tl.store(kept, share)
    tl.store(kept + 1, misfit - any_counts * pixels)  # the slope in log_sigma


@triton.jit
def _mean_bound_backward(
    log_sigma, counts, kept, by_loss, by_bound, by_log_likelihood, by_kl, g_error2, g_kl, g_log_sigma, counts_step, N,
    HAS_COUNTS: tl.constexpr, HAS_LOSS: tl.constexpr, HAS_BOUND: tl.constexpr, HAS_LOG_LIKELIHOOD: tl.constexpr,
    HAS_KL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    into_fit, into_kl = 0.0, 0.0
    if HAS_LOSS:
        into = tl.load(by_loss)
        into_fit -= into
        into_kl += into
    if HAS_BOUND:
        into = tl.load(by_bound)
        into_fit += into
        into_kl -= into
    if HAS_LOG_LIKELIHOOD:
        into_fit += tl.load(by_log_likelihood)
    if HAS_KL:
        into_kl += tl.load(by_kl)
    share = tl.load(kept)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = at < N
    learns = used
    if HAS_COUNTS:
        learns = used & (tl.load(counts + at * counts_step, used, 0) != 0)
    by_error2 = -0.5 * into_fit * share * tl.exp(-2.0 * tl.load(log_sigma))
    tl.store(g_error2 + at, tl.where(learns, by_error2, 0.0), used)
    tl.store(g_kl + at, tl.where(learns, into_kl * share, 0.0), used)
    if tl.program_id(0) == 0:
        tl.store(g_log_sigma, into_fit * tl.load(kept + 1))


class _MeanBound(torch.autograd.Function):
    """The averages, and gradients from any of them."""

    @staticmethod
    def forward(
        ctx: Any, error2: Tensor, kl: Tensor, log_sigma: Tensor, counts: Tensor | None, pixels: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = len(error2)
        counted = error2 if counts is None else counts.view(torch.uint8)  # bytes, which Triton has pointers to
        loss, bound, log_likelihood, mean_kl = (error2.new_empty(()) for _ in range(4))
        kept = error2.new_empty(2)
        block = min(triton.next_power_of_2(n), AT_ONCE)
        _mean_bound_forward[(1,)](
            error2, kl, log_sigma, counted, loss, bound, log_likelihood, mean_kl, kept,
            error2.stride(0), kl.stride(0), counted.stride(0), n, pixels,
            LOG_TWO_PI=LOG_TWO_PI, HAS_COUNTS=counts is not None, BLOCK=block, num_warps=max(block // 256, 1),
        )  # fmt: skip
        ctx.save_for_backward(log_sigma, counted, kept)
        ctx.n, ctx.has_counts = n, counts is not None
        ctx.set_materialize_grads(False)  # zeros for what is only looked at would be launches of their own
        return loss, bound, log_likelihood, mean_kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(into is None for into in incoming):
            return None, None, None, None, None
        log_sigma, counted, kept = ctx.saved_tensors
        g_error2, g_kl, g_log_sigma = kept.new_empty(ctx.n), kept.new_empty(ctx.n), kept.new_empty(())
        has = (into is not None for into in incoming)
        block = min(triton.next_power_of_2(ctx.n), PORTION)
        _mean_bound_backward[(triton.cdiv(ctx.n, block),)](
            log_sigma, counted, kept, *(kept if into is None else into for into in incoming),
            g_error2, g_kl, g_log_sigma, counted.stride(0), ctx.n, HAS_COUNTS=ctx.has_counts,
            **dict(zip(("HAS_LOSS", "HAS_BOUND", "HAS_LOG_LIKELIHOOD", "HAS_KL"), has, strict=True)),
            BLOCK=block, num_warps=max(block // 128, 1),
        )  # fmt: skip
        return g_error2, g_kl, g_log_sigma, None, None


def mean_bound(error2: Tensor, kl: Tensor, log_sigma: Tensor, pixels: int, counts: Tensor | None) -> MeanBound:
    """`mean_bound_by_parts` for float32 CUDA tensors."""
    return MeanBound(*_MeanBound.apply(error2, kl, log_sigma, counts, pixels))
