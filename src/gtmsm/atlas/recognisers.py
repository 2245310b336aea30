"""Recognising that two agents saw the same place: by landmarks or, in models without them, by similar codes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.landmark import Landmarks
from gtmsm.model.memory import Memory
from gtmsm.model.planning.gait import gait
from gtmsm.model.planning.goal import usual_difference
from gtmsm.model.planning.terrain import PlanConfig
from gtmsm.model.recognition import Lookup, look_up
from gtmsm.pose import Space
from gtmsm.tensors import Gaussian, gather

ALIKE = 1.5
"""Largest difference between views of one place; the unit is the usual difference of successive views of a walk."""
SHARPEST = 0.05
"""Lower bound of differences between views: smaller ones say nothing about the distance between their poses."""


@dataclass(frozen=True)
class Sights:
    """Matches of the other agent's views in this agent's memory."""

    pose: Float[Tensor, "time D"]
    """Pose of each view on the other's map."""
    sighted: Float[Tensor, "time K D"]
    """Poses on this map from which the view was seen according to each match."""
    weight: Float[Tensor, "time K"]
    """Probability that each match is right."""
    variance: Float[Tensor, "time K D"]


class Recogniser(ABC):
    """Decides which views of two agents show the same place."""

    space: Space
    tolerance: Float[Tensor, "D"]
    """The largest error of a pose that counts as recognised."""
    matches: int
    """Number of entries that are looked up for each view."""
    fewest: float
    """Minimum number of places that must be recognised, as a sum of probabilities."""

    @abstractmethod
    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look up the other agent's views in my memory."""

    @abstractmethod
    def alike(self, entries: Gaussian, code: Gaussian, relative: Float[Tensor, "1 n K D"]) -> Bool[Tensor, "1 n K"]:
        """Whether each of K entries (`1 n K Z`) shows the place of a view (`1 n Z`) at this relative pose."""

    def near(self, relative: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether a relative pose is small enough to count as the same place."""
        wrapped = self.space.difference(torch.zeros_like(relative), relative)
        position, turn = wrapped[..., : self.space.positions], wrapped[..., self.space.positions :]
        return (position.norm(dim=-1) <= self.tolerance[0]) & (
            turn.abs() <= self.tolerance[self.space.positions :]
        ).all(-1)


@torch.no_grad()
def recogniser(model: WorldModel, *memories: Memory) -> Recogniser:
    """Recognise by the landmarks of a model or, if it has none, by the codes of these memories."""
    return ByLikeness(model, memories) if model.landmarks is None else ByLandmarks(model.landmarks)


class ByLandmarks(Recogniser):
    """Compares codes by a network, which predicts the probability of one place and the relative pose."""

    fewest = 6.0

    def __init__(self, landmarks: Landmarks) -> None:
        self.landmarks, self.space = landmarks, landmarks.space
        self.tolerance, self.matches = landmarks.compare.tolerances(torch.zeros(1)), landmarks.settings.matches

    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look up the other agent's views in my memory."""
        landmarks, compare = self.landmarks, self.landmarks.compare
        found = mine.alike(looked.code.mean, landmarks.asked)
        if found.variance is None or looked.variance is None:
            raise InputError("these memories do not say how sure their poses are; memorise with a model with landmarks")
        lookup = look_up(found.code, looked.code, self.matches)
        match = compare(found.code, looked.code, lookup)
        sighted = self.space.step(gather(self.space.pose_at(found.place), lookup.index), match.offset)
        variance = match.noise + gather(found.variance, lookup.index) + looked.variance[:, :, None]
        weight = compare.evidence(match.log_odds, match.noise).sigmoid() * lookup.there
        spread = landmarks.as_covariance(variance, sighted).diagonal(dim1=-2, dim2=-1)
        return Sights(self.space.pose_at(looked.place.mean)[0], sighted[0], weight[0], spread[0])

    def alike(self, entries: Gaussian, code: Gaussian, relative: Float[Tensor, "1 n K D"]) -> Bool[Tensor, "1 n K"]:
        """Compare codes by the network."""
        compare = self.landmarks.compare
        distance = _differences(entries, code)
        bank = Gaussian(entries.mean.flatten(1, 2), entries.log_var.flatten(1, 2))
        index = torch.arange(distance.numel(), device=distance.device).view(distance.shape)
        match = compare(bank, code, Lookup(index, torch.ones_like(index, dtype=torch.bool), distance))
        close = compare.right(self.space.difference(match.offset, relative))
        return (match.log_odds > 0) & close


class ByLikeness(Recogniser):
    """Compares codes by their difference, in units of the usual difference between successive views of a walk.

    Two views that differ by one unit are taken to show the same place with probability one half, about a step apart.
    """

    matches = 12
    fewest = 10.0  # more than landmarks need: different places are more often alike by codes alone

    def __init__(self, model: WorldModel, memories: tuple[Memory, ...]) -> None:
        self.space, settings = model.motion.space, PlanConfig()
        pace = gait(model.motion, torch.eye(model.action_size))
        step = [pace.stride if pace.turn else pace.shortest] * self.space.positions + [pace.turn] * self.space.angles
        self.step = torch.tensor(step)
        # The distance at which a plan counts as arrived.
        wide = [3.0 if pace.turn else 1.0] * self.space.positions + [2.0] * self.space.angles
        self.tolerance = settings.near * torch.tensor(wide) * self.step
        self.usual = torch.stack([usual_difference(memory.code) for memory in memories]).mean()

    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look up the other agent's views in my memory."""
        found = mine.alike(looked.code.mean, self.matches)
        lookup = look_up(found.code, looked.code, self.matches)
        unlike = lookup.distance / self.usual
        sighted = gather(self.space.pose_at(found.place), lookup.index)
        variance = unlike.clamp_min(SHARPEST)[..., None] * self.step.square()
        weight = lookup.there / (1 + unlike)
        return Sights(self.space.pose_at(looked.place.mean)[0], sighted[0], weight[0], variance[0])

    def alike(self, entries: Gaussian, code: Gaussian, relative: Float[Tensor, "1 n K D"]) -> Bool[Tensor, "1 n K"]:
        """Compare codes; the relative pose does not matter."""
        return _differences(entries, code) <= ALIKE * self.usual


def _differences(entries: Gaussian, code: Gaussian) -> Float[Tensor, "1 n K"]:
    """Mean squared difference of codes in units of their variances."""
    scale = entries.log_var.exp() + code.log_var.exp()[:, :, None]
    return ((code.mean[:, :, None] - entries.mean).square() / scale).mean(-1)
