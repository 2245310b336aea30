"""Where two agents' maps meet: the rigid motion between their frames, from places that both have seen.

Every agent measures poses from its own origin. A view of one agent that the other recognises is a *sight*: it implies
where the origin of one lies on the map of the other. Many sights are wrong, since different places look alike. So each
sight votes, the votes that agree are refined together, and the resulting motion is tested: at places where both have
been, both must remember the same views. Views are recognised by landmarks or, in a model without landmarks, by similar
codes (`recognisers.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.atlas.recognisers import Recogniser, Sights, recogniser
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.pose import Space
from gtmsm.tensors import Belief

LOOKS = 256
"""Number of places of one map that are looked up in the other."""
SCANNED = 2**16
"""Number of entries from which these places are chosen."""
VOTES = 512
"""Number of sights whose votes are counted: the likeliest ones."""
SHARE = 0.6
"""The fraction of places known to both that must look alike."""
CLEARLY = 1.5
"""The best motion is used if its support is at least this many times that of the next."""
ALTERNATIVES = 3
"""Maximum number of motions that are kept."""
ROUNDS = 5
"""Number of times that a motion is refined by all sights that agree with it."""
NEAR = 5
"""Number of entries near a place that are compared with the other agent's view there."""


@dataclass(frozen=True)
class Meeting:
    """A rigid motion from one agent's frame to another's: `space.step(origin, pose)` is the pose in the other frame."""

    origin: Float[Tensor, "D"]
    """Pose of the origin of the one frame in the other."""
    covariance: Float[Tensor, "D D"]
    sights: float
    """Number of places recognised, as a sum of probabilities."""
    share: float
    """Fraction of places that look alike, among those that both have been to if this motion is right."""

    @property
    def support(self) -> float:
        """Number of places recognised, times the fraction of common places that look alike."""
        return self.sights * self.share

    @staticmethod
    def none(space: Space) -> "Meeting":
        """The identity: the meeting of an agent with itself."""
        return Meeting(torch.zeros(space.size), torch.zeros(space.size, space.size), 0.0, 1.0)

    def then(self, outer: "Meeting", space: Space) -> "Meeting":
        """This motion followed by `outer`: from C's frame to B's, then to A's."""
        return Meeting(
            space.step(outer.origin, self.origin),
            _carried(space.step, outer.origin, outer.covariance, self.origin, self.covariance),
            min(self.sights, outer.sights),
            min(self.share, outer.share),
        )

    def inverse(self, space: Space) -> "Meeting":
        """The inverse motion."""
        zero = torch.zeros_like(self.origin)
        back = _carried(space.displacement, self.origin, self.covariance, zero, torch.zeros_like(self.covariance))
        return Meeting(space.displacement(self.origin, zero), back, self.sights, self.share)

    def moved(self, memory: Memory, space: Space) -> Memory:
        """The same entries in the other frame; the variance of this motion is added to that of their poses."""
        pose = space.pose_at(memory.place.mean)
        origin, spread = self.origin.to(pose), self.covariance.to(pose)
        mean, covariance, variance = space.place(space.step(origin, pose)), memory.place.covariance, memory.variance
        if variance is not None:
            # An error of the heading moves a place in proportion to its distance from the origin.
            parts = [spread.diagonal()[group].mean().expand(pose.shape[:-1]) for group in space.groups]
            if space.angles:
                parts[0] = parts[0] + 0.5 * spread[-1, -1] * pose[..., : space.positions].square().sum(-1)
            variance = variance + torch.stack(parts[: variance.shape[-1]], -1)
        if covariance is not None:
            covariance = covariance + spread  # only without headings: the motion is a translation
        return Memory(Belief(mean, covariance), memory.code, memory.digest, variance, memory.weights, memory.slips)


def _carried(
    motion: Callable[[Tensor, Tensor], Tensor], one: Tensor, one_covariance: Tensor, two: Tensor, two_covariance: Tensor
) -> Float[Tensor, "D D"]:
    """The covariance of a function of two independent poses, to first order."""
    by_one, by_two = _slope(lambda x: motion(x, two.double()), one), _slope(lambda x: motion(one.double(), x), two)
    return by_one @ one_covariance @ by_one.mT + by_two @ two_covariance @ by_two.mT


def _slope(function: Callable[[Tensor], Tensor], at: Float[Tensor, "D"]) -> Float[Tensor, "*n D D"]:
    """Jacobian of a function of poses, by differences in float64, since torch.func takes seconds to import."""
    small = 1e-4 * torch.eye(len(at), dtype=torch.float64)
    return ((function(at + small) - function(at - small)) / 2e-4).mT.to(at)


@torch.no_grad()
def meet(model: WorldModel, mine: Memory, theirs: Memory) -> list[Meeting]:
    """Motions from the other agent's frame to mine that explain what both saw, best first; none if they never met."""
    known = recogniser(model, mine, theirs)
    if min(len(mine), len(theirs)) < known.matches:
        return []
    looked = _spread_out(known, theirs)
    sights = known.sights(mine, looked)
    found: list[Meeting] = []
    for _ in range(ALTERNATIVES):
        if (meeting := _agreed(known, sights)) is None:
            break
        share = _share(known, mine, looked, meeting)
        meeting = Meeting(meeting.origin, meeting.covariance, meeting.sights, share)
        if share >= SHARE:
            found.append(meeting)
        # Sights that it explains do not vote again.
        off = known.space.difference(known.space.step(meeting.origin, sights.pose)[:, None], sights.sighted)
        explained = (off.abs() <= 2 * known.tolerance).all(-1)
        sights = Sights(sights.pose, sights.sighted, sights.weight.masked_fill(explained, 0), sights.variance)
    return sorted(found, key=lambda meeting: -meeting.support)


def is_clear(found: list[Meeting]) -> bool:
    """Whether the first of these motions has clearly more support than the next."""
    return len(found) == 1 or (len(found) > 1 and found[0].support >= CLEARLY * found[1].support)


def _spread_out(known: Recogniser, memory: Memory) -> Memory:
    """At most `LOOKS` entries from different places: an agent that stands still sees one place, not a hundred."""
    number = torch.linspace(0, len(memory) - 1, min(len(memory), SCANNED)).round().long()
    pose = known.space.pose_at(memory.place_at(number[None]))[0]
    square = (pose / (2 * known.tolerance)).floor().long()
    _, which = square.unique(dim=0, return_inverse=True)
    first = torch.full((int(which.max()) + 1,), len(which)).scatter_reduce(0, which, torch.arange(len(which)), "amin")
    chosen = first.sort().values
    if len(chosen) > LOOKS:
        chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:LOOKS].sort().values]
    return memory.at(number[chosen])


def _agreed(known: Recogniser, sights: Sights) -> Meeting | None:
    """The motion that most sights agree on; None if too few do."""
    space, tolerance = known.space, known.tolerance
    likely = sights.weight.flatten().argsort(descending=True, stable=True)[:VOTES]
    view = likely // sights.weight.shape[1]
    votes = space.start_of(sights.pose[view], sights.sighted.flatten(0, 1)[likely])
    off = space.difference(space.step(votes[:, None], sights.pose)[:, :, None], sights.sighted)
    counted = sights.weight * (-0.5 * (off / tolerance).square().sum(-1)).exp()
    support = counted.amax(-1).sum(-1)  # a view votes once, however many entries it matches
    best = int(support.argmax())
    if support[best] < known.fewest:
        return None
    origin, covariance = votes[best], torch.eye(space.size)
    for _ in range(ROUNDS):
        off = space.difference(space.step(origin, sights.pose)[:, None], sights.sighted)
        counted = sights.weight * (-0.5 * (off / tolerance).square().sum(-1)).exp()
        weight, which = counted.max(-1)
        off = off.gather(1, which[:, None, None].expand(-1, 1, space.size))[:, 0]
        variance = sights.variance.gather(1, which[:, None, None].expand(-1, 1, space.size))[:, 0]
        # Gauss-Newton; the slope is the Jacobian of each sighted pose by the origin.
        slope = _slope(lambda x: space.step(x, sights.pose[:, None].double()), origin)
        pull = slope.mT * (weight[:, None, None] / variance[:, None, :])
        covariance = torch.linalg.inv((pull @ slope).sum(0))
        origin = origin + covariance @ (pull @ off[..., None]).sum(0)[:, 0]
    return Meeting(origin, covariance, float(weight.sum()), 0.0)


def _share(known: Recogniser, mine: Memory, looked: Memory, meeting: Meeting) -> float:
    """Among the other's places that this motion maps onto mine, the fraction where both remember the same view."""
    space = known.space
    pose = space.step(meeting.origin, space.pose_at(looked.place.mean))
    near = mine.nearest(Belief(space.place(pose)), min(NEAR, len(mine))).index
    relative = space.displacement(space.pose_at(mine.place_at(near)), pose[:, :, None])
    both = known.near(relative)
    if not both.any():
        return 0.0
    alike = both & known.alike(mine.code_at(near), looked.code, relative)
    return float(alike.any(-1).sum() / both.any(-1).sum())
