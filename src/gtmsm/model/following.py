"""Where an agent was, by its actions and, with landmarks, by what it saw."""

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
    """A walk that was followed, and what is to be memorised of it."""

    entries: Memory
    walk: Belief
    made: Actions
    """Its actions, without those that the views say have failed."""
    start: State
    """The pose before the first step, estimated where it was not given."""
    sights: Sights | None
    """What was recognised at each step, by the numbers of entries; in Bayes' form of landmarks."""
    believed: States
    """The filtered pose of each step, from what was seen up to it; `walk` may be smoothed as well (`closure`)."""
    watched: Watched | None = None
    """How each step went by what the last frame said of it, where it is asked first."""


class Followed(NamedTuple):
    """A walk: where the agent was after each action, and what that rests on."""

    walk: Belief
    made: Actions
    """Its actions, without those that the views say have failed."""
    start: State
    """The pose before the first step, estimated where it was not given."""
    variance: Variance | None
    """Of its poses, with landmarks."""
    slips: Float[Tensor, "batch time H"] | None
    """What was learned of how often steps slip, after each step (`Slips`)."""
    sights: Sights | None
    """What was recognised at each step, by the numbers of entries; in Bayes' form of landmarks."""
    believed: States
    """The filtered pose of each step, from what was seen up to it."""
    watched: Watched | None = None
    """How each step went by what the last frame said of it, where it is asked first."""


def follow(
    model: "WorldModel",
    actions: Actions,
    code: Gaussian,
    memory: Memory | None,
    here: Belief | None,
    closure: int | None = None,
) -> Followed:
    """The walk of these actions, on which frames of these codes were seen."""
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
    """The actions without those that the views before them say have failed."""
    if model.bumps is None:
        return actions
    before = None
    if memory is not None and (held := len(memory)):
        last = torch.full((memory.batch,), held - 1, device=actions.device)
        before = memory.code_at(last).mean
    return model.bumps.noticed(code.mean, actions, before)


def views_of(model: "WorldModel", memory: Memory | None) -> Show | None:
    """What `memory` shows at poses, where landmarks judge poses by that."""
    if memory is None or model.landmarks is None or not model.landmarks.settings.rendered:
        return None

    def show(pose: Float[Tensor, "batch n D"]) -> Gaussian:
        forecast = model.read(memory, Belief(model.motion.place(pose)))
        assert isinstance(forecast, SingleView)  # settings see to that
        return forecast.code

    return show


def known(model: "WorldModel", memory: Memory | None, code: Gaussian) -> Known:
    """What landmarks may recognise in `memory` when they see this; nothing where there is none."""
    landmarks = model.require_landmarks("recognise places")
    if memory is None or not len(memory):
        start = model.motion.start(len(code.mean))[:, None][:, :0]
        return Known.whole(start[..., : model.motion.pose_size], start[..., : len(landmarks.groups)], code[:, :0])
    found = memory.alike(code.mean, landmarks.asked)
    if found.variance is None:
        raise InputError("this memory does not say how sure its poses are; memorise with a model with landmarks")
    slips = None if found.slips is None else Slips.of_column(found.slips[:, -1])  # after the last step
    return Known(model.motion.pose_at(found.place), found.variance, found.code, found.number, found.held, slips)
