"""The mixture on a GPU: one Triton program per query, with its entries and their codes in one tile.

The forward pass keeps the logarithms of the weights for the backward pass. The gradient of an entry that several
queries retrieved is summed by atomic additions in no fixed order: its last bits may differ from run to run.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors

MOST = 8_192
"""Maximum size of a tile, entries times code: as much as fits into registers."""


@triton.jit
def _log_sum(x, used):  # pragma: no cover - runs on the GPU
    """The logarithm of the sum of exponentials."""
    x = tl.where(used, x, float("-inf"))
    top = tl.max(x, 0)
    return top + tl.log(tl.sum(tl.exp(x - top), 0))


@triton.jit
def _mixture_forward(
    mean, log_var, z, bank_mean, bank_log_var, row, distance2, value, joints, nears, joint_total, near_total,
    mean_step, log_var_step, z_step, bank_mean_step, bank_log_var_step, row_step, distance2_step,
    delta, K, Z, ENTRIES: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, CODE)
    inside = i < Z
    at = tl.load(z + n * z_step + i, inside, 0.0)
    k = tl.arange(0, ENTRIES)
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
    of_joint, of_near = _log_sum(joint, used), _log_sum(near, used)
    tl.store(joint_total + n, of_joint)
    tl.store(near_total + n, of_near)
    # the constants of both densities cancel
    own = tl.load(log_var + n * log_var_step + i, inside, 0.0)
    off = at - tl.load(mean + n * mean_step + i, inside, 0.0)
    tl.store(value + n, -0.5 * tl.sum(off * off * tl.exp(-own) + own, 0) - (of_joint - of_near))


@triton.jit
def _mixture_backward(
    mean, log_var, z, bank_mean, bank_log_var, row, joints, nears, joint_total, near_total, incoming,
    g_mean, g_log_var, g_z, g_bank_mean, g_bank_log_var, g_distance2,
    mean_step, log_var_step, z_step, bank_mean_step, bank_log_var_step, row_step, incoming_step,
    K, Z, INTO_BANK: tl.constexpr, ENTRIES: tl.constexpr, CODE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, CODE)
    inside = i < Z
    at = tl.load(z + n * z_step + i, inside, 0.0)
    into = tl.load(incoming + n * incoming_step)
    of_joint, of_near = tl.load(joint_total + n), tl.load(near_total + n)
    into_prob = -into
    off = at - tl.load(mean + n * mean_step + i, inside, 0.0)
    own = into * off * tl.exp(-tl.load(log_var + n * log_var_step + i, inside, 0.0))
    tl.store(g_mean + n * Z + i, own, inside)
    tl.store(g_log_var + n * Z + i, 0.5 * (own * off - into), inside)
    into_at = -own
    k = tl.arange(0, ENTRIES)
    used = k < K
    both = used[:, None] & inside[None, :]
    near = tl.load(nears + n * K + k, used, float("-inf"))
    posterior = tl.exp(tl.load(joints + n * K + k, used, float("-inf")) - of_joint)
    tl.store(g_distance2 + n * K + k, into_prob * (tl.exp(near - of_near) - posterior) * tl.exp(near), used)
    weight = (into_prob * posterior)[:, None]
    entry = tl.load(row + n * row_step + k, used, 0).to(tl.int64)[:, None]
    spread = tl.load(bank_log_var + entry * bank_log_var_step + i[None, :], both, 0.0)
    away = at[None, :] - tl.load(bank_mean + entry * bank_mean_step + i[None, :], both, 0.0)
    pull = weight * away * tl.exp(-spread)
    into_at -= tl.sum(pull, 0)
    if INTO_BANK:
        tl.atomic_add(g_bank_mean + entry * Z + i[None, :], pull, both, sem="relaxed")
        tl.atomic_add(g_bank_log_var + entry * Z + i[None, :], 0.5 * (pull * away - weight), both, sem="relaxed")
    tl.store(g_z + n * Z + i, into_at, inside)


def _tile(K: int, Z: int) -> dict[str, int]:
    """Sides of a tile, and its number of warps."""
    entries, code = triton.next_power_of_2(K), triton.next_power_of_2(Z)
    return {"ENTRIES": entries, "CODE": code, "num_warps": 1 if entries * code <= 512 else 4}


def _in_rows(x: Tensor) -> Tensor:
    """The same tensor with contiguous rows; no copy for half of an encoder's output, whose rows are contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(*args: Any) -> list[Tensor]:
    """The divergence; logarithms of weights, joint and by nearness alone; and logarithms of their sums."""
    z, (n, K) = args[2], args[5].shape
    return [z.new_empty(shape) for shape in ((n,), (2, n, K), (2, n))]


def _forward(*args: Any) -> list[Tensor]:
    """One launch."""
    inputs, delta = [_in_rows(x) for x in args[:7]], args[7]
    value, logs, totals = made = _empty(*args)
    (n, K), Z = logs.shape[1:], inputs[2].shape[1]
    _mixture_forward[(n,)](
        *inputs, value, *logs, *totals, *(x.stride(0) for x in inputs), delta, K, Z, **_tile(K, Z)
    )  # fmt: skip
    return made


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """One launch."""
    inputs, incoming, (_, logs, totals) = [_in_rows(x) for x in args[:6]], gradients[0], made
    z, bank, (n, K) = inputs[2], inputs[3], logs.shape[1:]
    Z, into_bank = z.shape[1], needed[3] or needed[4]
    g_code, g_distance2 = z.new_empty(3, n, Z), z.new_empty(n, K)
    g_bank = z.new_zeros(2, *bank.shape) if into_bank else g_code[:2]
    _mixture_backward[(n,)](
        *inputs, *logs, *totals, incoming, *g_code, *g_bank, g_distance2,
        *(x.stride(0) for x in (*inputs, incoming)), K, Z, INTO_BANK=into_bank, **_tile(K, Z),
    )  # fmt: skip
    return *g_code, *(g_bank if into_bank else (None, None)), None, g_distance2, None


def _supports(*args: Any) -> bool:
    """Some queries, in single precision, whose entries fit into a tile."""
    floats, (z, row) = (*args[:5], args[6]), (args[2], args[5])
    single = row.numel() > 0 and z.numel() > 0 and all(x.dtype == torch.float32 for x in floats)
    return single and triton.next_power_of_2(row.shape[1]) * triton.next_power_of_2(z.shape[1]) <= MOST


mixture_divergence = Fast(_forward, _empty, _backward, _supports)
