"""Biases, shortcuts and activations on a GPU: one launch forward; one backward, and a small sum for the bias.

A tile is some pixels by some channels; the channels of a pixel are contiguous. Backward, a program loops over
its share of the pixels and adds up the gradients of the bias in registers; the results of all programs are added up in
a fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors

MOST = 2**31
"""Upper bound of a tensor's size: 32 bits count its pixels."""
TILE = 4_096
"""Numbers that a program takes together: 16 in each thread, two or four loads of 16 bytes."""
WARPS = 8
MOST_CHANNELS = 256
"""Maximum number of channels of one tile: more than a few hundred contiguous bytes are not read any faster."""
PROGRAMS = 4 * 132
"""Programs of the backward pass: four per multiprocessor of an H200 hide each other's latency; more take longer to
add up."""


@triton.jit
def _one_over(t):  # pragma: no cover - runs on the GPU
    """1 / t for t >= 1: two instructions, where a division takes many, and there is little else to do here."""
    root = tl.rsqrt(t)
    return root * root


@triton.jit
def _normal(t):  # pragma: no cover - runs on the GPU
    """The normal distribution function at t, and exp(-t^2 / 2), which the slope of GELU needs as well.

    Abramowitz and Stegun 7.1.26: good to 1e-7, as float32 is.
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
    """1 / (1 + exp(-t)), without overflow."""
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
        below, bell = _normal(t)
        made = t * below
    return made


@triton.jit
def _slope(t, KIND: tl.constexpr):  # pragma: no cover - runs on the GPU
    if KIND == "elu":
        slope = tl.where(t > 0.0, 1.0, tl.exp(tl.where(t > 0.0, 0.0, t)))
    elif KIND == "silu":
        gate = _logistic(t)
        slope = gate * (1.0 + t * (1.0 - gate))
    else:
        below, bell = _normal(t)
        slope = below + t * bell * 0.3989422804014327
    return slope


@triton.jit(do_not_specialize=["rows"])
def _activation_forward(
    x, r, bias, y, a, rows, KEEP: tl.constexpr, SHORTCUT: tl.constexpr, KIND: tl.constexpr,
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
    total += tl.load(bias + column, column < CHANNELS, 0.0)[None, :]
    if KEEP:
        rounded = total.to(y.dtype.element_ty)
        tl.store(y + begin + at, rounded, there)
        total = rounded.to(tl.float32)
    tl.store(a + begin + at, _act(total, KIND).to(a.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows", "share"])
def _activation_backward(
    kept, bias, gy, ga, g, shares, rows, share, KEPT: tl.constexpr, GY: tl.constexpr,
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
        tl.store(g + begin + at, into.to(g.dtype.element_ty), there)
    if LEARNS:
        tl.store(shares + tl.program_id(0) * CHANNELS + column, tl.sum(loose, 0), column < CHANNELS)


def tile_for(channels: int) -> tuple[int, int]:
    """Number of pixels and of channels that a program takes together."""
    columns = min(MOST_CHANNELS, triton.next_power_of_2(channels))
    return TILE // columns, columns


def share_for(rows: int, channels: int) -> int:
    """Number of pixels that a program loops over in the backward pass: a whole number of tiles."""
    high, wide = tile_for(channels)
    parts = max(1, PROGRAMS // triton.cdiv(channels, wide))
    return triton.cdiv(triton.cdiv(rows, parts), high) * high


def _like(x: Tensor) -> torch.memory_format:
    """The memory format in which the channels of a pixel are contiguous."""
    return torch.channels_last if x.dim() == 4 else torch.contiguous_format


def _sizes(x: Tensor) -> tuple[int, int]:
    """Number of pixels and of channels."""
    channels = x.shape[1 if x.dim() == 4 else -1]
    return x.numel() // channels, channels


def _launch(x: Tensor, r: Tensor | None, bias: Tensor, kind: str, y: Tensor, a: Tensor, keep: bool) -> None:
    """Fill a with the activated sum, and y with the sum if it is to be kept."""
    rows, channels = _sizes(x)
    high, wide = tile_for(channels)
    _activation_forward[(triton.cdiv(rows, high), triton.cdiv(channels, wide))](
        x, x if r is None else r, bias.contiguous(), y, a, rows, KEEP=keep, SHORTCUT=r is not None, KIND=kind,
        CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS,
    )  # fmt: skip


def _gradients(
    kept: Tensor, how: str, bias: Tensor, gy: Tensor | None, ga: Tensor, kind: str, learns: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the sum and of the bias, from those of the sum and of its activation."""
    as_kept = _like(kept)
    gy, ga = None if gy is None else gy.contiguous(memory_format=as_kept), ga.contiguous(memory_format=as_kept)
    g = torch.empty_like(kept, memory_format=as_kept)
    rows, channels = _sizes(kept)
    (high, wide), share = tile_for(channels), share_for(rows, channels)
    parts = triton.cdiv(rows, share)
    shares = kept.new_empty(parts, channels if learns else 0, dtype=torch.float32)
    _activation_backward[(parts, triton.cdiv(channels, wide))](
        kept, bias.contiguous(), kept if gy is None else gy, ga, g, shares, rows, share,
        KEPT=how, GY=gy is not None, LEARNS=learns, KIND=kind,
        CHANNELS=channels, ROWS=high, COLUMNS=wide, num_warps=WARPS,
    )  # fmt: skip
    return g, shares.sum(0) if learns else None


def _empty(x: Tensor, bias: Tensor, kind: str, made: torch.dtype | None = None) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=_like(x), dtype=made)]


def _forward(x: Tensor, bias: Tensor, kind: str, made: torch.dtype | None) -> list[Tensor]:
    (a,) = _empty(x, bias, kind, made)
    _launch(x, None, bias, kind, a, a, keep=False)
    return [a]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    x, bias, kind, _ = args
    by_result = kind == "elu" and made[0].dtype == x.dtype
    kept, how = (made[0], "made by an elu") if by_result else (x, "before the bias")
    return *_gradients(kept, how, bias, None, gradients[0], kind, needed[1]), None, None


def _shortcut_empty(x: Tensor, r: Tensor | None, bias: Tensor, kind: str) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=_like(x)) for _ in ("y", "a")]


def _shortcut_forward(x: Tensor, r: Tensor | None, bias: Tensor, kind: str) -> list[Tensor]:
    y, a = _shortcut_empty(x, r, bias, kind)
    _launch(x, r, bias, kind, y, a, keep=True)
    return [y, a]


def _shortcut_backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    g, dbias = _gradients(made[0], "as it is", args[2], gradients[0], gradients[1], args[3], needed[2])
    return g, g if needed[1] else None, dbias, None


def _channels_beside(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=_like(x))


def _supports(x: Tensor, bias: Tensor, kind: str, made: torch.dtype | None = None) -> bool:
    usual = {x.dtype, made or x.dtype} <= {torch.float32, torch.bfloat16} and x.dim() >= 2 and 0 < x.numel() < MOST
    return usual and _channels_beside(x) and bias.dtype == torch.float32 and len(bias) == _sizes(x)[1]


def _shortcut_supports(x: Tensor, r: Tensor | None, bias: Tensor, kind: str) -> bool:
    alike = r is None or (x.dtype == r.dtype and x.shape == r.shape and _channels_beside(r))
    return alike and _supports(x, bias, kind)


activated = Fast(_forward, _empty, _backward, _supports)
shortcut = Fast(_shortcut_forward, _shortcut_empty, _shortcut_backward, _shortcut_supports)
