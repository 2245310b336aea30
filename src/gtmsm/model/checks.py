"""What the verbs of a world model refuse, each in one line that says how to fix it."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief


class Sized(Protocol):
    """The sizes that a model was built for."""

    frame_shape: tuple[int, int, int]
    action_size: int

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights, whose type is that of all it computes."""


def require_clips(model: Sized, frames: Tensor, actions: Tensor, verb: str) -> None:
    """Frames in [0, 1] and actions of the sizes this model was built for, as many of one as of the other."""
    require_actions(model, actions)
    require_frames(model, frames)
    if frames.dtype != actions.dtype:
        raise InputError(
            f"frames are {frames.dtype} but actions are {actions.dtype}; give both as the same floats, "
            "frames in [0, 1] (bytes: frames.float() / 255)"
        )
    if frames.shape[:2] != actions.shape[:2]:
        raise InputError(
            f"{tuple(frames.shape[:2])} frames but {tuple(actions.shape[:2])} actions (batch, time); "
            "give one action per frame: the one that led to it"
        )
    require(len(frames) > 0, "there are 0 clips; give at least 1")
    require(frames.shape[1] > 0, f"there is nothing to {verb}: frames and actions have 0 steps; give at least 1")
    if not torch.compiler.is_compiling() and not (frames.min() >= 0 and frames.max() <= 1):
        raise InputError(
            f"frames lie in [{frames.min():.3g}, {frames.max():.3g}]; expected [0, 1]: bytes divided by 255"
        )


def require_frames(model: Sized, frames: Tensor) -> None:
    """Frames of the size and kind this model was built for."""
    if not isinstance(frames, Tensor):
        raise InputError(f"frames are a {type(frames).__name__}; give a tensor: torch.from_numpy(frames)")
    if tuple(frames.shape[2:]) != tuple(model.frame_shape) or frames.dim() != 5:
        raise InputError(
            f"frames have shape {tuple(frames.shape)}; this model expects (batch, time, "
            f"{', '.join(map(str, model.frame_shape))}) in [0, 1]"
        )
    if not frames.is_floating_point():
        raise InputError(f"frames are {frames.dtype}; give floats in [0, 1] (bytes: frames.float() / 255)")


def require_actions(model: Sized, actions: Tensor) -> None:
    """Actions as float vectors of the right size."""
    if not isinstance(actions, Tensor):
        raise InputError(f"actions are a {type(actions).__name__}; give a tensor: torch.from_numpy(actions)")
    if actions.dim() != 3 or actions.shape[-1] != model.action_size or not actions.is_floating_point():
        raise InputError(
            f"actions are {actions.dtype} of shape {tuple(actions.shape)}; this model expects floats of shape "
            f"(batch, time, {model.action_size}), one-hot where actions are discrete"
        )
    if actions.dtype != (dtype := next(model.parameters()).dtype):
        raise InputError(f"actions are {actions.dtype} but this model computes in {dtype}; convert one of them")


def require_kind(thing: object, wanted: type) -> None:
    """Refuse an object of another type."""
    if not isinstance(thing, wanted):
        raise InputError(f"got a {type(thing).__name__} for a {wanted.__name__}; memorise returns (memory, here)")


def require_counts(clips: int, memory: Memory | None, here: Belief | None) -> None:
    """As many memories and starting poses as there are clips."""
    for thing, wanted in ((memory, Memory), (here, Belief)):
        if thing is not None:
            require_kind(thing, wanted)
    if here is not None and here.mean.dim() != 2:
        raise InputError(f"here has shape {tuple(here.mean.shape)}; give one pose per clip, like walk[:, -1]")
    for what, count in (
        ("memories", clips if memory is None else memory.batch),
        ("places to set out from", clips if here is None else len(here.mean)),
    ):
        require(count == clips, f"{count} {what} and {clips} clips; give as many of each")


def require_entries(memory: Memory, asked: int) -> None:
    """A memory that holds enough entries to look up."""
    require(len(memory) > 0, "this memory is empty; memorise a walk before you ask where something was seen")
    require(
        asked <= len(memory),
        f"this model looks up {asked} entries (K') but memory holds {len(memory)}; memorise at least {asked} steps",
    )


def start_of_plans(memory: Memory, here: Belief, plans: int) -> Belief:
    """As many memories and starting poses as plans, or one for all; returns a starting pose for each plan."""
    require_kind(memory, Memory)
    require_kind(here, Belief)
    if len(here.mean) not in (1, plans) or memory.batch not in (1, plans):
        raise InputError(
            f"{memory.batch} memories, {len(here.mean)} places to start from and {plans} plans; "
            "give as many of each, or one memory and one place for all plans"
        )
    if len(here.mean) == plans:
        return here
    covariance = None if here.covariance is None else here.covariance.expand(plans, -1, -1)
    return Belief(here.mean.expand(plans, -1), covariance)


def require_split(steps: int, tau: int, neighbours: int) -> None:
    """A clip that leaves something to memorise and something to explain."""
    require(0 < tau < steps, f"tau is {tau}; a clip of {steps} steps needs 0 < tau < {steps}")
    require(
        neighbours <= tau,
        f"tau is {tau} but this model reads {neighbours} neighbours; memorise at least as many steps",
    )
