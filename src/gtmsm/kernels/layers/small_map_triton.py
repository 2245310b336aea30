"""A small matrix on a GPU: a row for each thread on the way forward, with no product but those of plain float32.

The way back is one launch for the rows, which also leaves every program's share of the matrix's gradient, and one that
adds these up in a fixed order. Rows are found by their strides: an action that is the same for a whole batch, or a part
of a longer clip, is never copied.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 128
"""Per program on the way forward: one for each thread."""
MOST_ROWS = 256
"""Per program on the way back: so many that few shares are left to add up, and so few that a GPU is full."""
TILE = 2048
"""Numbers of x that a program looks at together on the way back: sixteen in each thread."""


@triton.jit
def _small_map_forward(
    x, M, y, rows, inner, x_outer, x_inner, x_axis, M_row, M_axis,
    A: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    used = row < rows
    x += (row // inner).to(tl.int64) * x_outer + (row % inner).to(tl.int64) * x_inner
    y += row.to(tl.int64) * D
    for d in tl.static_range(D):
        total = tl.zeros([ROWS], tl.float32)
        for a in tl.static_range(A):  # the second time round, all of it is in the cache
            total += tl.load(x + a * x_axis, used, 0.0) * tl.load(M + d * M_row + a * M_axis)
        tl.store(y + d, total, used)


@triton.jit
def _small_map_backward(
    x, M, incoming, g_x, shares, rows, inner, x_outer, x_inner, x_axis, M_row, M_axis, in_outer, in_inner, in_axis,
    A: tl.constexpr, D: tl.constexpr, INTO_X: tl.constexpr, INTO_M: tl.constexpr,
    ROWS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    used = row < rows
    outer, within = (row // inner).to(tl.int64), (row % inner).to(tl.int64)
    a = tl.arange(0, INPUTS)
    both = used[:, None] & (a < A)[None, :]
    incoming += outer * in_outer + within * in_inner
    shares += tl.program_id(0).to(tl.int64) * (D * A)
    if INTO_M:
        at = tl.load(x + (outer * x_outer + within * x_inner)[:, None] + a[None, :] * x_axis, both, 0.0)
    into_x = tl.zeros([ROWS, INPUTS], tl.float32)
    for d in tl.static_range(D):
        asked = tl.load(incoming + d * in_axis, used, 0.0)[:, None]
        if INTO_M:
            tl.store(shares + d * A + a, tl.sum(asked * at, 0), a < A)
        if INTO_X:
            into_x += asked * tl.load(M + d * M_row + a * M_axis, a < A, 0.0)[None, :]
    if INTO_X:
        tl.store(g_x + row.to(tl.int64)[:, None] * A + a[None, :], into_x, both)


def _in_two(x: Tensor) -> Tensor:
    """All axes before the last as two: no copy where there are no more than that, however they lie."""
    return x.reshape(-1, *x.shape[-2:]) if x.dim() > 1 else x[None, None]


class _SmallMap(torch.autograd.Function):
    """Rows after the matrix, and gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, M: Tensor) -> Tensor:
        by_row, (D, A) = _in_two(x), M.shape
        y = x.new_empty(*x.shape[:-1], D)
        rows = y.numel() // D
        _small_map_forward[(triton.cdiv(rows, ROWS),)](
            by_row, M, y, rows, by_row.shape[1], *by_row.stride(), *M.stride(), A=A, D=D, ROWS=ROWS, num_warps=4
        )
        ctx.save_for_backward(x, M)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, M = ctx.saved_tensors
        into_x, into_M = ctx.needs_input_grad
        by_row, asked, (D, A) = _in_two(x), _in_two(incoming), M.shape
        wide, rows = triton.next_power_of_2(A), incoming.numel() // D
        at_once = min(MOST_ROWS, TILE // wide)
        programs = triton.cdiv(rows, at_once)
        shares = x.new_empty(programs, D * A)
        g_x = x.new_empty(x.shape) if into_x else shares
        _small_map_backward[(programs,)](
            by_row, M, asked, g_x, shares, rows, by_row.shape[1], *by_row.stride(), *M.stride(), *asked.stride(),
            A=A, D=D, INTO_X=into_x, INTO_M=into_M, ROWS=at_once, INPUTS=wide, num_warps=4,
        )  # fmt: skip
        return g_x if into_x else None, shares.sum(0).view(D, A) if into_M else None


def apply(x: Tensor, M: Tensor) -> Tensor:
    """`small_map_by_parts` for float32 CUDA tensors and a matrix of few numbers."""
    return _SmallMap.apply(x, M)  # type: ignore[no-any-return]
