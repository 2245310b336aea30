"""Codes on a GPU in one launch each way: a Triton program takes some rows apart, asked or memorised or both."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.bound.drawn_codes import DrawnCodes

AT_ONCE = 512
"""Numbers of a code times rows that a program looks at together: few, or there would be too few programs."""


@triton.jit
def _drawn_codes_forward(
    both, noise, mean, log_var, z, bank_mean, bank_log_var,
    both_row, both_column, noise_row, noise_column, lowest, highest, N, ASKED,
    Z: tl.constexpr, HAS_NOISE: tl.constexpr, ROWS: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, CODE)[None, :]
    used = (row < N) & (i < Z)
    is_asked, is_bank = used & (row < ASKED), used & (row >= ASKED)
    at = both + row * both_row + i * both_column
    centre = tl.load(at, used, 0.0).to(tl.float32)
    raw = tl.load(at + Z * both_column, used, 0.0).to(tl.float32)
    # Not by minimum and maximum, which would make a number of a NaN.
    spread = tl.where(raw < lowest, lowest, tl.where(raw > highest, highest, raw))
    drawn = centre
    if HAS_NOISE:
        drawn += tl.load(noise + row * noise_row + i * noise_column, is_asked, 0.0) * tl.exp(0.5 * spread)
    there = row * Z + i
    tl.store(mean + there, centre, is_asked)
    tl.store(log_var + there, spread, is_asked)
    tl.store(z + there, drawn, is_asked)
    there = (row - ASKED) * Z + i
    tl.store(bank_mean + there, centre, is_bank)
    tl.store(bank_log_var + there, spread, is_bank)


@triton.jit
def _drawn_codes_backward(
    both, noise, by_mean, by_log_var, by_z, by_bank_mean, by_bank_log_var, g_both,
    both_row, both_column, noise_row, noise_column, by_mean_row, by_mean_column, by_log_var_row, by_log_var_column,
    by_z_row, by_z_column, by_bank_mean_row, by_bank_mean_column, by_bank_log_var_row, by_bank_log_var_column,
    lowest, highest, N, ASKED, Z: tl.constexpr, HAS_NOISE: tl.constexpr,
    HAS_MEAN: tl.constexpr, HAS_LOG_VAR: tl.constexpr, HAS_Z: tl.constexpr,
    HAS_BANK_MEAN: tl.constexpr, HAS_BANK_LOG_VAR: tl.constexpr, ROWS: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, CODE)[None, :]
    used = (row < N) & (i < Z)
    is_asked, is_bank = used & (row < ASKED), used & (row >= ASKED)
    banked = row - ASKED
    raw = tl.load(both + row * both_row + (i + Z) * both_column, used, 0.0).to(tl.float32)
    into_mean = tl.zeros([ROWS, CODE], tl.float32)
    into_log_var = tl.zeros([ROWS, CODE], tl.float32)
    if HAS_MEAN:
        into_mean += tl.load(by_mean + row * by_mean_row + i * by_mean_column, is_asked, 0.0)
    if HAS_BANK_MEAN:
        into_mean += tl.load(by_bank_mean + banked * by_bank_mean_row + i * by_bank_mean_column, is_bank, 0.0)
    if HAS_LOG_VAR:
        into_log_var += tl.load(by_log_var + row * by_log_var_row + i * by_log_var_column, is_asked, 0.0)
    if HAS_BANK_LOG_VAR:
        into_log_var += tl.load(
            by_bank_log_var + banked * by_bank_log_var_row + i * by_bank_log_var_column, is_bank, 0.0
        )
    # At the bounds themselves as well, as torch.clamp has it.
    free = (raw >= lowest) & (raw <= highest)
    if HAS_Z:
        into_z = tl.load(by_z + row * by_z_row + i * by_z_column, is_asked, 0.0)
        into_mean += into_z
        if HAS_NOISE:
            draw = tl.load(noise + row * noise_row + i * noise_column, is_asked, 0.0)
            # What is not free gets nothing, and must not overflow on the way.
            into_log_var += 0.5 * into_z * draw * tl.exp(0.5 * tl.where(free, raw, 0.0))
    into_log_var = tl.where(free, into_log_var, 0.0)
    there = g_both + row * (2 * Z) + i
    tl.store(there, into_mean.to(g_both.dtype.element_ty), used)
    tl.store(there + Z, into_log_var.to(g_both.dtype.element_ty), used)


def _tile(Z: int) -> dict[str, int]:
    """How many rows a program takes, and how many threads that is worth: four numbers each."""
    code = triton.next_power_of_2(Z)
    rows = max(AT_ONCE // code, 1)
    return {"Z": Z, "ROWS": rows, "CODE": code, "num_warps": min(max(rows * code // 128, 1), 8)}


class _DrawnCodes(torch.autograd.Function):
    """Codes, and the gradient of what they were made from."""

    @staticmethod
    def forward(
        ctx: Any, both: Tensor, noise: Tensor | None, asked: int, lowest: float, highest: float
    ) -> tuple[Tensor, ...]:
        n, Z = len(both), both.shape[1] // 2
        lengths = (asked, asked, asked, n - asked, n - asked)
        codes = tuple(both.new_empty(length, Z, dtype=torch.float32) for length in lengths)
        draw = both if noise is None else noise
        tile = _tile(Z)
        _drawn_codes_forward[(triton.cdiv(n, tile["ROWS"]),)](
            both, draw, *codes, *both.stride(), *draw.stride(), lowest, highest, n, asked,
            HAS_NOISE=noise is not None, **tile,
        )  # fmt: skip
        ctx.save_for_backward(both, noise)
        ctx.asked, ctx.bounds = asked, (lowest, highest)
        ctx.set_materialize_grads(False)  # zeros for what nobody learns from would be launches of their own
        return codes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(into is None for into in incoming):
            return None, None, None, None, None
        both, noise = ctx.saved_tensors
        n, Z = len(both), both.shape[1] // 2
        g_both = both.new_empty(n, 2 * Z)
        draw = both if noise is None else noise
        into = [both if part is None else part for part in incoming]
        has = (part is not None for part in incoming)
        names = ("HAS_MEAN", "HAS_LOG_VAR", "HAS_Z", "HAS_BANK_MEAN", "HAS_BANK_LOG_VAR")
        tile = _tile(Z)
        _drawn_codes_backward[(triton.cdiv(n, tile["ROWS"]),)](
            both, draw, *into, g_both, *(step for part in (both, draw, *into) for step in part.stride()),
            *ctx.bounds, n, ctx.asked, HAS_NOISE=noise is not None, **dict(zip(names, has, strict=True)), **tile,
        )  # fmt: skip
        return g_both, None, None, None, None


def drawn_codes(both: Tensor, asked: int, noise: Tensor | None, lowest: float, highest: float) -> DrawnCodes:
    """`drawn_codes_by_parts` for CUDA tensors: noise in float32, `both` in float32 or bfloat16."""
    return DrawnCodes(*_DrawnCodes.apply(both, noise, asked, float(lowest), float(highest)))
