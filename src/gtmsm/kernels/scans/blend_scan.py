"""App. D as it is written: the plan is moved towards recognised poses by weights that are known before the walk."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.tensors import apart, gather


def blend_scan(
    move: Callable[[Float[Tensor, "batch S"], int], Float[Tensor, "batch S"]],
    settle: Callable[[Float[Tensor, "batch S"], Float[Tensor, "batch D"]], Float[Tensor, "batch S"]],
    spread: Callable[[Float[Tensor, "batch K"], int], Float[Tensor, "batch"]],
    start: Float[Tensor, "batch S"],
    variance: Float[Tensor, "batch 1"],
    index: Int[Tensor, "batch time K"],
    beta: Float[Tensor, "batch time K"],
    past: tuple[Float[Tensor, "batch n D"], Float[Tensor, "batch n 1"]],
) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time 1"], Float[Tensor, "batch time 1"]]:
    """States after each step, the variances of their poses, and those given the pose before (sigma_q^2).

    mu_q = mu_p + sum_k beta_k (mu_k - mu_p), with sigma_q^2 = spread(sigma^2_{1:K'}). Given beta the pose is linear in
    those before it, so its marginal variance is (1 - sum_k beta_k)^2 v_{t-1} + sum_k beta_k^2 v_k + sigma_q^2.
    """
    steps, first, size = index.shape[1], past[0].shape[1], past[0].shape[-1]
    poses, variances = (torch.cat([p, p.new_zeros(len(p), steps, p.shape[-1])], 1) for p in past)
    states, fresh, s = [], [], start
    for t in range(steps):
        planned, weight = move(s, t), beta[:, t]
        away = apart(planned[:, None, :size], gather(poses, index[:, t]))
        known = gather(variances, index[:, t])[..., 0]
        pose = planned[:, :size] + (weight[..., None] * away).sum(1)
        own = spread(known, t)[:, None]
        left = (1 - weight.sum(1, keepdim=True)).square()
        variance = left * variance + (weight.square() * known).sum(1, keepdim=True) + own
        s = settle(planned, pose)
        poses[:, first + t], variances[:, first + t] = pose, variance
        states.append(s)
        fresh.append(own)
    return torch.stack(states, 1), variances[:, first:], torch.stack(fresh, 1)
