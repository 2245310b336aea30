"""The mixture on a CPU: by hand, in few passes over `K n Z`, because a pass costs little more than its dispatch.

Entries come first, so that what is the same for all of them is broadcast in long runs. What is particular to an entry
of memory and not to who asks (its precision, its volume) is worked out once for each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.tensors import LOG_TWO_PI


class _Mixture(torch.autograd.Function):
    """The divergence or, without a code, the log-probability; and, by hand, gradients in the precision of the input."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # sums over codes are products with ones, which it would round to bfloat16
    def forward(
        ctx: Any, mean: Tensor | None, log_var: Tensor | None, z: Tensor, bank_mean: Tensor, bank_log_var: Tensor,
        row: Tensor, distance2: Tensor, delta: float,
    ) -> Tensor:  # fmt: skip
        (n, K), Z = row.shape, z.shape[1]
        asked, ones = row.t().reshape(-1), z.new_ones(Z)
        away = bank_mean.index_select(0, asked).view(K, n, Z)
        torch.sub(z, away, out=away)
        pull = torch.exp(-bank_log_var).index_select(0, asked).view(K, n, Z).mul_(away)
        far2 = pull * away
        fit = (far2.view(-1, Z) @ ones).add_((bank_log_var @ ones).index_select(0, asked)).mul_(-0.5).view(K, n)
        near = (distance2.t() + delta).reciprocal_()
        best, total = fit.amax(0), near.sum(0)
        blame = fit.sub_(best).exp_().mul_(near)  # of all that explains z, what is owed to each entry
        explained = blame.sum(0)
        value = (explained / total).log_().add_(best)
        blame.div_(explained)
        excess = far2.sub_(1)
        by_distance = (near / total).sub_(blame).mul_(near)
        code = []
        if mean is not None and log_var is not None:  # the constants of both densities cancel
            out = z - mean
            draw = torch.exp(-log_var).mul_(out)
            out.mul_(draw)
            value = (out @ ones).add_(log_var @ ones).mul_(-0.5).sub_(value)
            code = [draw, out.sub_(1)]
        else:
            value.sub_(0.5 * Z * LOG_TWO_PI)
        ctx.save_for_backward(asked, pull, excess, blame, by_distance, *code)
        ctx.rows = len(bank_mean)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        asked, pull, excess, blame, by_distance, *code = ctx.saved_tensors
        K, n, Z = pull.shape
        into = -incoming if code else incoming
        blame = (blame * into)[..., None]
        by_mean = pull * blame
        shares = pull.new_empty(K, n, 2 * Z)  # of mean and log-variance side by side: added to the bank in one go
        shares[..., :Z] = by_mean
        torch.mul(excess, blame.mul_(0.5), out=shares[..., Z:])
        bank = shares.new_zeros(ctx.rows, 2 * Z).index_add_(0, asked, shares.view(-1, 2 * Z))
        g_z = by_mean.sum(0).neg_()
        g_code: tuple[Tensor | None, Tensor | None] = (None, None)
        if code:
            draw, out = code  # towards the mean, and beyond a standard deviation
            spread = incoming[:, None]
            g_mean = draw * spread
            g_z.sub_(g_mean)
            g_code = g_mean, out * (0.5 * spread)
        return *g_code, g_z, *bank.split(Z, dim=1), None, (by_distance * into).t(), None


def divergence(
    mean: Tensor, log_var: Tensor, z: Tensor, bank_mean: Tensor, bank_log_var: Tensor, row: Tensor,
    distance2: Tensor, delta: float,
) -> Tensor:  # fmt: skip
    """`mixture_divergence_by_parts`, faster on a CPU."""
    return _Mixture.apply(  # type: ignore[no-any-return]
        mean, log_var, z, bank_mean, bank_log_var, row, distance2, delta
    )


def log_prob(
    z: Tensor, bank_mean: Tensor, bank_log_var: Tensor, row: Tensor, distance2: Tensor, delta: float
) -> Tensor:
    """`mixture_log_prob_by_parts`, faster on a CPU."""
    return _Mixture.apply(None, None, z, bank_mean, bank_log_var, row, distance2, delta)  # type: ignore[no-any-return]
