"""A dense layer on a GPU: one launch forward; back, one for the input (if it learns) and two for the parameters.

Nothing lies between the parts: bias and ELU are applied to a tile of the product before it is stored, the slope of the
ELU while the way back loads what it multiplies. Gradients of parameters are few tiles, each a sum over many rows: rows
are shared out among enough programs to fill a GPU, and what these found is added up in a fixed order.

Bytes are exact in any precision, so products are of bytes, and their sum is divided by 255.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.choice import Precision, products_of
from gtmsm.kernels.gradients.aside import aside, noted
from gtmsm.kernels.gradients.sinks import sinks_of
from gtmsm.kernels.gradients.sums_triton import summed

MULTIPROCESSORS = 132
"""Of the GPU that tiles are chosen for, an H200; on another they are less good, and no less right."""
ALMOST_FULL = 120
"""Programs that are worth larger tiles: with a few less than one for each multiprocessor hardly any is idle."""
FEWEST_ROWS = 128
"""Of one program that adds up gradients of parameters: with less it would mostly store what others then read."""
BIASES_AT_ONCE = 4_096
"""Gradients that one program adds up at a time for the bias: 32 in each thread, few enough for its registers."""
STAGES, STAGES_GATHERED = 3, 4
"""Steps of a loop under way at once: few enough that several programs share a multiprocessor. Where a step first reads
which rows it wants, half of them are spent on that."""


class Tile(NamedTuple):
    """Which part of a product is one program's, and how much of its depth it takes at a time."""

    ROWS: int
    COLUMNS: int
    DEPTH: int


DEEPEST: dict[Precision, int] = {"bfloat16": 64, "tf32": 32, "ieee": 16}
"""128 bytes at a time, as the banks of shared memory like best; without tensor cores, what registers can hold."""


def _fit(size: int, most: int) -> int:
    """How much of an axis a tile takes: a power of two from 16 on, and more than 64 only where nothing is left over."""
    block = min(most, max(16, triton.next_power_of_2(size)))
    return block if block <= 64 or size % block == 0 else 64


def tile_for(rows: int, columns: int, depth: int, precision: Precision, turned: bool = False) -> Tile:
    """The tile of a product [rows, depth] x [depth, columns]; turned: the second is stored row by row.

    64 x 64 is read from the cache fast enough, and several fit on a multiprocessor, so that one computes while another
    waits; 128 x 64 reads less where there is plenty of work, lower tiles fill the GPU where there is little. Hopper's
    own instructions, which want 64 rows, take turned float32 only after each number was moved alone, with conflicts
    between banks; lower tiles are left to those of Ampere, which do not mind.
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
    """For gradients of weights: the tile of [outputs, n] x [n, inputs], and how many of the n rows a program adds up.

    Twice as many programs as multiprocessors where there are rows enough: two hide each other's waiting.
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
def _input_rows(x, rows, row, there, stride, GATHERED: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Where rows of the input begin; 64 bits, since a table may be larger than 2 GB."""
    at = tl.load(rows + row, there, 0) if GATHERED else row
    return x + at.to(tl.int64) * stride


@triton.jit
def _into_product(y, dy, row, column, there, outputs, dy_row, dy_column, ELU: tl.constexpr):  # pragma: no cover - GPU
    """Gradients of what the ELU was given: ELU' is 1 above 0, and ELU + 1 below."""
    row = row.to(tl.int64)
    g = tl.load(dy + row * dy_row + column * dy_column, there, 0.0).to(tl.float32)
    if ELU:
        made = tl.load(y + row * outputs + column, there, 0.0).to(tl.float32)
        g *= tl.where(made > 0.0, 1.0, made + 1.0)
    return g


@triton.jit(do_not_specialize=["n"])
def _dense_layer_forward(
    x, rows, weight, bias, y, n, inputs, outputs, x_row, x_column, w_row, w_column, b_stride,
    GATHERED: tl.constexpr, BYTES: tl.constexpr, ELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    across = tl.cdiv(outputs, COLUMNS)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < n, column < outputs
    x_at = _input_rows(x, rows, row, is_row, x_row, GATHERED)
    w_at = weight + column.to(tl.int64) * w_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, inputs, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        a = tl.load(x_at[:, None] + k[None, :] * x_column, is_row[:, None] & (k < inputs)[None, :], 0)
        b = tl.load(w_at[None, :] + k[:, None] * w_column, is_column[None, :] & (k < inputs)[:, None], 0.0)
        if PRECISION == "bfloat16":
            total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
        else:
            total = tl.dot(a.to(tl.float32), b, total, input_precision=PRECISION)
    if BYTES:
        total *= 1.0 / 255.0
    total += tl.load(bias + column * b_stride, is_column, 0.0)[None, :]
    if ELU:
        below = tl.where(total > 0.0, 0.0, total)
        total = tl.where(total > 0.0, total, tl.exp(below) - 1.0)
    y_at = y + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(y_at, total.to(y.dtype.element_ty), is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["n"])
def _dense_layer_into_input(
    y, dy, weight, dx, n, inputs, outputs, dy_row, dy_column, w_row, w_column,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    across = tl.cdiv(inputs, COLUMNS)
    row = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < n, column < inputs
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, outputs, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        there = is_row[:, None] & (k < outputs)[None, :]
        g = _into_product(y, dy, row[:, None], k[None, :], there, outputs, dy_row, dy_column, ELU)
        w_at = weight + k.to(tl.int64)[:, None] * w_row + column[None, :] * w_column
        b = tl.load(w_at, (k < outputs)[:, None] & is_column[None, :], 0.0)
        if PRECISION == "bfloat16":
            total = tl.dot(g.to(tl.bfloat16), b.to(tl.bfloat16), total)
        else:
            total = tl.dot(g, b, total, input_precision=PRECISION)
    dx_at = dx + row.to(tl.int64)[:, None] * inputs + column[None, :]
    tl.store(dx_at, total.to(dx.dtype.element_ty), is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["n"])
def _dense_layer_into_parameters(
    x, rows, y, dy, shares, biases, n, share, inputs, outputs, x_row, x_column, dy_row, dy_column,
    SINKS: tl.constexpr, GATHERED: tl.constexpr, BYTES: tl.constexpr, ELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    across = tl.cdiv(inputs, COLUMNS)
    tile = tl.program_id(0)
    tiles = tl.cdiv(outputs, ROWS) * across
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, n)
    if not SINKS:  # one row of `shares` is all weights, then all biases: both are contiguous once rows are added up
        weights = outputs * inputs
        shares += tl.program_id(1).to(tl.int64) * (weights + outputs)
        biases = shares + weights
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
            x_at = _input_rows(x, rows, row, is_row, x_row, GATHERED)
            b = tl.load(x_at[:, None] + column[None, :] * x_column, is_row[:, None] & is_column[None, :], 0)
            if PRECISION == "bfloat16":
                total = tl.dot(g.to(tl.bfloat16), b.to(tl.bfloat16), total)
            else:
                total = tl.dot(g, b.to(tl.float32), total, input_precision=PRECISION)
        if BYTES:
            total *= 1.0 / 255.0
        at = shares + output[:, None] * inputs + column[None, :]
        if SINKS:
            tl.atomic_add(at, total, is_output[:, None] & is_column[None, :], sem="relaxed")
        else:
            tl.store(at, total, is_output[:, None] & is_column[None, :])
    else:
        # the bias, by programs of its own: beside a product it would read each g again, laid out otherwise
        output = (tile - tiles) * ROWS + tl.arange(0, ROWS)
        is_output = output < outputs
        loose = tl.zeros([AT_ONCE, ROWS], tl.float32)
        for begin in range(first, last, AT_ONCE):
            row = begin + tl.arange(0, AT_ONCE)
            there = (row < last)[:, None] & is_output[None, :]
            loose += _into_product(y, dy, row[:, None], output[None, :], there, outputs, dy_row, dy_column, ELU)
        if SINKS:
            tl.atomic_add(biases + output, tl.sum(loose, 0), is_output, sem="relaxed")
        else:
            tl.store(biases + output, tl.sum(loose, 0), is_output)


class _DenseLayer(torch.autograd.Function):
    """The layer and its gradients; what is saved is what was given and what was made."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, elu: bool, rows: Tensor | None, half: bool, made: torch.dtype
    ) -> Tensor:
        outputs, inputs = weight.shape
        n = len(x if rows is None else rows)
        y = x.new_empty(n, outputs, dtype=made)
        rows = None if rows is None else rows.contiguous()
        ctx.save_for_backward(x, weight, rows, y if elu else None)
        ctx.noted, ctx.sinks = noted(weight, bias), sinks_of(weight, bias)
        ctx.precision = "bfloat16" if half else products_of(x.dtype)
        ctx.kind = {"GATHERED": rows is not None, "BYTES": x.dtype == torch.uint8, "ELU": elu}
        tile = tile_for(n, outputs, inputs, ctx.precision)
        programs = triton.cdiv(n, tile.ROWS) * triton.cdiv(outputs, tile.COLUMNS)
        _dense_layer_forward[(programs,)](
            x, x if rows is None else rows, weight, bias, y, n, inputs, outputs,
            *x.stride(), *weight.stride(), *bias.stride(),
            **ctx.kind, PRECISION=ctx.precision, **tile._asdict(), num_warps=4, num_stages=STAGES,
        )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rows, y = ctx.saved_tensors
        (outputs, inputs), n = weight.shape, len(dy)
        y = dy if y is None else y  # not looked at where there is no ELU
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty(n, inputs, dtype=x.dtype, device=x.device)
            tile = tile_for(n, inputs, outputs, ctx.precision, turned=True)
            programs = triton.cdiv(n, tile.ROWS) * triton.cdiv(inputs, tile.COLUMNS)
            _dense_layer_into_input[(programs,)](
                y, dy, weight, dx, n, inputs, outputs, *dy.stride(), *weight.stride(),
                ELU=ctx.kind["ELU"], PRECISION=ctx.precision, **tile._asdict(),
                num_warps=4, num_stages=STAGES,
            )  # fmt: skip
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            tile, share = share_for(n, outputs, inputs, ctx.precision)
            parts = triton.cdiv(n, share)
            tiles = triton.cdiv(outputs, tile.ROWS) * (triton.cdiv(inputs, tile.COLUMNS) + 1)  # one more for the bias
            with aside(dy, x, y, rows, learning=() if ctx.sinks else ctx.noted):
                shares, biases = ctx.sinks or [weight.new_empty(parts, outputs * inputs + outputs)] * 2
                _dense_layer_into_parameters[(tiles, parts)](
                    x, x if rows is None else rows, y, dy, shares, biases, n, share, inputs, outputs,
                    *x.stride(), *dy.stride(), SINKS=ctx.sinks is not None, **ctx.kind,
                    PRECISION=ctx.precision, **tile._asdict(), AT_ONCE=BIASES_AT_ONCE // tile.ROWS, num_warps=4,
                    num_stages=STAGES if rows is None else STAGES_GATHERED,
                )  # fmt: skip
                if ctx.sinks is None:
                    found = summed(shares) if parts > 1 else shares[0]
                    dweight, dbias = found[: outputs * inputs].view(outputs, inputs), found[outputs * inputs :]
        return dx, dweight, dbias, None, None, None, None


def layer(
    x: Tensor, weight: Tensor, bias: Tensor, elu: bool, rows: Tensor | None, half: bool, made: torch.dtype
) -> Tensor:
    """`dense_layer_by_parts` for CUDA tensors: x in float32, bfloat16 or bytes, parameters in float32, none empty."""
    return _DenseLayer.apply(x, weight, bias, elu, rows, half, made)  # type: ignore[no-any-return]
