"""Bias and ELU on a GPU: one launch forward; back, one and a small sum for the bias.

A tile is some pixels by some channels, and channels are what lies beside each other. On the way back a program walks
over its share of the pixels, so that it adds up the gradients of the bias in registers; what the programs found is
added up in a fixed order. Only what was made is kept: the slope of the ELU can be told from it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.aside import aside, noted
from gtmsm.kernels.sums_triton import summed

TILE = 4_096
"""Numbers that a program looks at together: 16 in each thread, two or four loads of 16 bytes."""
WARPS = 8
MOST_CHANNELS = 256
"""Of one tile: more than a few hundred bytes beside each other are not read any faster."""
PROGRAMS = 4 * 132
"""On the way back: four for each multiprocessor of an H200 hide each other's waiting, and more are longer to add up."""


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x, bias, y, rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # pragma: no cover - runs on the GPU
    first = tl.program_id(0) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (first + row < rows)[:, None] & (column < CHANNELS)[None, :]
    begin = first.to(tl.int64) * CHANNELS
    at = row[:, None] * CHANNELS + column[None, :]
    total = tl.load(x + begin + at, there, 0.0).to(tl.float32)
    total += tl.load(bias + column, column < CHANNELS, 0.0)[None, :]
    below = tl.where(total > 0.0, 0.0, total)
    total = tl.where(total > 0.0, total, tl.exp(below) - 1.0)
    tl.store(y + begin + at, total.to(y.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows", "share"])
def _backward(
    y, dy, dx, shares, rows, share, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # pragma: no cover - runs on the GPU
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * share
    count = tl.minimum(share, rows - first)
    begin = first.to(tl.int64) * CHANNELS
    loose = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < count)[:, None] & (column < CHANNELS)[None, :]
        at = row[:, None] * CHANNELS + column[None, :]
        g = tl.load(dy + begin + at, there, 0.0).to(tl.float32)
        made = tl.load(y + begin + at, there, 0.0).to(tl.float32)
        g *= tl.where(made > 0.0, 1.0, made + 1.0)  # ELU' is 1 above 0, and ELU + 1 below
        loose += g
        tl.store(dx + begin + at, g.to(dx.dtype.element_ty), there)
    tl.store(shares + tl.program_id(0) * CHANNELS + column, tl.sum(loose, 0), column < CHANNELS)


def tile_for(channels: int) -> tuple[int, int]:
    """How many pixels and channels a program looks at together."""
    columns = min(MOST_CHANNELS, triton.next_power_of_2(channels))
    return TILE // columns, columns


def share_for(rows: int, channels: int) -> int:
    """How many pixels a program walks over on the way back, whole tiles of them."""
    high, wide = tile_for(channels)
    parts = max(1, PROGRAMS // triton.cdiv(channels, wide))
    return triton.cdiv(triton.cdiv(rows, parts), high) * high


def _like(x: Tensor) -> torch.memory_format:
    """The order in which the channels of a pixel lie beside each other."""
    return torch.contiguous_format if x.dim() == 2 else torch.channels_last


class _BiasElu(torch.autograd.Function):
    """What was made, and gradients of the input and of the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        rows, channels = x.numel() // len(bias), len(bias)
        y = torch.empty_like(x, memory_format=_like(x))
        high, wide = tile_for(channels)
        _forward[(triton.cdiv(rows, high), triton.cdiv(channels, wide))](
            x, bias.contiguous(), y, rows, CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS
        )
        ctx.save_for_backward(y)
        ctx.noted = noted(bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = ctx.saved_tensors
        channels = y.shape[1]
        rows = y.numel() // channels
        dy = dy.contiguous(memory_format=_like(y))
        dx = torch.empty_like(y, memory_format=_like(y))
        (high, wide), share = tile_for(channels), share_for(rows, channels)
        parts = triton.cdiv(rows, share)
        shares = y.new_empty(parts, channels, dtype=torch.float32)
        _backward[(parts, triton.cdiv(channels, wide))](
            y, dy, dx, shares, rows, share, CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS
        )
        with aside(shares, learning=ctx.noted):
            dbias = summed(shares) if parts > 1 else shares[0]
        return dx, dbias


def activated(x: Tensor, bias: Tensor) -> Tensor:
    """`bias_elu_by_parts` for CUDA tensors: x in float32 or bfloat16, channels beside each other, and not empty."""
    return _BiasElu.apply(x, bias)  # type: ignore[no-any-return]
