"""A shortcut, a bias and a layer norm on a GPU: one launch forward; back, one and a small sum for all parameters.

A program looks at a few whole rows together, so that each number is read once and written once. On the way back it
walks over many of them and adds up the gradients of parameters in registers; what the programs found is added up in a
fixed order. Kept are the sum, and the mean and the slope of each row.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.gradients.sums_triton import Learners

TILE, WARPS = 4_096, 8
"""Numbers that a program looks at together, 16 in each thread: of rows of 256, two for each warp."""
TILE_BACK, WARPS_BACK, STAGES_BACK = 512, 1, 2
"""On the way back: as many in each thread, and with them as many again for each parameter that learns."""
MOST_ROWS = 128
"""Of one tile, where rows are short."""
PROGRAMS = 16 * 132
"""On the way back: for each multiprocessor of an H200 16, of one warp each."""


@triton.jit(do_not_specialize=["rows"])
def _normed_sum_forward(
    x, r, bias, weight, shift, y, n, mean, steep, rows, eps,
    SUM: tl.constexpr, BIAS: tl.constexpr, WEIGHT: tl.constexpr, SHIFT: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < WIDTH
    there = is_row[:, None] & is_column[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    total = tl.load(x + at, there, 0.0).to(tl.float32)
    if SUM:
        total += tl.load(r + at, there, 0.0).to(tl.float32)
        if BIAS:
            total += tl.load(bias + column, is_column, 0.0)[None, :]
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + at, rounded, there)
        total = rounded.to(tl.float32)
    middle = tl.sum(total, 1) / WIDTH
    away = tl.where(is_column[None, :], total - middle[:, None], 0.0)
    slope = 1.0 / tl.sqrt(tl.sum(away * away, 1) / WIDTH + eps)
    made = away * slope[:, None]
    if WEIGHT:
        made *= tl.load(weight + column, is_column, 0.0)[None, :]
    if SHIFT:
        made += tl.load(shift + column, is_column, 0.0)[None, :]
    tl.store(n + at, made.to(n.dtype.element_ty), there)
    tl.store(mean + row, middle, is_row)
    tl.store(steep + row, slope, is_row)


@triton.jit(do_not_specialize=["rows"])
def _normed_sum_backward(
    y, mean, steep, weight, gy, gn, g, shares, rows,
    GY: tl.constexpr, GN: tl.constexpr, WEIGHT: tl.constexpr, LEARNERS: tl.constexpr,
    INTO_BIAS: tl.constexpr, INTO_WEIGHT: tl.constexpr, INTO_SHIFT: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    column = tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    into_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    into_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    into_shift = tl.zeros([ROWS, COLUMNS], tl.float32)
    if WEIGHT:
        scale = tl.load(weight + column, is_column, 0.0)[None, :]
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        is_row = row < rows
        there = is_row[:, None] & is_column[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        if GN:
            middle, slope = tl.load(mean + row, is_row, 0.0), tl.load(steep + row, is_row, 0.0)
            into = tl.load(gn + at, there, 0.0).to(tl.float32)
            away = tl.load(y + at, there, 0.0).to(tl.float32)
            away = tl.where(is_column[None, :], (away - middle[:, None]) * slope[:, None], 0.0)
            if INTO_WEIGHT >= 0:
                into_weight += into * away
            if INTO_SHIFT >= 0:
                into_shift += into
            if WEIGHT:
                into *= scale
            # A row that is moved or stretched as a whole is the same when normalised: these two parts are lost.
            moved, stretched = tl.sum(into, 1) / WIDTH, tl.sum(into * away, 1) / WIDTH
            total = (into - moved[:, None] - away * stretched[:, None]) * slope[:, None]
        if GY:
            total += tl.load(gy + at, there, 0.0).to(tl.float32)
        if INTO_BIAS >= 0:
            into_bias += total
        if GN:  # else it is gy itself
            tl.store(g + at, total.to(g.dtype.element_ty), there)
    shares += tl.program_id(0) * LEARNERS * WIDTH + column
    if INTO_BIAS >= 0:
        tl.store(shares + INTO_BIAS * WIDTH, tl.sum(into_bias, 0), is_column)
    if INTO_WEIGHT >= 0:
        tl.store(shares + INTO_WEIGHT * WIDTH, tl.sum(into_weight, 0), is_column)
    if INTO_SHIFT >= 0:
        tl.store(shares + INTO_SHIFT * WIDTH, tl.sum(into_shift, 0), is_column)


def tile_for(width: int, numbers: int) -> tuple[int, int]:
    """How many rows a program looks at together, and how many numbers of each, at least all of them."""
    columns = triton.next_power_of_2(width)
    return min(MOST_ROWS, max(1, numbers // columns)), columns


class _NormedSum(torch.autograd.Function):
    """The sum and its norm, and gradients of all that went in; where there is nothing to add, the sum is the input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        r: Tensor | None,
        bias: Tensor | None,
        weight: Tensor | None,
        shift: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.learners = Learners(bias, weight, shift)
        bias, weight, shift = (None if part is None else part.contiguous() for part in (bias, weight, shift))
        width, rows = x.shape[-1], x.numel() // x.shape[-1]
        y, n = x if r is None else torch.empty_like(x), torch.empty_like(x)
        mean, steep = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
        high, wide = tile_for(width, TILE)
        _normed_sum_forward[(triton.cdiv(rows, high),)](
            x, x if r is None else r, *(x if part is None else part for part in (bias, weight, shift)),
            y, n, mean, steep, rows, eps,
            SUM=r is not None, BIAS=bias is not None, WEIGHT=weight is not None, SHIFT=shift is not None,
            WIDTH=width, ROWS=high, COLUMNS=wide, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(y, mean, steep, weight)
        return y, n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor | None, gn: Tensor | None) -> tuple[Tensor | None, ...]:
        y, mean, steep, weight = ctx.saved_tensors
        learners: Learners = ctx.learners
        if gy is None and gn is None:
            return (None,) * 6
        if gn is None and learners.slots[0] < 0:
            return gy, gy if ctx.needs_input_grad[1] else None, None, None, None, None
        gy, gn = (None if part is None else part.contiguous() for part in (gy, gn))
        g = gy if gn is None else torch.empty_like(y)
        width, rows = y.shape[-1], y.numel() // y.shape[-1]
        high, wide = tile_for(width, TILE_BACK)
        parts = min(PROGRAMS, triton.cdiv(rows, high))
        shares = y.new_empty(parts, learners.count, width, dtype=torch.float32)
        _normed_sum_backward[(parts,)](
            y, mean, steep, y if weight is None else weight, y if gy is None else gy, y if gn is None else gn, g,
            shares, rows, GY=gy is not None, GN=gn is not None, WEIGHT=weight is not None, LEARNERS=learners.count,
            **dict(zip(("INTO_BIAS", "INTO_WEIGHT", "INTO_SHIFT"), learners.slots, strict=True)),
            WIDTH=width, ROWS=high, COLUMNS=wide, STAGES=STAGES_BACK, num_warps=WARPS_BACK,
        )  # fmt: skip
        return g, g if ctx.needs_input_grad[1] else None, *learners.gradients(shares), None


def normed_sum(
    x: Tensor, r: Tensor | None, bias: Tensor | None, weight: Tensor | None, shift: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """`normed_sum_by_parts` for CUDA tensors: x and r contiguous, in float32 or bfloat16, parameters in float32."""
    return _NormedSum.apply(x, r, bias, weight, shift, eps)  # type: ignore[no-any-return]
