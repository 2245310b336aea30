"""Views seen from elsewhere on a GPU: everything large is read once and written once, each way.

There, a program makes some tokens of one use of a view. Back, a program does one column of one view: it walks over the
uses of that view and adds up in registers what the view learns; and since it holds all tokens of the column, what the
column of each use learns is complete as well. So both gradients come of one pass and in a fixed order, without atomics.
Which uses a view has is found first, by sorting uses by view (`_sort`). Without a scale, a norm's way back needs only
what it made and how large its input was.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 8_192
"""Numbers that a program makes: 32 in each thread."""
WARPS = 8
NUMBERS_BACK = 2_048
"""Of a column, for each warp on the way back: fewer warps wait less for each other, and 64 in each thread still fit."""
SORTED_AT_ONCE = 8
"""Uses, or ends of a view's uses, whose place in the order one program counts out."""
COMPARED_AT_ONCE = 1_024
"""Uses that it compares them with together."""
MOST_COMPARED = 2**28
"""From here on, comparing all with all takes longer than the launches of PyTorch's sort."""


@triton.jit
def _seen_from_forward(
    digest, row, column, y, scale, eps, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    PARTS: tl.constexpr = (TOKENS + HIGH - 1) // HIGH
    use = (tl.program_id(0) // PARTS).to(tl.int64)
    view = tl.load(row + use).to(tl.int64)
    token, w = tl.program_id(0) % PARTS * HIGH + tl.arange(0, HIGH), tl.arange(0, WIDE)
    there = (token < TOKENS)[:, None] & (w < WIDTH)[None, :]
    at = token[:, None] * WIDTH + w[None, :]
    x = tl.load(digest + view * TOKENS * WIDTH + at, there, 0.0).to(tl.float32)
    at_column = (token % COLUMNS)[:, None] * WIDTH + w[None, :]
    x += tl.load(column + use * COLUMNS * WIDTH + at_column, there, 0.0).to(tl.float32)
    mean = tl.sum(x, 1) / WIDTH
    x = tl.where(there, x - mean[:, None], 0.0)
    rescale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + eps)
    tl.store(y + use * TOKENS * WIDTH + at, (x * rescale[:, None]).to(y.dtype.element_ty), there)
    tl.store(scale + use * TOKENS + token, rescale, token < TOKENS)


@triton.jit
def _sort(
    row, order, ends, USES, ROWS, SOME: tl.constexpr, OTHERS: tl.constexpr
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Uses by view, first uses first, and where those of each view begin: by counting what comes before."""
    i = tl.program_id(0) * SOME + tl.arange(0, SOME)
    is_use, view = i < USES, i - USES
    key = tl.where(is_use, tl.load(row + i, is_use, 0).to(tl.int32) * USES + i, view * USES)
    before = tl.zeros([SOME, OTHERS], tl.int32)
    for begin in range(0, USES, OTHERS):
        j = begin + tl.arange(0, OTHERS)
        other = tl.load(row + j, j < USES, 0).to(tl.int32) * USES + j
        before += ((other[None, :] < key[:, None]) & (j < USES)[None, :]).to(tl.int32)
    place = tl.sum(before, 1)
    tl.store(order + place, i, is_use)
    tl.store(ends + view, place, (view >= 0) & (view <= ROWS))


@triton.jit
def _seen_from_backward(
    y, dy, scale, order, ends, ddigest, dcolumn, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # columns of a view lie beside each other in memory, and so do their programs in time
    view, c = tl.program_id(0) // COLUMNS, tl.program_id(0) % COLUMNS
    token, w = tl.arange(0, HIGH) * COLUMNS + c, tl.arange(0, WIDE)
    there = (token < TOKENS)[:, None] & (w < WIDTH)[None, :]
    at = token[:, None] * WIDTH + w[None, :]
    total = tl.zeros([HIGH, WIDE], tl.float32)
    begin, end = tl.load(ends + view), tl.load(ends + view + 1)
    upcoming = tl.load(order + begin, begin < end, 0)  # read a use ahead: addresses first
    for i in range(begin, end):
        use = upcoming.to(tl.int64)
        upcoming = tl.load(order + i + 1, i + 1 < end, 0)
        g = tl.load(dy + use * TOKENS * WIDTH + at, there, 0.0).to(tl.float32)
        made = tl.load(y + use * TOKENS * WIDTH + at, there, 0.0).to(tl.float32)
        rescale = tl.load(scale + use * TOKENS + token, token < TOKENS, 0.0)
        # less what would only move the mean of the input, or its size
        level, along = tl.sum(g, 1) * (rescale / WIDTH), tl.sum(g * made, 1) * (rescale / WIDTH)
        g = g * rescale[:, None] - (made * along[:, None] + level[:, None])
        if WIDE != WIDTH:
            g = tl.where((w < WIDTH)[None, :], g, 0.0)
        total += g
        into = dcolumn + (use * COLUMNS + c) * WIDTH + w
        tl.store(into, tl.sum(g, 0).to(dcolumn.dtype.element_ty), w < WIDTH)
    tl.store(ddigest + view.to(tl.int64) * TOKENS * WIDTH + at, total.to(ddigest.dtype.element_ty), there)


def uses_by_view(row: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Indices of `row`, those of one view beside each other and in their order, and where each view's begin and end."""
    row, uses = row.flatten(), row.numel()
    if uses * (uses + rows + 1) > MOST_COMPARED or uses * (rows + 1) >= 2**31:  # keys have 32 bits
        views, order = row.sort(stable=True)
        return order, torch.searchsorted(views, torch.arange(rows + 1, dtype=views.dtype, device=views.device))
    order, ends = (row.new_empty(count, dtype=torch.int32) for count in (uses, rows + 1))
    _sort[(triton.cdiv(uses + rows + 1, SORTED_AT_ONCE),)](
        row, order, ends, uses, rows, SOME=SORTED_AT_ONCE, OTHERS=COMPARED_AT_ONCE, num_warps=4
    )
    return order, ends


class _SeenFrom(torch.autograd.Function):
    """Normalised tokens of every use, and gradients of views and of columns."""

    @staticmethod
    def forward(ctx: Any, digest: Tensor, row: Tensor, column: Tensor, eps: float) -> Tensor:
        (rows, tokens, width), (n, k, columns, _) = digest.shape, column.shape
        row = row.contiguous()
        y = digest.new_empty(n, k * tokens, width, dtype=torch.promote_types(digest.dtype, column.dtype))
        scale = digest.new_empty(n, k * tokens, dtype=torch.float32)
        wide = triton.next_power_of_2(width)
        high = min(max(1, TILE // wide), triton.next_power_of_2(tokens))
        _seen_from_forward[(n * k * triton.cdiv(tokens, high),)](
            digest.contiguous(), row, column.contiguous(), y, scale, eps,
            TOKENS=tokens, COLUMNS=columns, WIDTH=width, HIGH=high, WIDE=wide, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(y, scale, row)
        ctx.like = rows, columns, digest.dtype, column.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, Tensor, None]:
        y, scale, row = ctx.saved_tensors
        rows, columns, digest_dtype, column_dtype = ctx.like
        (n, k), width = row.shape, y.shape[-1]
        tokens = y.shape[1] // k
        order, ends = uses_by_view(row, rows)
        ddigest = y.new_empty(rows, tokens, width, dtype=digest_dtype)
        dcolumn = y.new_empty(n, k, columns, width, dtype=column_dtype)
        high, wide = triton.next_power_of_2(tokens // columns), triton.next_power_of_2(width)
        _seen_from_backward[(rows * columns,)](
            y, dy.contiguous(), scale, order, ends, ddigest, dcolumn,
            TOKENS=tokens, COLUMNS=columns, WIDTH=width, HIGH=high, WIDE=wide,
            num_warps=max(1, min(16, high * wide // NUMBERS_BACK)),
        )  # fmt: skip
        return ddigest, None, dcolumn, None


def seen(digest: Tensor, row: Tensor, column: Tensor, eps: float) -> Tensor:
    """`seen_from_by_parts` for CUDA tensors, float32 or bfloat16; nothing is empty, a column fits into registers."""
    return _SeenFrom.apply(digest, row, column, eps)  # type: ignore[no-any-return]
