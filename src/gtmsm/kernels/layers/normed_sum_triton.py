"""A shortcut, a bias and a layer norm on a GPU: one launch forward; one backward, and a small sum for the parameters.

A program takes a few whole rows together, so that each number is read once and written once. Backward it loops over
many rows and adds up the gradients of parameters in registers; the results of all programs are added up in a fixed
order. Kept for the backward pass are the sum, and the mean and the inverse standard deviation of each row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors

MOST = 2**30
"""Upper bound of a tensor's size: 32 bits count its numbers, and a loop over all of them may overshoot the end."""
WIDEST = 1_024
"""Maximum width of a row: a program takes whole rows."""
TILE, WARPS = 4_096, 8
"""Numbers that a program takes together, 16 in each thread: of rows of 256, two for each warp."""
TILE_BACK, WARPS_BACK, STAGES_BACK = 512, 1, 2
"""Backward: as many in each thread, and as many again for each parameter that learns."""
MOST_ROWS = 128
"""Maximum number of rows of one tile, if rows are short."""
PROGRAMS = 16 * 132
"""Programs of the backward pass: 16 for each multiprocessor of an H200, of one warp each."""


@triton.jit(do_not_specialize=["rows"])
def _normed_sum_forward(
    x, r, bias, weight, shift, y, n, mean, steep, rows, eps,
    SUM: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr,
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
    if AFFINE:
        made *= tl.load(weight + column, is_column, 0.0)[None, :]
        made += tl.load(shift + column, is_column, 0.0)[None, :]
    tl.store(n + at, made.to(n.dtype.element_ty), there)
    tl.store(mean + row, middle, is_row)
    tl.store(steep + row, slope, is_row)


@triton.jit(do_not_specialize=["rows"])
def _normed_sum_backward(
    y, mean, steep, weight, gy, gn, g, shares, rows,
    AFFINE: tl.constexpr, LEARNERS: tl.constexpr,
    INTO_BIAS: tl.constexpr, INTO_WEIGHT: tl.constexpr, INTO_SHIFT: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    column = tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    into_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    into_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    into_shift = tl.zeros([ROWS, COLUMNS], tl.float32)
    if AFFINE:
        scale = tl.load(weight + column, is_column, 0.0)[None, :]
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        is_row = row < rows
        there = is_row[:, None] & is_column[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        middle, slope = tl.load(mean + row, is_row, 0.0), tl.load(steep + row, is_row, 0.0)
        into = tl.load(gn + at, there, 0.0).to(tl.float32)
        away = tl.load(y + at, there, 0.0).to(tl.float32)
        away = tl.where(is_column[None, :], (away - middle[:, None]) * slope[:, None], 0.0)
        if INTO_WEIGHT >= 0:
            into_weight += into * away
        if INTO_SHIFT >= 0:
            into_shift += into
        if AFFINE:
            into *= scale
        # Shifting or scaling a whole row does not change its norm: these two parts of the gradient vanish.
        moved, stretched = tl.sum(into, 1) / WIDTH, tl.sum(into * away, 1) / WIDTH
        total = (into - moved[:, None] - away * stretched[:, None]) * slope[:, None]
        total += tl.load(gy + at, there, 0.0).to(tl.float32)
        if INTO_BIAS >= 0:
            into_bias += total
        tl.store(g + at, total.to(g.dtype.element_ty), there)
    shares += tl.program_id(0) * LEARNERS * WIDTH + column
    if INTO_BIAS >= 0:
        tl.store(shares + INTO_BIAS * WIDTH, tl.sum(into_bias, 0), is_column)
    if INTO_WEIGHT >= 0:
        tl.store(shares + INTO_WEIGHT * WIDTH, tl.sum(into_weight, 0), is_column)
    if INTO_SHIFT >= 0:
        tl.store(shares + INTO_SHIFT * WIDTH, tl.sum(into_shift, 0), is_column)


def tile_for(width: int, numbers: int) -> tuple[int, int]:
    """Number of rows that a program takes together, and their width rounded up to a power of two."""
    columns = triton.next_power_of_2(width)
    return min(MOST_ROWS, max(1, numbers // columns)), columns


def _empty(x: Tensor, *rest: object) -> list[Tensor]:
    """Sum, norm, and mean and inverse standard deviation of each row."""
    rows = x.numel() // x.shape[-1]
    return [*(torch.empty_like(x) for _ in range(2)), *(x.new_empty(rows, dtype=torch.float32) for _ in range(2))]


def _forward(
    x: Tensor, r: Tensor | None, bias: Tensor | None, weight: Tensor | None, shift: Tensor | None, eps: float
) -> list[Tensor]:
    y, n, mean, steep = _empty(x)
    if r is None:
        y.copy_(x)  # an operator must not return what it was given
    width, rows, (high, wide) = x.shape[-1], len(mean), tile_for(x.shape[-1], TILE)
    _normed_sum_forward[(triton.cdiv(rows, high),)](
        x, x if r is None else r, *(x if part is None else part.contiguous() for part in (bias, weight, shift)),
        y, n, mean, steep, rows, eps,
        SUM=r is not None, BIAS=bias is not None, AFFINE=weight is not None,
        WIDTH=width, ROWS=high, COLUMNS=wide, num_warps=WARPS,
    )  # fmt: skip
    return [y, n, mean, steep]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    weight, (y, _, mean, steep), (gy, gn) = args[3], made, (x.contiguous() for x in gradients)
    g, learning = torch.empty_like(y), needed[2:5]
    slots = [sum(learning[:part]) if learns else -1 for part, learns in enumerate(learning)]
    width, rows, (high, wide) = y.shape[-1], len(mean), tile_for(y.shape[-1], TILE_BACK)
    parts = min(PROGRAMS, triton.cdiv(rows, high))
    shares = y.new_empty(parts, sum(learning), width, dtype=torch.float32)
    _normed_sum_backward[(parts,)](
        y, mean, steep, y if weight is None else weight.contiguous(), gy, gn, g, shares, rows,
        AFFINE=weight is not None, LEARNERS=sum(learning),
        INTO_BIAS=slots[0], INTO_WEIGHT=slots[1], INTO_SHIFT=slots[2],
        WIDTH=width, ROWS=high, COLUMNS=wide, STAGES=STAGES_BACK, num_warps=WARPS_BACK,
    )  # fmt: skip
    sums = shares.sum(0)
    return g, g if needed[1] else None, *(None if slot < 0 else sums[slot] for slot in slots), None


def _supports(
    x: Tensor, r: Tensor | None, bias: Tensor | None, weight: Tensor | None, shift: Tensor | None, eps: float
) -> bool:
    parameters = [part for part in (bias, weight, shift) if part is not None]
    usual = x.dtype in (torch.float32, torch.bfloat16) and 0 < x.numel() < MOST and x.shape[-1] <= WIDEST
    alike = r is None or (r.dtype == x.dtype and r.shape == x.shape and r.is_contiguous())
    precise = all(part.dtype == torch.float32 and part.shape == x.shape[-1:] for part in parameters)
    together = (r is not None or bias is None) and (weight is None) == (shift is None)
    return usual and x.is_contiguous() and alike and precise and together


normed_sum = Fast(_forward, _empty, _backward, _supports)
