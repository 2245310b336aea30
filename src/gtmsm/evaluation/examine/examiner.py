"""The base class of examiners: what scoring needs to know about a kind of world."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.store import Chart
from gtmsm.evaluation.gallery import Gallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.pose import space_of
from gtmsm.tensors import Actions
from gtmsm.worlds.slip import SlipConfig, Slipping, slipping, unwrapped
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

Walked: TypeAlias = Float[Tensor, "batch time S"]
"""Poses of a model, relative to the start of each walk."""
Placed: TypeAlias = Float[Tensor, "batch time P"]
Errors: TypeAlias = dict[str, Float[Tensor, "n time"]]
Masks: TypeAlias = dict[str, Bool[Tensor, "batch future"]]
"""Steps of special interest, by name."""
CALIBRATED = 32
"""Number of walks to which the map from a model's poses to the world's is fitted."""


class Examiner(ABC):
    """Scores walks of one kind of world; its methods refer to the batch of walks that was recorded last.

    Poses are compared relative to the start of their walk. Those of a `metric` model are in the world's units; those
    of any other model are compared after the best-fitting map.
    """

    unit: ClassVar[str]
    """Unit of errors in position."""
    right: ClassVar[str]
    """The tolerance within which a pose counts as right, in words."""
    exact: bool
    """Whether places are discrete, so that a retrieval is either right or wrong."""
    privileges: str
    """Information that a model is given beyond frames and actions, in words."""
    poses: str
    """How inferred poses are compared with true ones, in words."""
    world: Any
    """The world, without the wrapper that makes steps slip."""

    def __init__(self, world: World, tau: int, metric: bool = False) -> None:
        """`tau` steps of each walk are memorised; with `metric`, the model's poses are in the world's units."""
        self.world, self.tau, self.metric = unwrapped(world), tau, metric
        self.slips = world if isinstance(world, Slipping) else None
        self._examples: dict[str, Any] = {}

    @abstractmethod
    def calibrate(
        self, model: WorldModel, walker: Walker, steps: int, seed: int, elsewhere: World | None = None
    ) -> None:
        """Fit the map from the model's poses to the world's on walks that are not scored. They are of this world, or of
        `elsewhere`, another of its kind, for recordings that can only be replayed."""

    # ---- places

    @property
    def knows_places(self) -> bool:
        """Whether it is known which steps are at memorised places."""
        return True

    def prepared(self, clip: Clip) -> Clip:
        """Prepare a recorded clip for the model."""
        return clip

    @property
    @abstractmethod
    def where(self) -> Int[Tensor, "n"]:
        """The number of each agent's place."""

    @abstractmethod
    def same_place(
        self, past: Float[Tensor, "n before D"], now: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time before"]:
        """Which true poses of `past` are at the same place as each one of `now`."""

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a memorised place."""
        return self.same_place(clip.true_pose[:, : self.tau], clip.true_pose[:, self.tau :]).any(-1)

    def bumped(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """At which predicted steps the agent bumped into something that the model cannot know."""
        return torch.zeros(clip.x.shape[0], clip.steps - self.tau, dtype=torch.bool)

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> Bool[Tensor, "batch future"] | None:
        """Whether each retrieved memory entry was recorded at the true place; None if places are not `exact`."""
        if not self.exact:
            return None
        same = self.same_place(clip.true_pose[:, : self.tau], clip.true_pose[:, self.tau :])
        return same.gather(2, retrieved.long()[..., None])[..., 0]

    @abstractmethod
    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed] | None:
        """The true places in the world's units, and the same in the space of the model's `walk`; None if unknown.

        Controls that are given true places compare views by the distances of these.
        """

    def move_in(self, generator: torch.Generator) -> None:
        """Put new agents at random poses in the places of the current agents."""
        self._move_in(generator)
        if self.slips is not None:
            self.slips.slip_by(generator)

    @abstractmethod
    def _move_in(self, generator: torch.Generator) -> None: ...

    def slippery(self, probability: float) -> World:
        """The same world with another probability of slips."""
        config = SlipConfig() if self.slips is None else self.slips.config
        return slipping(self.world, replace(config, probability=probability))

    def clumsy(self, walker: Walker) -> Walker | None:
        """The same walker without its avoidance of obstacles; None if that makes no difference."""
        return None

    def careful(self, walker: Walker) -> Walker | None:
        """For a walker that bumps: the same with avoidance of obstacles; None if that makes no difference."""
        return None

    def by_equal_frames(self, clip: Clip, overlaps: bool = False) -> Float[Tensor, "n time D"] | None:
        """Poses by a control that knows the true moves and treats places with equal frames as the same.

        None if equal frames do not occur in this kind of world. With `overlaps`, the control also knows how frames of
        neighbouring places overlap, and how steps slip.
        """
        return None

    # ---- errors

    @abstractmethod
    def errors(self, believed: Float[Tensor, "n time D"], true: Float[Tensor, "n time D"]) -> Errors:
        """Errors of poses by name; both arguments are relative to the start; headings in degrees."""

    @abstractmethod
    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Whether these errors are small enough to be `right`."""

    def as_claimed(self, errors: Errors, settings: LandmarkConfig) -> Bool[Tensor, "n time"]:
        """Whether errors are within the tolerances that the model's confidence refers to."""
        return self.within(errors)

    def judge(self, clip: Clip, frames: Tensor) -> Errors:
        """Additional errors of predicted frames, by name."""
        return {}

    def masks(self, clip: Clip) -> Masks:
        """Steps of special interest, by name; the errors of `judge` are averaged over the first mask."""
        return {}

    # ---- walks

    @property
    def has_noted(self) -> bool:
        """Whether there are walks for `scores`."""
        return bool(self._examples)

    def note(self, clip: Clip, walk: Walked, imagined: Tensor, reckoned: Walked | None = None) -> None:
        """Add a batch of walks to `scores`, the first few also to `gallery`; `reckoned`: poses by actions alone."""
        self._add(clip, walk, reckoned)
        if not self._examples:
            some = slice(4)
            parts = {
                "truth": clip.x[:, self.tau :],
                "imagined": imagined,
                "true_pose": clip.true_pose,
                "seen": self.revisited(clip),
            }
            self._examples = {name: part[some].cpu().numpy() for name, part in parts.items()}
            self._examples |= self._scenes(clip[some], walk[some])

    @abstractmethod
    def _add(self, clip: Clip, walk: Walked, reckoned: Walked | None) -> None:
        """Store what `scores` needs of a batch."""

    @abstractmethod
    def _scenes(self, clip: Clip, walk: Walked) -> dict[str, Any]:
        """Additional data of the first few clips for the gallery: inferred poses, and data specific to the world."""

    @abstractmethod
    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch D"]:
        """Poses of the model in the world's units, relative to the start of the walk; call `note` before."""

    @abstractmethod
    def scores(self) -> dict[str, Any]:
        """Scores of the inferred poses, over all walks noted."""

    @abstractmethod
    def gallery(self, model: WorldModel) -> Gallery:
        """The first few walks noted, for the report."""

    @abstractmethod
    def chart(self) -> Chart:
        """A map of the first agent's place."""


def dead_reckoning(model: WorldModel, a: Actions) -> Walked:
    """Poses of a model by actions alone; on the device of the actions, wherever the model is."""
    start = model.motion.start(len(a))
    return model.motion.unroll(start, a.to(start.device)).to(a.device)


def from_start(start: Float[Tensor, "n D"], pose: Float[Tensor, "n time D"]) -> Float[Tensor, "n time D"]:
    """Poses relative to a start."""
    return space_of(pose.shape[-1]).displacement(start[:, None], pose)


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the tensors of batches, by name."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
