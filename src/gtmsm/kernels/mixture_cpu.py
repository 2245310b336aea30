"""The mixture on a CPU: few passes over `K n Z` numbers, with gradients by hand.

Entries come first, so that broadcasting copies long runs. Precision and volume are computed once for each entry of the
bank, not once for each query.
"""

from typing import Any

import torch
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors


def _empty(*args: Any) -> list[Tensor]:
    """The divergence; then factors of the gradients of the bank's codes, of distances, and of mean and variance."""
    z, (n, K), Z = args[2], args[5].shape, args[2].shape[1]
    return [z.new_empty(shape) for shape in ((n,), (K, n, Z), (K, n, Z), (K, n), (n, K), (n, Z), (n, Z))]


@torch.autocast("cpu", enabled=False)  # sums over codes are products with ones, which it would round to bfloat16
def _forward(
    mean: Tensor, log_var: Tensor, z: Tensor, bank_mean: Tensor, bank_log_var: Tensor, row: Tensor, distance2: Tensor,
    delta: float,
) -> list[Tensor]:  # fmt: skip
    """The divergence, and what the backward pass needs."""
    (n, K), Z = row.shape, z.shape[1]
    entry, ones = row.t().reshape(-1), z.new_ones(Z)
    away = bank_mean.index_select(0, entry).view(K, n, Z)
    torch.sub(z, away, out=away)
    pull = torch.exp(-bank_log_var).index_select(0, entry).view(K, n, Z).mul_(away)
    far2 = pull * away
    fit = (far2.view(-1, Z) @ ones).add_((bank_log_var @ ones).index_select(0, entry)).mul_(-0.5).view(K, n)
    near = (distance2.t() + delta).reciprocal_()
    best, total = fit.amax(0), near.sum(0)
    posterior = fit.sub_(best).exp_().mul_(near)
    evidence = posterior.sum(0)
    log_prob = (evidence / total).log_().add_(best)
    posterior.div_(evidence)
    by_distance = (near / total).sub_(posterior).mul_(near).t().contiguous()
    out = z - mean
    draw = torch.exp(-log_var).mul_(out)
    out.mul_(draw)
    value = (out @ ones).add_(log_var @ ones).mul_(-0.5).sub_(log_prob)  # the constants of both densities cancel
    return [value, pull, far2.sub_(1), posterior, by_distance, draw, out.sub_(1)]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """Gradients of all arguments."""
    (_, _, _, bank_mean, _, row, _, _), (_, pull, excess, posterior, by_distance, draw, out) = args, made
    (K, n, Z), incoming = pull.shape, gradients[0]
    into = -incoming
    weight = (posterior * into)[..., None]
    by_mean = pull * weight
    parts = pull.new_empty(K, n, 2 * Z)  # of mean and log-variance side by side: added to the bank in one operation
    parts[..., :Z] = by_mean
    torch.mul(excess, weight.mul_(0.5), out=parts[..., Z:])
    bank = parts.new_zeros(len(bank_mean), 2 * Z).index_add_(0, row.t().reshape(-1), parts.view(-1, 2 * Z))
    into_mean = draw * incoming[:, None]
    into_z = by_mean.sum(0).neg_().sub_(into_mean)
    into_log_var = out * (0.5 * incoming)[:, None]
    return into_mean, into_log_var, into_z, *bank.split(Z, dim=1), None, by_distance * into[:, None], None


def _supports(*args: Any) -> bool:
    """Some queries, in one precision."""
    floats, (z, row) = (*args[:5], args[6]), (args[2], args[5])
    alike = z.dtype in (torch.float32, torch.float64) and all(x.dtype == z.dtype for x in floats)
    return alike and row.numel() > 0 and z.numel() > 0


mixture_divergence = Fast(_forward, _empty, _backward, _supports)
