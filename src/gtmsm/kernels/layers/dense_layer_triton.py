"""A dense layer on a GPU: one launch forward; in the backward pass one for the input and one for the parameters.

Bias and ELU are applied to a tile of the product before it is stored. The backward pass applies the slope of the ELU
to what it loads. Gradients of parameters are few tiles, each a sum over many rows: the rows are split among enough
programs to fill a GPU, which add up their results by atomic additions, in no fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors
from gtmsm.kernels.precision import Precision, products_of

WIDEST = 256
"""Maximum number of inputs and outputs: with more, cuBLAS is faster (walk, whose networks are 512 wide, by 2%)."""
MOST_EXACT = 2**28
"""Maximum number of products of float32 numbers that must not be rounded to TF32: they use no tensor cores, and cuBLAS
is three times as fast."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H200, for which tiles are chosen; on other GPUs they are slower, but as correct."""
ALMOST_FULL = 120
"""Number of programs from which larger tiles pay: with slightly fewer than multiprocessors, hardly any is idle."""
FEWEST_ROWS = 128
"""Minimum rows of a program that adds up gradients of parameters: with fewer, adding up the parts takes longer."""
BIASES_AT_ONCE = 4_096
"""Gradients that one program adds up at a time for the bias: 32 in each thread, few enough for its registers."""
STAGES = 3
"""Steps of a loop in flight at once: few enough that several programs share a multiprocessor."""


class Tile(NamedTuple):
    """The part of a product that one program computes, and the depth that it takes at a time."""

    ROWS: int
    COLUMNS: int
    DEPTH: int


DEEPEST: dict[Precision, int] = {"bfloat16": 64, "tf32": 32, "ieee": 16}
"""Depth of a tile: 128 bytes, best for the banks of shared memory; without tensor cores, what registers can hold."""


def _fit(size: int, most: int) -> int:
    """Size of a tile along an axis: a power of two from 16 on, and more than 64 only if it divides the axis."""
    block = min(most, max(16, triton.next_power_of_2(size)))
    return block if block <= 64 or size % block == 0 else 64


def tile_for(rows: int, columns: int, depth: int, precision: Precision, turned: bool = False) -> Tile:
    """The tile of a product [rows, depth] x [depth, columns]; turned: the second is stored row by row.

    Tiles of 64 x 64 are read from the cache fast enough, and several fit on a multiprocessor, so that one computes
    while another waits. With much work, 128 x 64 reads less; with little work, lower tiles fill the GPU. Hopper's own
    instructions, which need 64 rows, take turned float32 only after moving each number by itself, with bank conflicts;
    lower tiles use Ampere's instructions, which need no such moves.
    """
    low = turned and precision == "tf32"
    high, wide = 32 if low else 64, _fit(columns, 128 if low else 64)
    across = triton.cdiv(columns, wide)
    if not low and precision != "ieee" and triton.cdiv(rows, 128) * across >= 4 * MULTIPROCESSORS:
        high = 128
    while high > 16 and triton.cdiv(rows, high) * across < ALMOST_FULL:
        high //= 2
    return Tile(high, wide, _fit(depth, DEEPEST[precision]))


def share_for(n: int, outputs: int, inputs: int, precision: Precision) -> tuple[Tile, int]:
    """For gradients of weights: the tile of [outputs, n] x [n, inputs], and the number of the n rows per program.

    Twice as many programs as multiprocessors, if there are enough rows: two hide each other's latency.
    """
    high, wide = (32, 128) if precision == "tf32" else (64, 64)  # both are turned: see `tile_for`
    high, wide, most = _fit(outputs, high), _fit(inputs, wide), triton.cdiv(n, FEWEST_ROWS)
    while wide > 32 and triton.cdiv(outputs, high) * triton.cdiv(inputs, wide) * most < ALMOST_FULL:
        wide //= 2
    tiles = triton.cdiv(outputs, high) * triton.cdiv(inputs, wide)
    parts = min(triton.cdiv(2 * MULTIPROCESSORS, tiles), most)
    tile = Tile(high, wide, DEEPEST[precision])
    return tile, triton.cdiv(triton.cdiv(n, parts), tile.DEPTH) * tile.DEPTH


@triton.jit
def _into_product(y, dy, row, column, there, outputs, dy_row, dy_column, ELU: tl.constexpr):  # pragma: no cover - GPU
    """Gradients of the input of the ELU: ELU' is 1 above 0, and ELU + 1 below."""
    row = row.to(tl.int64)
    g = tl.load(dy + row * dy_row + column * dy_column, there, 0.0).to(tl.float32)
    if ELU:
        made = tl.load(y + row * outputs + column, there, 0.0).to(tl.float32)
        g *= tl.where(made > 0.0, 1.0, made + 1.0)
    return g


@triton.jit(do_not_specialize=["n"])
def _dense_layer_rows(
    x, weight, bias, y, made, n, depth, columns, x_row, x_column, w_depth, w_column, b_stride,
    FORWARD: tl.constexpr, ELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Forward: x is the input, y the output. Backward: x is the gradient of the output `made`, y that of the input."""
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < n, column < columns
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, depth, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        there = is_row[:, None] & (k < depth)[None, :]
        if FORWARD:
            a = tl.load(x + row.to(tl.int64)[:, None] * x_row + k[None, :] * x_column, there, 0.0)
        else:
            a = _into_product(made, x, row[:, None], k[None, :], there, depth, x_row, x_column, ELU)
        w_at = weight + k[:, None] * w_depth + column[None, :] * w_column
        b = tl.load(w_at, (k < depth)[:, None] & is_column[None, :], 0.0)
        if PRECISION == "bfloat16":
            total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
        else:
            total = tl.dot(a.to(tl.float32), b, total, input_precision=PRECISION)
    if FORWARD:
        total += tl.load(bias + column * b_stride, is_column, 0.0)[None, :]
        if ELU:
            below = tl.where(total > 0.0, 0.0, total)
            total = tl.where(total > 0.0, total, tl.exp(below) - 1.0)
    y_at = y + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(y_at, total.to(y.dtype.element_ty), is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["n"])
def _dense_layer_into_parameters(
    x, y, dy, sums, n, share, inputs, outputs, x_row, x_column, dy_row, dy_column,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    across = tl.cdiv(inputs, COLUMNS)
    tile = tl.program_id(0)
    tiles = tl.cdiv(outputs, ROWS) * across
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, n)
    if tile < tiles:
        output = (tile // across) * ROWS + tl.arange(0, ROWS)
        column = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
        is_output, is_column = output < outputs, column < inputs
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in range(first, last, DEPTH):
            row = begin + tl.arange(0, DEPTH)
            is_row = row < last
            there = is_output[:, None] & is_row[None, :]
            g = _into_product(y, dy, row[None, :], output[:, None], there, outputs, dy_row, dy_column, ELU)
            x_at = x + row.to(tl.int64) * x_row
            b = tl.load(x_at[:, None] + column[None, :] * x_column, is_row[:, None] & is_column[None, :], 0.0)
            if ELU:
                # Through registers, too: else Triton overwrites those of g while Hopper still multiplies them
                # (triton-lang/triton#9433), and one gradient in some 50,000 updates is not finite.
                b = tl.where(is_row[:, None], b, 0.0)
            if PRECISION == "bfloat16":
                total = tl.dot(g.to(tl.bfloat16), b.to(tl.bfloat16), total)
            else:
                total = tl.dot(g, b.to(tl.float32), total, input_precision=PRECISION)
        at = sums + output[:, None] * inputs + column[None, :]
        tl.atomic_add(at, total, is_output[:, None] & is_column[None, :], sem="relaxed")
    else:
        # the bias, by programs of its own: within those of the product, each g would be read again in another layout
        output = (tile - tiles) * ROWS + tl.arange(0, ROWS)
        is_output = output < outputs
        loose = tl.zeros([AT_ONCE, ROWS], tl.float32)
        for begin in range(first, last, AT_ONCE):
            row = begin + tl.arange(0, AT_ONCE)
            there = (row < last)[:, None] & is_output[None, :]
            loose += _into_product(y, dy, row[:, None], output[None, :], there, outputs, dy_row, dy_column, ELU)
        tl.atomic_add(sums + outputs * inputs + output, tl.sum(loose, 0), is_output, sem="relaxed")


def _forward(x: Tensor, weight: Tensor, bias: Tensor, elu: bool, made: torch.dtype) -> list[Tensor]:
    (outputs, inputs), n, precision = weight.shape, len(x), _precision(x, made)
    y = x.new_empty(n, outputs, dtype=made)
    tile = tile_for(n, outputs, inputs, precision)
    _dense_layer_rows[(triton.cdiv(n, tile.ROWS) * triton.cdiv(outputs, tile.COLUMNS),)](
        x, weight, bias, y, y, n, inputs, outputs, *x.stride(), *reversed(weight.stride()), *bias.stride(),
        FORWARD=True, ELU=elu, PRECISION=precision, **tile._asdict(), num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    return [y]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    (x, weight, _, elu, kind), (y,), (dy,) = args, made, gradients
    (outputs, inputs), n, precision = weight.shape, len(x), _precision(x, kind)
    dx = dweight = dbias = None
    if needed[0]:
        dx = torch.empty(n, inputs, dtype=x.dtype, device=x.device)
        tile = tile_for(n, inputs, outputs, precision, turned=True)
        _dense_layer_rows[(triton.cdiv(n, tile.ROWS) * triton.cdiv(inputs, tile.COLUMNS),)](
            dy, weight, weight, dx, y, n, outputs, inputs, *dy.stride(), *weight.stride(), 1,
            FORWARD=False, ELU=elu, PRECISION=precision, **tile._asdict(), num_warps=4, num_stages=STAGES,
        )  # fmt: skip
    if needed[1] or needed[2]:
        tile, share = share_for(n, outputs, inputs, precision)
        parts = triton.cdiv(n, share)
        tiles = triton.cdiv(outputs, tile.ROWS) * (triton.cdiv(inputs, tile.COLUMNS) + 1)  # one more for the bias
        sums = weight.new_zeros(outputs * inputs + outputs)  # weights, then biases
        _dense_layer_into_parameters[(tiles, parts)](
            x, y, dy, sums, n, share, inputs, outputs, *x.stride(), *dy.stride(), ELU=elu, PRECISION=precision,
            **tile._asdict(), AT_ONCE=BIASES_AT_ONCE // tile.ROWS, num_warps=4, num_stages=STAGES,
        )  # fmt: skip
        dweight, dbias = sums[: weight.numel()].view(outputs, inputs), sums[weight.numel() :]
    return dx, dweight, dbias, None, None


def _precision(x: Tensor, made: torch.dtype) -> Precision:
    """Precision of products."""
    return "bfloat16" if made == torch.bfloat16 else products_of(x.dtype)


def _supports(x: Tensor, weight: Tensor, bias: Tensor, elu: bool, made: torch.dtype) -> bool:
    usual = weight.dtype == bias.dtype == torch.float32 and {x.dtype, made} <= {torch.float32, torch.bfloat16}
    products = len(x) * weight.numel()
    if not usual or products == 0 or max(weight.shape) > WIDEST:
        return False
    return products <= MOST_EXACT or _precision(x, made) != "ieee"


dense_layer = Fast(_forward, None, _backward, _supports)
