"""Walks with an unknown start: estimate it from matches in memory, and move a walk to a known end."""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.model.recognition import Comparison, look_up
from gtmsm.pose import Space
from gtmsm.tensors import EntryPoses, Gaussian, PerEntry, Poses, gather

PLANNED, WATCHED = 8, 32
"""Number of first steps of a walk that vote for its start, without and with `watch`. Over more steps a path is less
reliable; one from actions alone becomes so sooner than one whose steps are estimated from previous frames."""

LEAST = 1e-12
"""Minimum variance that each step adds."""
SOME = 0.05
"""Fraction of all votes that must agree on a start for it to be accepted, if memory's views judge it."""


def locate_starts(
    compare: Comparison, path: Poses, chance: float, code: Gaussian, past_pose: EntryPoses, past_code: Gaussian,
    count: int,
) -> tuple[Float[Tensor, "batch count D"], Float[Tensor, "batch count"]]:  # fmt: skip
    """Candidates for the initial pose of a walk, from matches of its first steps in memory, and the fraction of votes
    for each.

    `path`: the poses of these steps from the origin; each step is wrong with probability `chance`.
    """
    seen, space = code[:, : path.shape[1]], compare.space
    lookup = look_up(past_code, seen, compare.settings.matches)
    match = compare(past_code, seen, lookup)
    confidence = torch.sigmoid(compare.confidence(match.log_odds, match.noise, lookup.distance))
    # The probability that all steps so far are right.
    right = (1 - chance) ** torch.arange(confidence.shape[1], device=confidence.device)
    evidence = compare.evidence(match.log_odds, match.noise)
    weight = (right * confidence)[..., None] * torch.softmax(evidence, dim=-1)
    sighted = space.step(gather(past_pose, lookup.index), match.offset)
    found, agreed = find_starts(space, path, sighted, weight, compare.tolerances(path), count)
    return found, (agreed / right.sum()).clamp(max=1)


def find_starts(
    space: Space, path: Poses, sighted: Float[Tensor, "batch time K D"], weight: PerEntry,
    tolerance: Float[Tensor, "D"], count: int = 1,
) -> tuple[Float[Tensor, "batch count D"], Float[Tensor, "batch count"]]:  # fmt: skip
    """The start that most sights agree on, the start that most of the others agree on, and so on, `count` in all; and
    the weight of the votes for each.

    `path` is the walk from the origin. Each sight votes for the start from which `path` leads to the sighted
    pose. Votes agree if they differ by at most about `tolerance`, in each coordinate.
    """
    votes = space.start_of(path[:, :, None].expand_as(sighted), sighted).flatten(1, 2)
    weights = weight.flatten(1)
    off = space.difference(votes[:, :, None], votes[:, None])
    alike = (-0.5 * (off / tolerance).square().sum(-1)).exp()
    row = torch.arange(len(votes), device=votes.device)
    found, agreed = [], []
    for _ in range(count):
        best = (alike @ weights[..., None])[..., 0].argmax(1)
        near = alike[row, best] * weights
        fraction = (near / near.sum(1, keepdim=True).clamp_min(1e-12))[..., None]
        found.append(votes[row, best] + (fraction * off[row, best]).sum(1))
        agreed.append(near.sum(1))
        weights = weights * (1 - alike[row, best])  # of the votes that do not agree with it
    return torch.stack(found, 1), torch.stack(agreed, 1)


def moved_to_end(
    space: Space, pose: Poses, end: Float[Tensor, "batch D"], added: Float[Tensor, "batch time G"]
) -> tuple[Poses, Float[Tensor, "batch time G"]]:
    """A walk moved so that it ends at `end`, and the share of the correction by which each of its poses was moved.

    A pose's share is that of the variance `added` up to it: poses after an uncertain step are moved, those before it
    stay. If no step is uncertain, each step adds the same share.
    """
    path = space.displacement(pose[:, -1:].expand_as(pose), pose)
    off = space.difference(pose, space.step(end[:, None].expand_as(pose), path))
    grown = (added + LEAST).cumsum(1)
    share = grown / grown[:, -1:]
    parts = [share[..., g, None] * off[..., group] for g, group in enumerate(space.groups)]
    return pose + torch.cat(parts, dim=-1), share
