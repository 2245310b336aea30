"""Retrieved views on a GPU: everything large is read once and written once, forward and backward.

Forward, a program computes some tokens of one use of a view. Backward, a program takes one column of one view: it loops
over the uses of that view and adds up the gradient of the view in registers. It holds all tokens of the column, so the
gradient of the column of each use is complete as well. Both gradients come from one pass and in a fixed order, without
atomics. The uses of each view are found first, by sorting uses by view. A norm without a scale needs only its
output and the inverse standard deviation of its input for the backward pass.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors

WIDEST = 4_096
"""Maximum size of a token, which is held in registers as a whole."""
TALLEST = 16_384
"""Maximum size of one column of a view, whose gradient is held in registers, too."""
TILE = 8_192
"""Numbers that a program computes: 32 in each thread."""
WARPS = 8
NUMBERS_BACK = 2_048
"""Numbers of a column per warp in the backward pass: fewer warps wait less for each other; 64 fit in each thread."""


@triton.jit
def _gathered_views_forward(
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
def _gathered_views_backward(
    y, dy, scale, order, ends, ddigest, dcolumn, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # columns of a view are adjacent in memory, and their programs are adjacent in time
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
        # minus the parts that would only change the mean of the input, or its scale
        level, along = tl.sum(g, 1) * (rescale / WIDTH), tl.sum(g * made, 1) * (rescale / WIDTH)
        g = g * rescale[:, None] - (made * along[:, None] + level[:, None])
        if WIDE != WIDTH:
            g = tl.where((w < WIDTH)[None, :], g, 0.0)
        total += g
        into = dcolumn + (use * COLUMNS + c) * WIDTH + w
        tl.store(into, tl.sum(g, 0).to(dcolumn.dtype.element_ty), w < WIDTH)
    tl.store(ddigest + view.to(tl.int64) * TOKENS * WIDTH + at, total.to(ddigest.dtype.element_ty), there)


def uses_by_view(row: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Indices of `row`, grouped by view and in order within it, and the bounds of each view's group."""
    views, order = row.flatten().sort(stable=True)
    return order, torch.searchsorted(views, torch.arange(rows + 1, dtype=views.dtype, device=views.device))


def _empty(digest: Tensor, row: Tensor, column: Tensor, eps: float) -> list[Tensor]:
    """Normalised tokens of every use, and the inverse standard deviation of each before the norm."""
    (_, tokens, width), (n, k) = digest.shape, row.shape
    y = digest.new_empty(n, k * tokens, width, dtype=torch.promote_types(digest.dtype, column.dtype))
    return [y, digest.new_empty(n, k * tokens, dtype=torch.float32)]


def _forward(digest: Tensor, row: Tensor, column: Tensor, eps: float) -> list[Tensor]:
    (_, tokens, width), (n, k, columns, _) = digest.shape, column.shape
    y, scale = _empty(digest, row, column, eps)
    wide = triton.next_power_of_2(width)
    high = min(max(1, TILE // wide), triton.next_power_of_2(tokens))
    _gathered_views_forward[(n * k * triton.cdiv(tokens, high),)](
        digest.contiguous(), row.contiguous(), column.contiguous(), y, scale, eps,
        TOKENS=tokens, COLUMNS=columns, WIDTH=width, HIGH=high, WIDE=wide, num_warps=WARPS,
    )  # fmt: skip
    return [y, scale]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    (digest, row, column, _), (y, scale), (dy,) = args, made, gradients
    (rows, tokens, width), columns = digest.shape, column.shape[2]
    order, ends = uses_by_view(row, rows)
    ddigest, dcolumn = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (digest, column))
    high, wide = triton.next_power_of_2(tokens // columns), triton.next_power_of_2(width)
    _gathered_views_backward[(rows * columns,)](
        y, dy.contiguous(), scale, order, ends, ddigest, dcolumn,
        TOKENS=tokens, COLUMNS=columns, WIDTH=width, HIGH=high, WIDE=wide,
        num_warps=max(1, min(16, high * wide // NUMBERS_BACK)),
    )  # fmt: skip
    return ddigest, None, dcolumn, None


def _supports(digest: Tensor, row: Tensor, column: Tensor, eps: float) -> bool:
    (_, tokens, width), columns = digest.shape, column.shape[2]
    precise = all(part.dtype in (torch.float32, torch.bfloat16) for part in (digest, column))
    if not precise or 0 in (digest.numel(), column.numel()) or tokens % columns:
        return False
    wide = triton.next_power_of_2(width)
    return wide <= WIDEST and triton.next_power_of_2(tokens // columns) * wide <= TALLEST


gathered_views = Fast(_forward, _empty, _backward, _supports)
