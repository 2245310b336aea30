"""Momentum that is damped and saturates, step after step: section 4.2.2."""

import torch
from jaxtyping import Float
from torch import Tensor


def drift_scan(
    start: Float[Tensor, "batch D"], push: Float[Tensor, "batch time D"], keep: Float[Tensor, "D"]
) -> Float[Tensor, "batch time D"]:
    """v_t = tanh(keep v_{t-1} + push_t), for every step."""
    v, velocities = start, []
    for u in push.unbind(1):
        v = torch.tanh(torch.addcmul(u, keep, v))
        velocities.append(v)
    return torch.stack(velocities, dim=1) if velocities else torch.zeros_like(push)
