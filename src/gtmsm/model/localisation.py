"""Where a frame was seen: a mixture over poses, and the probability that it was seen at none of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.recognition import Comparison
from gtmsm.tensors import gather


@dataclass(frozen=True)
class PoseMixture:
    """A Gaussian mixture over poses, most likely first; its weights and `unknown` add up to 1."""

    weight: Float[Tensor, "batch M"]
    pose: Float[Tensor, "batch M D"]
    variance: Float[Tensor, "batch M G"]
    """Of the position and, where there is one, of the heading."""
    entry: Int[Tensor, "batch M"]
    """The entry of memory that matches best."""
    unknown: Float[Tensor, "batch"]
    """Probability that the frame was seen at none of these poses."""

    @property
    def known(self) -> Float[Tensor, "batch"]:
        """Probability that the frame was seen at one of these poses."""
        return 1 - self.unknown


def merge_matches(
    compare: Comparison,
    log_odds: Float[Tensor, "batch K"],
    pose: Float[Tensor, "batch K D"],
    variance: Float[Tensor, "batch K G"],
    entry: Int[Tensor, "batch K"],
    log_known: Float[Tensor, "batch"],
) -> PoseMixture:
    """The mixture of K matches; poses within tolerance of each other become one, with the sum of their weights."""
    probability = torch.softmax(log_odds, dim=-1)
    left = probability.clone()
    chosen, weights = [], []
    for _ in range(probability.shape[-1]):
        best = left.argmax(-1, keepdim=True)
        same = compare.right(compare.space.difference(gather(pose, best), pose)) & (left > 0)
        weights.append((probability * same).sum(-1))
        chosen.append(best[:, 0])
        left = left.masked_fill(same, -1.0)
    weight, first = torch.stack(weights, 1), torch.stack(chosen, 1)
    order = weight.argsort(dim=-1, descending=True, stable=True)
    weight, first = weight.gather(1, order), first.gather(1, order)
    known = torch.sigmoid(log_known)
    return PoseMixture(
        known[:, None] * weight, gather(pose, first), gather(variance, first), entry.gather(1, first), 1 - known
    )
