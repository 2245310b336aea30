"""Where did a walk begin? Its first frames say so, where they show places that are known."""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.tensors import apart, felt, stepped

LOOK = 8
"""Steps of looking around before an agent makes up its mind where it set out from: with each more may go wrong."""


def find_start(
    path: Float[Tensor, "batch time D"],
    sighted: Float[Tensor, "batch time K D"],
    weight: Float[Tensor, "batch time K"],
    reach: Float[Tensor, "D"],
) -> tuple[Float[Tensor, "batch D"], Float[Tensor, "batch"]]:
    """The start that most sights agree on, and the weight of those that do.

    Each of them votes for the start from which `path` leads to where it points. `path` is the walk as its actions have
    it, from the origin. `reach` is how far two votes may be apart, in every coordinate, and still be for the same.
    """
    votes = _began(path[:, :, None], sighted).flatten(1, 2)
    weights = weight.flatten(1)
    off = apart(votes[:, :, None], votes[:, None])
    alike = (-0.5 * (off / reach).square().sum(-1)).exp()
    best = (alike @ weights[..., None])[..., 0].argmax(1)
    row = torch.arange(len(best), device=best.device)
    near = alike[row, best] * weights
    share = (near / near.sum(1, keepdim=True).clamp_min(1e-12))[..., None]
    return votes[row, best] + (share * off[row, best]).sum(1), near.sum(1)


def _began(path: Float[Tensor, "batch time 1 D"], place: Float[Tensor, "batch time K D"]) -> Tensor:
    """The start from which `path` leads to `place`."""
    path = path.expand_as(place)
    if place.shape[-1] != 3:
        return place - path
    # Seen from the end of the path, the start lies where the origin does.
    back = felt(path, torch.zeros_like(path))
    return stepped(place, back)
