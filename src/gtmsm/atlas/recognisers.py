"""What tells that two agents saw one place: landmarks, or for models without them how alike codes are."""

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
"""How much views of one place may differ, where successive views of a walk differ by 1."""
SHARPEST = 0.05
"""Smaller differences between views say nothing about the distance between their poses."""


@dataclass(frozen=True)
class Sights:
    """What each view of the other agent matches in this one's memory."""

    pose: Float[Tensor, "time D"]
    """Of the views, on the other's map."""
    sighted: Float[Tensor, "time K D"]
    """Where this map says that they were seen."""
    weight: Float[Tensor, "time K"]
    """Probability that it is right."""
    variance: Float[Tensor, "time K D"]


class Recogniser(ABC):
    """Finds out which views of two agents show one place."""

    space: Space
    tolerance: Float[Tensor, "D"]
    """The largest error of a pose that counts as recognised."""
    matches: int
    """Entries that are looked up for each view."""
    fewest: float
    """Places that must be recognised, as a sum of probabilities."""

    @abstractmethod
    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look the other's views up in my memory."""

    @abstractmethod
    def alike(self, entries: Gaussian, code: Gaussian, relative: Float[Tensor, "1 n K D"]) -> Bool[Tensor, "1 n K"]:
        """Whether each of K entries (`1 n K Z`) shows the place of a view (`1 n Z`) at this relative pose."""

    def near(self, relative: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether a relative pose is so small that both have been at one place."""
        wrapped = self.space.difference(torch.zeros_like(relative), relative)
        position, turn = wrapped[..., : self.space.positions], wrapped[..., self.space.positions :]
        return (position.norm(dim=-1) <= self.tolerance[0]) & (
            turn.abs() <= self.tolerance[self.space.positions :]
        ).all(-1)


@torch.no_grad()
def recogniser(model: WorldModel, *memories: Memory) -> Recogniser:
    """By the landmarks of a model or, where it has none, by how views of these memories differ."""
    return ByLikeness(model, memories) if model.landmarks is None else ByLandmarks(model.landmarks)


class ByLandmarks(Recogniser):
    """A network compares codes: it says how likely it is that they show one place, and from which relative pose."""

    fewest = 6.0

    def __init__(self, landmarks: Landmarks) -> None:
        self.landmarks, self.space = landmarks, landmarks.space
        self.tolerance, self.matches = landmarks.compare.tolerances(torch.zeros(1)), landmarks.settings.matches

    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look the other's views up in my memory."""
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
        """By the network."""
        compare = self.landmarks.compare
        distance = _differences(entries, code)
        bank = Gaussian(entries.mean.flatten(1, 2), entries.log_var.flatten(1, 2))
        index = torch.arange(distance.numel(), device=distance.device).view(distance.shape)
        match = compare(bank, code, Lookup(index, torch.ones_like(index, dtype=torch.bool), distance))
        close = compare.right(self.space.difference(match.offset, relative))
        return (match.log_odds > 0) & close


class ByLikeness(Recogniser):
    """Views that differ little were seen from nearly one pose; the unit is what successive views of a walk differ by.

    Two views that differ by one unit show the same place with a probability of one half, about a step away.
    """

    matches = 12
    fewest = 10.0  # more than landmarks need: different places are more often alike by codes alone

    def __init__(self, model: WorldModel, memories: tuple[Memory, ...]) -> None:
        self.space, settings = model.motion.space, PlanConfig()
        pace = gait(model.motion, torch.eye(model.action_size))
        step = [pace.stride if pace.turn else pace.shortest] * self.space.positions + [pace.turn] * self.space.angles
        self.step = torch.tensor(step)
        # What counts as there when a plan is made.
        wide = [3.0 if pace.turn else 1.0] * self.space.positions + [2.0] * self.space.angles
        self.tolerance = settings.near * torch.tensor(wide) * self.step
        self.usual = torch.stack([usual_difference(memory.code) for memory in memories]).mean()

    def sights(self, mine: Memory, looked: Memory) -> Sights:
        """Look the other's views up in my memory."""
        found = mine.alike(looked.code.mean, self.matches)
        lookup = look_up(found.code, looked.code, self.matches)
        unlike = lookup.distance / self.usual
        sighted = gather(self.space.pose_at(found.place), lookup.index)
        variance = unlike.clamp_min(SHARPEST)[..., None] * self.step.square()
        weight = lookup.there / (1 + unlike)
        return Sights(self.space.pose_at(looked.place.mean)[0], sighted[0], weight[0], variance[0])

    def alike(self, entries: Gaussian, code: Gaussian, relative: Float[Tensor, "1 n K D"]) -> Bool[Tensor, "1 n K"]:
        """Wherever they were seen from."""
        return _differences(entries, code) <= ALIKE * self.usual


def _differences(entries: Gaussian, code: Gaussian) -> Float[Tensor, "1 n K"]:
    """Mean squared difference of codes in units of their variances."""
    scale = entries.log_var.exp() + code.log_var.exp()[:, :, None]
    return ((code.mean[:, :, None] - entries.mean).square() / scale).mean(-1)
