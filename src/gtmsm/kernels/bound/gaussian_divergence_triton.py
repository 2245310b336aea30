"""The divergence between Gaussians on a GPU in one launch each way: a Triton program takes a few pairs of them."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = 512
"""Numbers of a code times pairs that a program looks at together: few, or there would be too few programs."""


@triton.jit
def _compared(
    mean, log_var, other_mean, other_log_var,
    mean_row, mean_column, log_var_row, log_var_column,
    other_mean_row, other_mean_column, other_log_var_row, other_log_var_column,
    row, i, used,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # How far the means are apart, one over the other variance, and the logarithm of the ratio of both variances. The
    # exponential of that is 1 for equal ones, to the bit, and large only where the ratio is: not so a product of two.
    off = tl.load(mean + row * mean_row + i * mean_column, used, 0.0)
    off -= tl.load(other_mean + row * other_mean_row + i * other_mean_column, used, 0.0)
    spread = tl.load(log_var + row * log_var_row + i * log_var_column, used, 0.0)
    other_spread = tl.load(other_log_var + row * other_log_var_row + i * other_log_var_column, used, 0.0)
    return off, tl.exp(-other_spread), spread - other_spread


@triton.jit
def _gaussian_divergence_forward(
    mean, log_var, other_mean, other_log_var, value,
    mean_row, mean_column, log_var_row, log_var_column,
    other_mean_row, other_mean_column, other_log_var_row, other_log_var_column,
    N, Z, ROWS: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, CODE], tl.float32)
    for first in range(0, Z, CODE):
        i = (first + tl.arange(0, CODE)).to(tl.int64)
        off, sharpness, log_ratio = _compared(
            mean, log_var, other_mean, other_log_var,
            mean_row, mean_column, log_var_row, log_var_column,
            other_mean_row, other_mean_column, other_log_var_row, other_log_var_column,
            row[:, None], i[None, :], (row < N)[:, None] & (i < Z)[None, :],
        )  # fmt: skip
        total += tl.exp(log_ratio) - 1.0 - log_ratio + off * off * sharpness  # 0 where nothing was read
    tl.store(value + row, 0.5 * tl.sum(total, 1), row < N)


@triton.jit
def _gaussian_divergence_backward(
    mean, log_var, other_mean, other_log_var, incoming, g_mean, g_log_var, g_other_mean, g_other_log_var,
    mean_row, mean_column, log_var_row, log_var_column,
    other_mean_row, other_mean_column, other_log_var_row, other_log_var_column, incoming_step,
    N, Z, MEAN_LEARNS: tl.constexpr, LOG_VAR_LEARNS: tl.constexpr, OTHER_MEAN_LEARNS: tl.constexpr,
    OTHER_LOG_VAR_LEARNS: tl.constexpr, ROWS: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.program_id(1).to(tl.int64) * CODE + tl.arange(0, CODE)[None, :]
    used = (row < N) & (i < Z)
    off, sharpness, log_ratio = _compared(
        mean, log_var, other_mean, other_log_var,
        mean_row, mean_column, log_var_row, log_var_column,
        other_mean_row, other_mean_column, other_log_var_row, other_log_var_column,
        row, i, used,
    )  # fmt: skip
    into = tl.load(incoming + row * incoming_step, row < N, 0.0)
    pull = into * off * sharpness
    wider = into * (tl.exp(log_ratio) - 1.0)
    there = row * Z + i
    if MEAN_LEARNS:
        tl.store(g_mean + there, pull, used)
    if LOG_VAR_LEARNS:
        tl.store(g_log_var + there, 0.5 * wider, used)
    if OTHER_MEAN_LEARNS:
        tl.store(g_other_mean + there, -pull, used)
    if OTHER_LOG_VAR_LEARNS:
        tl.store(g_other_log_var + there, -0.5 * (wider + pull * off), used)


def _tile(n: int, Z: int) -> dict[str, int]:
    """How many pairs a program takes, and how many threads that is worth: four numbers each."""
    code = min(triton.next_power_of_2(Z), AT_ONCE)
    rows = min(triton.next_power_of_2(n), AT_ONCE // code)
    return {"ROWS": rows, "CODE": code, "num_warps": max(rows * code // 128, 1)}


class _GaussianDivergence(torch.autograd.Function):
    """The divergence, and gradients of what learns from it."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        n, Z = parts[0].shape
        value, tile = parts[0].new_empty(n), _tile(n, Z)
        _gaussian_divergence_forward[(triton.cdiv(n, tile["ROWS"]),)](
            *parts, value, *(step for part in parts for step in part.stride()), n, Z, **tile
        )
        ctx.save_for_backward(*parts)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors
        n, Z = parts[0].shape
        gradients = [incoming.new_empty(n, Z) if learns else None for learns in ctx.needs_input_grad]
        names = ("MEAN_LEARNS", "LOG_VAR_LEARNS", "OTHER_MEAN_LEARNS", "OTHER_LOG_VAR_LEARNS")
        tile = _tile(n, Z)
        _gaussian_divergence_backward[(triton.cdiv(n, tile["ROWS"]), triton.cdiv(Z, tile["CODE"]))](
            *parts, incoming, *(incoming if gradient is None else gradient for gradient in gradients),
            *(step for part in (*parts, incoming) for step in part.stride()),
            n, Z, **dict(zip(names, ctx.needs_input_grad, strict=True)), **tile,
        )  # fmt: skip
        return tuple(gradients)


def gaussian_divergence(mean: Tensor, log_var: Tensor, other_mean: Tensor, other_log_var: Tensor) -> Tensor:
    """`gaussian_divergence_by_parts` for float32 CUDA tensors."""
    return _GaussianDivergence.apply(mean, log_var, other_mean, other_log_var)  # type: ignore[no-any-return]
