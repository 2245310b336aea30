"""Where was this seen? An answer that can also be: nowhere that I remember."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.recognition import Comparison
from gtmsm.tensors import apart, gather


@dataclass(frozen=True)
class Whereabouts:
    """A Gaussian mixture over poses, most likely first; its weights and `unknown` add up to 1."""

    weight: Float[Tensor, "batch M"]
    pose: Float[Tensor, "batch M D"]
    variance: Float[Tensor, "batch M G"]
    """Of the position and, where there is one, of the heading."""
    entry: Int[Tensor, "batch M"]
    """The entry of memory that looks most like it."""
    unknown: Float[Tensor, "batch"]
    """Probability that it was seen at none of these places."""

    @property
    def known(self) -> Float[Tensor, "batch"]:
        """Probability that the first of the places is the right one or, at least, one of them is."""
        return 1 - self.unknown


def weigh_up(
    compare: Comparison,
    log_odds: Float[Tensor, "batch K"],
    pose: Float[Tensor, "batch K D"],
    variance: Float[Tensor, "batch K G"],
    entry: Int[Tensor, "batch K"],
    log_known: Float[Tensor, "batch"],
) -> Whereabouts:
    """Opinions that point to the same place become one, and share what probability there is."""
    share = torch.softmax(log_odds, dim=-1)
    left = share.clone()
    places, weights = [], []
    for _ in range(share.shape[-1]):
        best = left.argmax(-1, keepdim=True)
        chosen = gather(pose, best)
        same = compare.right(apart(chosen.expand_as(pose), pose)) & (left > 0)
        weights.append((share * same).sum(-1))
        places.append(best[:, 0])
        left = left.masked_fill(same, -1.0)
    weight, first = torch.stack(weights, 1), torch.stack(places, 1)
    order = weight.argsort(dim=-1, descending=True, stable=True)
    weight, first = weight.gather(1, order), first.gather(1, order)
    known = torch.sigmoid(log_known)
    return Whereabouts(
        known[:, None] * weight, gather(pose, first), gather(variance, first), entry.gather(1, first), 1 - known
    )
