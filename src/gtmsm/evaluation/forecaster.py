"""The interface of anything that forecasts frames: its inputs, and what it may return in addition to frames."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.tensors import Actions, Belief, Frames, FutureActions, FutureFrames, States, TruePoses

START = "the start of a walk is the origin"
DISPLACEMENTS = "true displacements as targets while training"
TRUE_POSES = "true poses"
TRUE_FRAMES = "the true frames"


@runtime_checkable
class Forecaster(Protocol):
    """Predicts the frames along a plan from the frames and actions so far."""

    needs_poses: bool
    """Whether `forecast` needs true poses."""
    privileges: tuple[str, ...]
    """Information that it is given beyond frames and actions, in words."""

    def forecast(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> FutureFrames:
        """The frame after every action of `plan`, in [0, 1]; `poses` is given only if `needs_poses`."""


def given_to(
    forecaster: Forecaster, clip: Clip, tau: int, device: torch.device
) -> tuple[Frames, Actions, FutureActions, TruePoses | None]:
    """Inputs of a forecaster from a clip: frames and actions up to tau, then actions; true poses if it needs them."""
    past, future = clip.split(tau)
    poses = (past.true_pose.to(device), future.true_pose.to(device)) if forecaster.needs_poses else None
    return past.x.to(device), past.a.to(device), future.a.to(device), poses


@runtime_checkable
class Oracle(Protocol):
    """A forecaster that is given the frames to be predicted: an upper bound, not a rival."""

    def told(self, truth: FutureFrames) -> Forecaster:
        """A forecaster for one batch, which knows the frames that are to be predicted."""


@dataclass(frozen=True)
class Guess:
    """Predicted frames and, if there are any, the memory entries and poses they are based on."""

    frames: FutureFrames
    retrieved: Int[Tensor, "batch horizon"] | None
    """The memorised step that each frame was made from; None if no entry was retrieved."""
    walk: States | None = None
    """The inferred pose of every step, memorised ones first, relative to the start of the walk."""
    reckoned: States | None = None
    """The poses by actions alone, if the walk was corrected by frames."""


@dataclass(frozen=True, kw_only=True)
class Imagined(Guess):
    """The prediction of a world model, with the memory and the dream, which controls and samples start from."""

    retrieved: Int[Tensor, "batch horizon"]
    walk: States
    memory: Memory
    here: Belief
    """The belief about the state at which the dream begins."""
    dream: Dream


class Guessing(ABC):
    """A forecaster that also returns the memory entries and poses of its frames."""

    needs_poses = False
    privileges: tuple[str, ...] = ()

    @abstractmethod
    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """Predicted frames and what they are based on; arguments as of `Forecaster.forecast`."""

    def forecast(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> FutureFrames:
        """See `Forecaster`."""
        return self.guess(x, a, plan, poses).frames


class ModelForecaster(Guessing):
    """A world model that memorises the frames so far, and imagines the plan."""

    def __init__(self, model: WorldModel, metric: bool = False) -> None:
        """`metric`: the model learned from true displacements, so that its poses are in the world's units."""
        self.model, self.metric = model, metric
        self.privileges = (START, DISPLACEMENTS) if metric else (START,)

    @torch.no_grad()
    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Imagined:
        """Predict along the mean path, with the point estimate of the prior (of a mixture: its heaviest component)."""
        model = self.model
        seen = model.observe(x, a)
        memory, here = seen.entries, seen.walk[:, -1]
        dream = model.imagine(memory, here, plan)
        reckoned = None
        if model.landmarks is not None:
            reckoned = model.motion.unroll(model.motion.start(len(a)), torch.cat([a, plan], dim=1))
        return Imagined(
            dream.frames,
            retrieved=dream.retrieved,
            walk=torch.cat([seen.walk.mean, dream.poses], dim=1),
            reckoned=reckoned,
            memory=memory,
            here=here,
            dream=dream,
        )
