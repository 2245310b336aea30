"""Biases, shortcuts and activations on a GPU: one launch forward; back, one and a small sum for the bias.

A tile is some pixels by some channels, and channels are what lies beside each other. On the way back a program walks
over its share of the pixels, so that it adds up the gradients of the bias in registers; what the programs found is
added up in a fixed order. One tensor is kept: what was made, where slopes can be told from it; else what went in.
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

TILE = 4_096
"""Numbers that a program looks at together: 16 in each thread, two or four loads of 16 bytes."""
WARPS = 8
MOST_CHANNELS = 256
"""Of one tile: more than a few hundred bytes beside each other are not read any faster."""
PROGRAMS = 4 * 132
"""On the way back: four for each multiprocessor of an H200 hide each other's waiting, and more are longer to add up."""


@triton.jit
def _one_over(t):  # pragma: no cover - runs on the GPU
    """1 / t for t >= 1: two instructions, where a division takes many, and there is little else to do here."""
    root = tl.rsqrt(t)
    return root * root


@triton.jit
def _normal(t):  # pragma: no cover - runs on the GPU
    """How much of a normal distribution lies below t, and exp(-t^2 / 2), of which it is made.

    Abramowitz and Stegun 7.1.26, good to 1e-7: as float32 is, and the slope wants the same exponential anyway.
    """
    bell = tl.exp(-0.5 * t * t)
    near = _one_over(1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(t))
    tail = 1.061405429 * near - 1.453152027
    tail = tail * near + 1.421413741
    tail = tail * near - 0.284496736
    tail = (tail * near + 0.254829592) * near * 0.5 * bell
    return tl.where(t > 0.0, 1.0 - tail, tail), bell


@triton.jit
def _logistic(t):  # pragma: no cover - runs on the GPU
    """1 / (1 + exp(-t)); nothing grows too large on the way."""
    small = tl.exp(-tl.abs(t))
    return tl.where(t > 0.0, 1.0, small) * _one_over(1.0 + small)


@triton.jit
def _act(t, KIND: tl.constexpr):  # pragma: no cover - runs on the GPU
    if KIND == "elu":
        below = tl.where(t > 0.0, 0.0, t)
        made = tl.where(t > 0.0, t, tl.exp(below) - 1.0)
    elif KIND == "silu":
        made = t * _logistic(t)
    else:
        share, bell = _normal(t)
        made = t * share
    return made


@triton.jit
def _slope(t, KIND: tl.constexpr):  # pragma: no cover - runs on the GPU
    if KIND == "elu":
        slope = tl.where(t > 0.0, 1.0, tl.exp(tl.where(t > 0.0, 0.0, t)))
    elif KIND == "silu":
        share = _logistic(t)
        slope = share * (1.0 + t * (1.0 - share))
    else:
        share, bell = _normal(t)
        slope = share + t * bell * 0.3989422804014327
    return slope


@triton.jit(do_not_specialize=["rows"])
def _activation_forward(
    x, r, bias, y, a, rows, KEEP: tl.constexpr, SHORTCUT: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    first = tl.program_id(0) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (first + row < rows)[:, None] & (column < CHANNELS)[None, :]
    begin = first.to(tl.int64) * CHANNELS
    at = row[:, None] * CHANNELS + column[None, :]
    total = tl.load(x + begin + at, there, 0.0).to(tl.float32)
    if SHORTCUT:
        total += tl.load(r + begin + at, there, 0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias + column, column < CHANNELS, 0.0)[None, :]
    if KEEP:
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + begin + at, rounded, there)
        total = rounded.to(tl.float32)
    tl.store(a + begin + at, _act(total, KIND).to(a.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows", "share"])
def _activation_backward(
    kept, bias, gy, ga, g, shares, rows, share, KEPT: tl.constexpr, GY: tl.constexpr, GA: tl.constexpr,
    LEARNS: tl.constexpr, KIND: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * share
    count = tl.minimum(share, rows - first)
    begin = first.to(tl.int64) * CHANNELS
    loose = tl.zeros([ROWS, COLUMNS], tl.float32)
    if KEPT == "before the bias":
        more = tl.load(bias + column, column < CHANNELS, 0.0)[None, :]
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < count)[:, None] & (column < CHANNELS)[None, :]
        at = row[:, None] * CHANNELS + column[None, :]
        into = tl.zeros([ROWS, COLUMNS], tl.float32)
        if GA:
            t = tl.load(kept + begin + at, there, 0.0).to(tl.float32)
            into = tl.load(ga + begin + at, there, 0.0).to(tl.float32)
            if KEPT == "made by an elu":
                into *= tl.where(t > 0.0, 1.0, t + 1.0)  # its slope is 1 above 0, and ELU + 1 below
            elif KEPT == "before the bias":
                into *= _slope(t + more, KIND)
            else:
                into *= _slope(t, KIND)
        if GY:
            into += tl.load(gy + begin + at, there, 0.0).to(tl.float32)
        if LEARNS:
            loose += into
        if GA:  # else it is gy itself
            tl.store(g + begin + at, into.to(g.dtype.element_ty), there)
    if LEARNS:
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
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format


def _sizes(x: Tensor) -> tuple[int, int]:
    """Pixels and channels."""
    channels = x.shape[1 if x.dim() == 4 else -1]
    return x.numel() // channels, channels


def _made(x: Tensor, r: Tensor | None, bias: Tensor | None, kind: str, keep: bool) -> tuple[Tensor, Tensor]:
    """The sum, if it is to be kept (else nothing to look at), and what was made of it."""
    rows, channels = _sizes(x)
    high, wide = tile_for(channels)
    a = torch.empty_like(x, memory_format=_like(x))
    y = torch.empty_like(x, memory_format=_like(x)) if keep else a
    _activation_forward[(triton.cdiv(rows, high), triton.cdiv(channels, wide))](
        x, x if r is None else r, x if bias is None else bias, y, a, rows,
        KEEP=keep, SHORTCUT=r is not None, BIAS=bias is not None, KIND=kind,
        CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS,
    )  # fmt: skip
    return y, a


def _gradients(
    kept: Tensor, how: str, bias: Tensor | None, gy: Tensor | None, ga: Tensor | None, kind: str, learners: Learners
) -> tuple[Tensor | None, Tensor | None]:
    """Of the sum and of the bias, from those of the sum and of what was made of it."""
    if gy is None and ga is None:
        return None, None
    gy, ga = (None if part is None else part.contiguous(memory_format=_like(kept)) for part in (gy, ga))
    if ga is None and not learners.count:
        return gy, None
    g = gy if ga is None else torch.empty_like(kept, memory_format=_like(kept))
    rows, channels = _sizes(kept)
    (high, wide), share = tile_for(channels), share_for(rows, channels)
    parts = triton.cdiv(rows, share)
    shares = kept.new_empty(parts, learners.count, channels, dtype=torch.float32)
    _activation_backward[(parts, triton.cdiv(channels, wide))](
        kept, kept if bias is None else bias, kept if gy is None else gy, kept if ga is None else ga, g, shares, rows,
        share, KEPT=how, GY=gy is not None, GA=ga is not None, LEARNS=learners.count > 0, KIND=kind,
        CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS,
    )  # fmt: skip
    (dbias,) = learners.gradients(shares)
    return g, dbias


class _Activated(torch.autograd.Function):
    """What was made, and gradients of the input and of the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        ctx.learners, ctx.kind = Learners(bias), kind
        bias = None if bias is None else bias.contiguous()
        _, a = _made(x, None, bias, kind, keep=False)
        ctx.how = "made by an elu" if kind == "elu" else "as it is" if bias is None else "before the bias"
        ctx.save_for_backward(*((a, None) if kind == "elu" else (x, bias)))
        return a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ga: Tensor) -> tuple[Tensor | None, ...]:
        kept, bias = ctx.saved_tensors
        return *_gradients(kept, ctx.how, bias, None, ga, ctx.kind, ctx.learners), None


class _Shortcut(torch.autograd.Function):
    """The sum and what was made of it, and gradients of all that was added up; kept is the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor | None, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.learners, ctx.kind = Learners(bias), kind
        y, a = _made(x, r, None if bias is None else bias.contiguous(), kind, keep=True)
        ctx.save_for_backward(y)
        return y, a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor | None, ga: Tensor | None) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        g, dbias = _gradients(y, "as it is", None, gy, ga, ctx.kind, ctx.learners)
        return g, g if ctx.needs_input_grad[1] else None, dbias, None


def activated(x: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """`activated_by_parts` for CUDA tensors: x in float32 or bfloat16, channels beside each other, and not empty."""
    return _Activated.apply(x, bias, kind)  # type: ignore[no-any-return]


def shortcut(x: Tensor, r: Tensor | None, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    """`shortcut_by_parts` for CUDA tensors: x and r alike, as `activated` wants x."""
    return _Shortcut.apply(x, r, bias, kind)  # type: ignore[no-any-return]
