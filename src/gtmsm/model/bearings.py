"""The unknown start of a walk, by what its first frames match in memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.model.motion import Motion
from gtmsm.model.recognition import Comparison, look_up
from gtmsm.pose import Space
from gtmsm.tensors import Actions, EntryPoses, Gaussian, PerEntry, Poses, gather

LOOK = 8
"""Number of first steps of a walk that vote for its start; over more steps the planned path is less reliable."""


def locate_start(
    compare: Comparison, motion: Motion, actions: Actions, code: Gaussian, past_pose: EntryPoses, past_code: Gaussian
) -> tuple[Float[Tensor, "batch D"], Float[Tensor, "batch 1"]]:
    """The pose before a walk, by what its first steps match in memory, and the fraction of those that agree on it."""
    seen, settings, space = code[:, :LOOK], compare.settings, motion.space
    lookup = look_up(past_code, seen, settings.matches)
    match = compare(past_code, seen, lookup)
    confidence = torch.sigmoid(compare.confidence(match.log_odds, match.noise, lookup.distance))
    # The probability that all steps so far went as planned.
    as_planned = (1 - settings.surprise) ** torch.arange(confidence.shape[1], device=confidence.device)
    evidence = compare.evidence(match.log_odds, match.noise)
    weight = (as_planned * confidence)[..., None] * torch.softmax(evidence, dim=-1)
    path = motion.unroll(motion.start(len(actions)), actions[:, :LOOK])[..., : space.size]
    sighted = space.step(gather(past_pose, lookup.index), match.offset)
    found, agreed = find_start(space, path, sighted, weight, compare.tolerances(path))
    return found, (agreed / as_planned.sum()).clamp(max=1)[:, None]


def find_start(
    space: Space, path: Poses, sighted: Float[Tensor, "batch time K D"], weight: PerEntry, tolerance: Float[Tensor, "D"]
) -> tuple[Float[Tensor, "batch D"], Float[Tensor, "batch"]]:
    """The start that most sights agree on, and the weight of the votes for it.

    `path` is the planned walk from the origin. Each sight votes for the start from which `path` leads to the sighted
    pose. Votes agree if they differ by about `tolerance`, in every coordinate.
    """
    votes = space.start_of(path[:, :, None].expand_as(sighted), sighted).flatten(1, 2)
    weights = weight.flatten(1)
    off = space.difference(votes[:, :, None], votes[:, None])
    alike = (-0.5 * (off / tolerance).square().sum(-1)).exp()
    best = (alike @ weights[..., None])[..., 0].argmax(1)
    row = torch.arange(len(best), device=best.device)
    near = alike[row, best] * weights
    fraction = (near / near.sum(1, keepdim=True).clamp_min(1e-12))[..., None]
    return votes[row, best] + (fraction * off[row, best]).sum(1), near.sum(1)
