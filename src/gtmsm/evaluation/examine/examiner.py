"""What scoring needs to know of a kind of world, and what is the same in all of them."""

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
"""Poses of a model, from the start of each walk."""
Placed: TypeAlias = Float[Tensor, "batch time P"]
Errors: TypeAlias = dict[str, Float[Tensor, "n time"]]
Masks: TypeAlias = dict[str, Bool[Tensor, "batch future"]]
"""Steps of special interest, by name."""
CALIBRATED = 32
"""Number of walks to which the map from a model's poses to the world's is fitted."""


class Examiner(ABC):
    """Scores walks of one kind of world; it refers to the walk that was recorded last.

    Poses are compared relative to the start of their walk. Those of a `metric` model are in the world's units; those
    of any other model are compared after the best fitting map.
    """

    unit: ClassVar[str]
    """Unit of errors in position."""
    right: ClassVar[str]
    """The tolerance within which a pose counts as right, in words."""
    exact: bool
    """Whether two places are either equal or different, so that a retrieval is right or wrong."""
    privileges: str
    """What a model was given beyond frames and actions."""
    poses: str
    """How inferred poses are compared with true ones."""
    world: Any
    """The world, without the wrapper that makes steps slip."""

    def __init__(self, world: World, tau: int, metric: bool = False) -> None:
        """For walks in `world` of which tau steps are memorised; `metric`: the model's poses are in its units."""
        self.world, self.tau, self.metric = unwrapped(world), tau, metric
        self.slips = world if isinstance(world, Slipping) else None
        self._examples: dict[str, Any] = {}

    @abstractmethod
    def calibrate(
        self, model: WorldModel, walker: Walker, steps: int, seed: int, elsewhere: World | None = None
    ) -> None:
        """Find out how the model's poses lie in the world, by walks that are not scored: of this world, or of another
        of its kind where recordings can only be played again."""

    # ---- places

    @property
    def knows_places(self) -> bool:
        """Whether it can be told which steps are at memorised places."""
        return True

    def prepared(self, clip: Clip) -> Clip:
        """A recorded clip, as the model is to get it."""
        return clip

    @property
    @abstractmethod
    def where(self) -> Int[Tensor, "n"]:
        """The number of each agent's place."""

    @abstractmethod
    def same_place(
        self, past: Float[Tensor, "n before D"], now: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time before"]:
        """Which true poses of the past each present one is at or near."""

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a memorised place."""
        return self.same_place(clip.true_pose[:, : self.tau], clip.true_pose[:, self.tau :]).any(-1)

    def bumped(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """At which predicted steps the agent bumped into something that it cannot know of."""
        return torch.zeros(clip.x.shape[0], clip.steps - self.tau, dtype=torch.bool)

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> Bool[Tensor, "batch future"] | None:
        """Whether each memory entry retrieved was recorded at the present place; None where places are not exact."""
        if not self.exact:
            return None
        same = self.same_place(clip.true_pose[:, : self.tau], clip.true_pose[:, self.tau :])
        return same.gather(2, retrieved.long()[..., None])[..., 0]

    @abstractmethod
    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed] | None:
        """Places whose distance says how similar views are: true ones, and those of a model's `walk`.

        None where that is unknown.
        """

    def move_in(self, generator: torch.Generator) -> None:
        """Put new agents anywhere into the places where agents are now."""
        self._move_in(generator)
        if self.slips is not None:
            self.slips.slip_by(generator)

    @abstractmethod
    def _move_in(self, generator: torch.Generator) -> None: ...

    def slippery(self, probability: float) -> World:
        """The same world where actions slip with another probability."""
        config = SlipConfig() if self.slips is None else self.slips.config
        return slipping(self.world, replace(config, probability=probability))

    def clumsy(self, walker: Walker) -> Walker | None:
        """The same walker without its avoidance of obstacles; None where that makes no difference."""
        return None

    def careful(self, walker: Walker) -> Walker | None:
        """Of a walker that bumps: the same, avoiding obstacles; None where that makes no difference."""
        return None

    def by_equal_frames(self, clip: Clip, overlaps: bool = False) -> Float[Tensor, "n time D"] | None:
        """Poses by a control that knows the true moves and takes equal frames for one place; None: frames differ.

        With `overlaps`, it is also told how frames of neighbouring places overlap, and how steps slip.
        """
        return None

    # ---- errors

    @abstractmethod
    def errors(self, believed: Float[Tensor, "n time D"], true: Float[Tensor, "n time D"]) -> Errors:
        """Errors of poses by name, both from the start; headings in degrees."""

    @abstractmethod
    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Whether these errors are small enough to be `right`."""

    def as_claimed(self, errors: Errors, settings: LandmarkConfig) -> Bool[Tensor, "n time"]:
        """Whether they are within the tolerances that the model learned to be sure of."""
        return self.within(errors)

    def judge(self, clip: Clip, frames: Tensor) -> Errors:
        """More errors of predicted frames, by name."""
        return {}

    def masks(self, clip: Clip) -> Masks:
        """Steps of special interest, by name; what `judge` finds is averaged over the first of them."""
        return {}

    # ---- walks

    @property
    def has_noted(self) -> bool:
        """Whether there are walks to tell `scores` of."""
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
        """Keep what `scores` needs."""

    @abstractmethod
    def _scenes(self, clip: Clip, walk: Walked) -> dict[str, Any]:
        """More of the first few clips, for the gallery: inferred poses, and what is particular to the world."""

    @abstractmethod
    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch D"]:
        """Poses of the model from the start of its walk, in the world's units; after `note`."""

    @abstractmethod
    def scores(self) -> dict[str, Any]:
        """Of all walks noted: how well poses were inferred."""

    @abstractmethod
    def gallery(self, model: WorldModel) -> Gallery:
        """The first few walks noted, for people."""

    @abstractmethod
    def chart(self) -> Chart:
        """The place of the first agent from above."""


def dead_reckoning(model: WorldModel, a: Actions) -> Walked:
    """Where actions alone lead a model; on the device of the actions, wherever the model is."""
    start = model.motion.start(len(a))
    return model.motion.unroll(start, a.to(start.device)).to(a.device)


def from_start(start: Float[Tensor, "n D"], pose: Float[Tensor, "n time D"]) -> Float[Tensor, "n time D"]:
    """Poses as they lie from a start."""
    return space_of(pose.shape[-1]).displacement(start[:, None], pose)


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name of one batch after the other, as one of each name."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
