"""The mixture on a GPU: one Triton program a query, its entries and their codes in one tile.

The way forward keeps the logarithms that the way back needs, so that both speak of the same weights to the bit. An
entry retrieved by several queries gets its gradient from all of them, by atomic additions in whatever order they
happen: its last bits may differ from run to run.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.tensors import LOG_TWO_PI

AT_ONCE = 1024
"""Numbers in a tile, entries times code: more than that would not stay in registers."""


@triton.jit
def _mixture_forward(
    mean, log_var, z, bank_mean, bank_log_var, row, distance2, value, joints, nears, joint_total, near_total,
    mean_step, log_var_step, z_step, bank_mean_step, bank_log_var_step, row_step, distance2_step,
    delta, constant, K, Z, HAS_CODE: tl.constexpr, ENTRIES: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, CODE)
    inside = i < Z
    at = tl.load(z + n * z_step + i, inside, 0.0)
    # the largest logarithm so far, and the sum of all relative to it; finite, or the first difference would be NaN
    joint_top, joint_sum = -3.0e38, 0.0
    near_top, near_sum = -3.0e38, 0.0
    for first in range(0, K, ENTRIES):
        k = first + tl.arange(0, ENTRIES)
        used = k < K
        both = used[:, None] & inside[None, :]
        entry = tl.load(row + n * row_step + k, used, 0).to(tl.int64)[:, None]
        spread = tl.load(bank_log_var + entry * bank_log_var_step + i[None, :], both, 0.0)
        away = at[None, :] - tl.load(bank_mean + entry * bank_mean_step + i[None, :], both, 0.0)
        log_prob = -0.5 * tl.sum(away * away * tl.exp(-spread) + spread, 1)
        near = -tl.log(tl.load(distance2 + n * distance2_step + k, used, 1.0) + delta)
        joint = near + log_prob
        tl.store(joints + n * K + k, joint, used)
        tl.store(nears + n * K + k, near, used)
        joint = tl.where(used, joint, float("-inf"))
        near = tl.where(used, near, float("-inf"))
        top = tl.maximum(joint_top, tl.max(joint, 0))
        joint_sum = joint_sum * tl.exp(joint_top - top) + tl.sum(tl.exp(joint - top), 0)
        joint_top = top
        top = tl.maximum(near_top, tl.max(near, 0))
        near_sum = near_sum * tl.exp(near_top - top) + tl.sum(tl.exp(near - top), 0)
        near_top = top
    of_joint = joint_top + tl.log(joint_sum)
    of_near = near_top + tl.log(near_sum)
    tl.store(joint_total + n, of_joint)
    tl.store(near_total + n, of_near)
    if HAS_CODE:  # the constants of both densities cancel
        own = tl.load(log_var + n * log_var_step + i, inside, 0.0)
        off = at - tl.load(mean + n * mean_step + i, inside, 0.0)
        tl.store(value + n, -0.5 * tl.sum(off * off * tl.exp(-own) + own, 0) - (of_joint - of_near))
    else:
        tl.store(value + n, of_joint - of_near - constant)


@triton.jit
def _mixture_backward(
    mean, log_var, z, bank_mean, bank_log_var, row, joints, nears, joint_total, near_total, incoming,
    g_mean, g_log_var, g_z, g_bank_mean, g_bank_log_var, g_distance2,
    mean_step, log_var_step, z_step, bank_mean_step, bank_log_var_step, row_step, incoming_step,
    K, Z, HAS_CODE: tl.constexpr, INTO_BANK: tl.constexpr, ENTRIES: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, CODE)
    inside = i < Z
    at = tl.load(z + n * z_step + i, inside, 0.0)
    into = tl.load(incoming + n * incoming_step)
    of_joint, of_near = tl.load(joint_total + n), tl.load(near_total + n)
    into_at = tl.zeros([CODE], tl.float32)
    into_prob = into
    if HAS_CODE:
        into_prob = -into
        off = at - tl.load(mean + n * mean_step + i, inside, 0.0)
        own = into * off * tl.exp(-tl.load(log_var + n * log_var_step + i, inside, 0.0))
        tl.store(g_mean + n * Z + i, own, inside)
        tl.store(g_log_var + n * Z + i, 0.5 * (own * off - into), inside)
        into_at -= own
    for first in range(0, K, ENTRIES):
        k = first + tl.arange(0, ENTRIES)
        used = k < K
        both = used[:, None] & inside[None, :]
        near = tl.load(nears + n * K + k, used, float("-inf"))
        # of all that explains z, what is owed to this entry
        owed = tl.exp(tl.load(joints + n * K + k, used, float("-inf")) - of_joint)
        tl.store(g_distance2 + n * K + k, into_prob * (tl.exp(near - of_near) - owed) * tl.exp(near), used)
        blame = (into_prob * owed)[:, None]
        entry = tl.load(row + n * row_step + k, used, 0).to(tl.int64)[:, None]
        spread = tl.load(bank_log_var + entry * bank_log_var_step + i[None, :], both, 0.0)
        away = at[None, :] - tl.load(bank_mean + entry * bank_mean_step + i[None, :], both, 0.0)
        pull = blame * away * tl.exp(-spread)
        into_at -= tl.sum(pull, 0)
        if INTO_BANK:
            tl.atomic_add(g_bank_mean + entry * Z + i[None, :], pull, both, sem="relaxed")
            tl.atomic_add(g_bank_log_var + entry * Z + i[None, :], 0.5 * (pull * away - blame), both, sem="relaxed")
    tl.store(g_z + n * Z + i, into_at, inside)


def _tile(K: int, Z: int) -> dict[str, int]:
    """How many entries a program looks at together, and how many threads that is worth."""
    code = triton.next_power_of_2(Z)
    entries = min(triton.next_power_of_2(K), max(AT_ONCE // code, 1))
    # one stage: for few entries the loop is done at once, and there is nothing to fetch ahead
    return {"ENTRIES": entries, "CODE": code, "num_warps": 1 if entries * code <= 512 else 4, "num_stages": 1}


def _in_rows(x: Tensor) -> Tensor:
    """The same numbers, those of a row beside each other; no copy where they are: half of an encoder's output is not
    contiguous, but its rows are."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Mixture(torch.autograd.Function):
    """The divergence or, without a code, the log-probability; and gradients, in one launch each way."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor | None, log_var: Tensor | None, z: Tensor, bank_mean: Tensor, bank_log_var: Tensor,
        row: Tensor, distance2: Tensor, delta: float,
    ) -> Tensor:  # fmt: skip
        (n, K), Z = row.shape, z.shape[1]
        has_code = mean is not None and log_var is not None
        inputs = [z if x is None else _in_rows(x) for x in (mean, log_var, z, bank_mean, bank_log_var, row, distance2)]
        logs, totals, value = z.new_empty(2, n, K), z.new_empty(2, n), z.new_empty(n)
        _mixture_forward[(n,)](
            *inputs, value, *logs, *totals, *(x.stride(0) for x in inputs),
            delta, 0.5 * Z * LOG_TWO_PI, K, Z, HAS_CODE=has_code, **_tile(K, Z),
        )  # fmt: skip
        ctx.save_for_backward(*inputs[:-1], logs, totals)
        ctx.has_code = has_code
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, logs, totals = ctx.saved_tensors
        z, bank, (n, K), Z = inputs[2], inputs[3], inputs[5].shape, inputs[2].shape[1]
        into_bank = ctx.needs_input_grad[3] or ctx.needs_input_grad[4]
        g_code, g_distance2 = z.new_empty(3, n, Z), z.new_empty(n, K)
        g_bank = z.new_zeros(2, *bank.shape) if into_bank else g_code[:2]
        _mixture_backward[(n,)](
            *inputs, *logs, *totals, incoming, *g_code, *g_bank, g_distance2,
            *(x.stride(0) for x in (*inputs, incoming)),
            K, Z, HAS_CODE=ctx.has_code, INTO_BANK=into_bank, **_tile(K, Z),
        )  # fmt: skip
        g_mean, g_log_var, g_z = g_code
        code = (g_mean, g_log_var) if ctx.has_code else (None, None)
        return *code, g_z, *(g_bank if into_bank else (None, None)), None, g_distance2, None


def divergence(
    mean: Tensor, log_var: Tensor, z: Tensor, bank_mean: Tensor, bank_log_var: Tensor, row: Tensor,
    distance2: Tensor, delta: float,
) -> Tensor:  # fmt: skip
    """`mixture_divergence_by_parts` for float32 CUDA tensors; the bank's gradients are added up in no fixed order."""
    return _Mixture.apply(  # type: ignore[no-any-return]
        mean, log_var, z, bank_mean, bank_log_var, row, distance2, delta
    )


def log_prob(
    z: Tensor, bank_mean: Tensor, bank_log_var: Tensor, row: Tensor, distance2: Tensor, delta: float
) -> Tensor:
    """`mixture_log_prob_by_parts` for float32 CUDA tensors; the bank's gradients are added up in no fixed order."""
    return _Mixture.apply(None, None, z, bank_mean, bank_log_var, row, distance2, delta)  # type: ignore[no-any-return]
