"""Pose estimates of a walk, from actions and, with landmarks, from frames."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.model.landmark import Known
from gtmsm.model.landmark_filter import Sights, Watched
from gtmsm.model.memory import Memory
from gtmsm.model.recall import SingleView
from gtmsm.model.rendering import Show
from gtmsm.model.slips import Slips
from gtmsm.tensors import Actions, Belief, Gaussian, State, States, Variance

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel


@dataclass(frozen=True)
class Observed:
    """The pose estimates of a walk, and the entries to memorise."""

    entries: Memory
    walk: Belief
    made: Actions
    """Its actions, with 0 for those that failed according to the views (`Bumps`)."""
    start: State
    """The state before the first step, estimated if it was not given."""
    sights: Sights | None
    """What was recognised at each step, by the numbers of entries; in Bayes' form of landmarks."""
    believed: States
    """The filtered state after each step, from frames up to that step; `walk` may be smoothed as well (`closure`)."""
    watched: Watched | None = None
    """Each step as estimated from the previous frame, with `watch`."""


class Followed(NamedTuple):
    """The pose estimates after each action of a walk, and what they are based on."""

    walk: Belief
    made: Actions
    """Its actions, with 0 for those that failed according to the views (`Bumps`)."""
    start: State
    """The state before the first step, estimated if it was not given."""
    variance: Variance | None
    """Variance of the poses, with landmarks."""
    slips: Float[Tensor, "batch time H"] | None
    """Statistics of slipped steps after each step (`Slips`), if they are learned."""
    sights: Sights | None
    """What was recognised at each step, by the numbers of entries; in Bayes' form of landmarks."""
    believed: States
    """The filtered state after each step, from frames up to that step."""
    watched: Watched | None = None
    """Each step as estimated from the previous frame, with `watch`."""


def follow(
    model: "WorldModel",
    actions: Actions,
    code: Gaussian,
    memory: Memory | None,
    here: Belief | None,
    closure: int | None = None,
) -> Followed:
    """Estimate the poses of a walk from its actions and, with landmarks, from the codes of its frames."""
    made = _made(model, actions, code, memory)
    here = here or Belief(model.motion.start(len(made)))
    if model.landmarks is None:
        walk = model.motion.believe(here, made)
        return Followed(walk, made, here.mean, None, None, None, walk.mean)
    past = known(model, memory, code)
    variance = model.landmarks.as_variance(here)
    show = views_of(model, memory)
    trace = model.landmarks.trace(model.motion, here.mean, variance, made, code, past, closure=closure, show=show)
    (state, variance, slips, watched), sights = trace.track, trace.sights
    if sights is not None:
        sights = sights._replace(index=past.numbers(made.shape[1])[sights.index])
    walk = Belief(state, model.landmarks.as_covariance(variance, state))
    return Followed(walk, made, trace.start, variance, slips, sights, trace.believed, watched)


def _made(model: "WorldModel", actions: Actions, code: Gaussian, memory: Memory | None) -> Actions:
    """The actions, with 0 for those that failed according to the views (`Bumps`)."""
    if model.bumps is None:
        return actions
    before = None
    if memory is not None and (held := len(memory)):
        last = torch.full((memory.batch,), held - 1, device=actions.device)
        before = memory.code_at(last).mean
    return model.bumps.noticed(code.mean, actions, before)


def views_of(model: "WorldModel", memory: Memory | None) -> Show | None:
    """A function that predicts the views of `memory` at poses, if landmarks judge poses by them; else None."""
    if memory is None or model.landmarks is None or not model.landmarks.settings.rendered:
        return None

    def show(pose: Float[Tensor, "batch n D"]) -> Gaussian:
        forecast = model.read(memory, Belief(model.motion.place(pose)))
        assert isinstance(forecast, SingleView)  # ensured by the settings
        return forecast.code

    return show


def known(model: "WorldModel", memory: Memory | None, code: Gaussian) -> Known:
    """The entries of `memory` that landmarks may recognise in frames of these codes; none without a memory."""
    landmarks = model.require_landmarks("recognise places")
    if memory is None or not len(memory):
        start = model.motion.start(len(code.mean))[:, None][:, :0]
        return Known.whole(start[..., : model.motion.pose_size], start[..., : len(landmarks.groups)], code[:, :0])
    found = memory.alike(code.mean, landmarks.asked)
    if found.variance is None:
        raise InputError("this memory does not say how sure its poses are; memorise with a model with landmarks")
    slips = None if found.slips is None else Slips.of_column(found.slips[:, -1])  # after the last step
    return Known(model.motion.pose_at(found.place), found.variance, found.code, found.number, found.held, slips)
