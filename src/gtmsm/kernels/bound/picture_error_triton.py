"""The error of pictures on a GPU: one Triton program adds up a picture, and nothing between is ever stored.

Convolutions leave the channels of a pixel beside each other, while the truth has a plane for each: pixels are walked
in the order of the logits, and the truth is looked up, since a copy of it would cost as much as all the rest.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = 1024
"""Pixels that a program looks at together, at most."""


@triton.jit
def _picture_error_forward(
    logits, x, value, logits_step, x_step, pixels, PLANES: tl.constexpr, BLOCK: tl.constexpr
):  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, pixels, BLOCK):
        p = first + tl.arange(0, BLOCK)
        used = p < pixels
        there = p if PLANES == 1 else p % PLANES * (pixels // PLANES) + p // PLANES
        made = tl.sigmoid(tl.load(logits + n * logits_step + p, used, 0.0).to(tl.float32))
        miss = tl.where(used, tl.load(x + n * x_step + there, used, 0.0) - made, 0.0)
        total += miss * miss
    tl.store(value + n, tl.sum(total, 0))


@triton.jit
def _picture_error_backward(
    logits, x, incoming, g_logits, logits_step, x_step, incoming_step, pixels, PLANES: tl.constexpr, BLOCK: tl.constexpr
):  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    used = p < pixels
    there = p if PLANES == 1 else p % PLANES * (pixels // PLANES) + p // PLANES
    made = tl.sigmoid(tl.load(logits + n * logits_step + p, used, 0.0).to(tl.float32))
    miss = tl.load(x + n * x_step + there, used, 0.0) - made
    into = tl.load(incoming + n * incoming_step) * -2.0 * miss * made * (1 - made)
    tl.store(g_logits + n * pixels + p, into.to(g_logits.dtype.element_ty), used)


def _lies(x: Tensor, axes: Sequence[int]) -> bool:
    """Whether every picture is in one piece, with its axes from outermost to innermost in this order."""
    step = 1
    for axis in reversed(axes):
        if x.shape[axis] > 1 and x.stride(axis) != step:
            return False
        step *= x.shape[axis]
    return True


def _in_pieces(logits: Tensor, x: Tensor) -> tuple[Tensor, Tensor, int, bool]:
    """Both with every picture in one piece; how many planes of the truth take turns; whether logits have theirs last.

    Nothing is copied where either is laid out as convolutions or as worlds do it, unless only the truth has its
    channels last.
    """
    axes = range(1, x.dim())
    channels_last = (*axes[1:], 1)
    if not _lies(logits, axes) and _lies(logits, channels_last):
        if _lies(x, channels_last):
            return logits, x, 1, True
        return logits, x if _lies(x, axes) else x.contiguous(), x.shape[1], True
    return *(part if _lies(part, axes) else part.contiguous() for part in (logits, x)), 1, False  # type: ignore[return-value]


def _block(pixels: int) -> dict[str, int]:
    """How many pixels are looked at together, and how many threads that is worth: eight pixels each."""
    block = min(triton.next_power_of_2(pixels), AT_ONCE)
    return {"BLOCK": block, "num_warps": max(block // 256, 1)}


class _PictureError(torch.autograd.Function):
    """Errors and the gradients of logits, in one launch each way."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, x: Tensor) -> Tensor:
        logits, x, planes, channels_last = _in_pieces(logits, x)
        n, pixels = len(x), x.shape[1:].numel()
        value = x.new_empty(n)
        _picture_error_forward[(n,)](
            logits, x, value, logits.stride(0), x.stride(0), pixels, PLANES=planes, **_block(pixels)
        )
        ctx.save_for_backward(logits, x)
        ctx.planes, ctx.channels_last = planes, channels_last
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        logits, x = ctx.saved_tensors
        n, pixels = len(x), x.shape[1:].numel()
        if ctx.channels_last:
            g_logits = logits.new_empty(n, *x.shape[2:], x.shape[1]).movedim(-1, 1)
        else:
            g_logits = logits.new_empty(x.shape)
        size = _block(pixels)
        _picture_error_backward[(n, triton.cdiv(pixels, size["BLOCK"]))](
            logits, x, incoming, g_logits, logits.stride(0), x.stride(0), incoming.stride(0), pixels,
            PLANES=ctx.planes, **size,
        )  # fmt: skip
        return g_logits, None


def error(logits: Tensor, x: Tensor) -> Tensor:
    """`picture_error_by_parts` for CUDA tensors: x in float32, logits in float32 or bfloat16, of the same shape."""
    return _PictureError.apply(logits, x)  # type: ignore[no-any-return]
