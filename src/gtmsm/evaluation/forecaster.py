"""The interface of anything that forecasts frames: its inputs, and what it may return beside frames."""

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
    """Predicts what will be seen along a plan, from what was seen and done so far."""

    needs_poses: bool
    """Whether it must be told true poses."""
    privileges: tuple[str, ...]
    """What it is given beyond frames and actions, in words."""

    def forecast(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> FutureFrames:
        """The frame after every action of `plan`, in [0, 1]; true poses are given only where it needs them."""


def given_to(
    forecaster: Forecaster, clip: Clip, tau: int, device: torch.device
) -> tuple[Frames, Actions, FutureActions, TruePoses | None]:
    """What it sees of a clip: frames and actions up to tau, then actions alone; true poses only if it needs them."""
    past, future = clip.split(tau)
    poses = (past.true_pose.to(device), future.true_pose.to(device)) if forecaster.needs_poses else None
    return past.x.to(device), past.a.to(device), future.a.to(device), poses


@runtime_checkable
class Oracle(Protocol):
    """A forecaster that is given the frames to be predicted: an upper bound, not a rival."""

    def told(self, truth: FutureFrames) -> Forecaster:
        """Itself, knowing the frames that are to be predicted of one batch."""


@dataclass(frozen=True)
class Guess:
    """Predicted frames and, where there are such, the memory entries and poses they rest on."""

    frames: FutureFrames
    retrieved: Int[Tensor, "batch horizon"] | None
    """The memorised step each frame was made from, where one was searched for."""
    walk: States | None = None
    """The inferred pose of every step, memorised ones first, relative to the start of the walk."""
    reckoned: States | None = None
    """The same by actions alone, where what it sees corrects it."""


@dataclass(frozen=True, kw_only=True)
class Imagined(Guess):
    """What a world model predicts, with its memory and its dream: controls and samples begin there."""

    retrieved: Int[Tensor, "batch horizon"]
    walk: States
    memory: Memory
    here: Belief
    """Where the dream begins."""
    dream: Dream


class Guessing(ABC):
    """A forecaster that also tells what its frames rest on."""

    needs_poses = False
    privileges: tuple[str, ...] = ()

    @abstractmethod
    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """As `forecast`."""

    def forecast(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> FutureFrames:
        """See `Forecaster`."""
        return self.guess(x, a, plan, poses).frames


class ModelForecaster(Guessing):
    """A world model: it memorises what was seen, and imagines what the plan would show."""

    def __init__(self, model: WorldModel, metric: bool = False) -> None:
        """`metric`: it learned from true displacements, so that its poses are in the world's units."""
        self.model, self.metric = model, metric
        self.privileges = (START, DISPLACEMENTS) if metric else (START,)

    @torch.no_grad()
    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Imagined:
        """The mean path, and the heaviest component or point estimate of the prior."""
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
