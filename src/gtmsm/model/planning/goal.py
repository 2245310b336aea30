"""Goals of plans: a pose, or a picture that is looked up in memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool2d

from gtmsm.config import require
from gtmsm.errors import shown
from gtmsm.model.checks import require_frames
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, Gaussian

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

EXACT = 1e-3
"""Largest mean squared difference of two codes, in units of their variances, that counts as the same picture."""
LOOKED_AT = 64
"""Number of memorised views that are compared with a picture pixel by pixel: those with the most similar codes."""
GAIN = (0.5, 2.0)
"""Minimum and maximum gain of brightness by which a view is fitted to a picture."""
COARSE = 4
"""Side of the squares of pixels that are averaged to judge how well a view fits, so that noise counts little."""
UNEXPLAINED = 0.14
"""Mean squared difference of such squares, as a fraction of the picture's variance, at which a match is 50% likely."""
SIMILAR = 0.5
"""With landmarks: if the best match by pixels is less probable than this, landmarks localise the picture instead."""
IMAGINED = 4
"""Number of best-fitting places around which views are imagined."""
ROUNDS = (1.0, 1.0, 0.5)
"""Search radius of each round, in steps and turns of the memorised walk: around all these places, then the best."""


@dataclass(frozen=True)
class Goal:
    """A pose to reach, and the probability that it is the place that was asked for."""

    pose: Float[Tensor, "D"]
    """For an agent with a heading, this may be x and y alone: any heading is accepted."""
    known: float
    """Probability that a picture was seen there; 1 where a pose was given."""


@torch.no_grad()
def find_goal(model: "WorldModel", memory: Memory, goal: Tensor, any_heading: bool = False) -> Goal:
    """The pose itself, or the pose of the memorised view that looks like the picture.

    A picture that was memorised is found by its code. Any other is compared with memorised views pixel by pixel, up to
    a gain, since the code of a darker or noisy picture is often nearer to that of another place. The best fit says how
    probable the match is. With landmarks, a picture that fits poorly is localised by landmarks instead: they detect
    unknown places well, but do not recognise pictures with noise. With `any_heading`, x and y alone are a goal, too.
    """
    size, least = model.motion.pose_size, model.motion.space.positions if any_heading else model.motion.pose_size
    fits = isinstance(goal, Tensor) and goal.shape in ((size,), (least,), model.frame_shape)
    fewer = f", or {least} for any heading" if least < size else ""
    wanted = f"a pose of {size} numbers{fewer}, or a picture of shape {model.frame_shape} in [0, 1]"
    require(fits, f"goal is {shown(goal)}; give {wanted}")
    if goal.dim() == 1:
        require(bool(goal.isfinite().all()), "goal holds NaN or infinity; give finite numbers")
        return Goal(goal.detach().to(memory.place.mean), 1.0)
    require_frames(model, goal[None, None])
    code = model.vae.encode(goal[None, None])
    far = difference(memory.code, code)[0]
    entry, known = int(far.argmin()), 1.0
    pose = model.motion.pose_at(memory.place.mean[0, entry].detach())
    if far[entry] > EXACT:
        pose, known = _likeliest(model, memory, goal, far.topk(min(LOOKED_AT, len(far)), largest=False).indices)
    if known < SIMILAR and model.landmarks is not None and len(memory) >= model.landmarks.settings.matches:
        found = model.localise(memory, goal[None, None])
        return Goal(found.pose[0, 0], float(found.weight[0, 0]))
    return Goal(pose, known)


def _likeliest(
    model: "WorldModel", memory: Memory, picture: Float[Tensor, "channel height width"], entries: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "D"], float]:
    """The pose of the entry that fits a picture best, or a pose beside it, and the probability that it is right."""
    fit = _compared(picture, model.vae.decode(memory.code.mean[0, entries]))
    poses = model.motion.pose_at(memory.place.mean[0, entries])
    pose, known = poses[fit.best], fit.known
    if model.motion.space.angles:
        beside, closer = _from_beside(model, memory, picture, poses[fit.off.argsort()])
        if closer.off.min() < fit.off.min():
            pose, known = beside, closer.known
    return pose, known


class Fit(NamedTuple):
    """How well views fit a picture."""

    off: Float[Tensor, "n"]
    """Mean squared difference."""
    best: int
    known: float
    """Probability that the best view shows the same place."""


def _compared(picture: Float[Tensor, "channel height width"], views: Float[Tensor, "n channel height width"]) -> Fit:
    """Compare a picture with views pixel by pixel, up to a gain."""
    gain = ((views * picture).flatten(1).sum(1) / views.square().flatten(1).sum(1).clamp_min(1e-6)).clamp(*GAIN)
    off = gain[:, None, None, None] * views - picture
    square = off.square().flatten(1).mean(1)
    best, side = int(square.argmin()), min(COARSE, *picture.shape[1:])
    # As a fraction of the variance: views of little contrast differ little from any other.
    spread = picture.flatten(1).var(1, correction=0).mean().clamp_min(1e-6)
    unexplained = avg_pool2d(off[best], side, ceil_mode=True).square().mean() / spread
    return Fit(square, best, float(UNEXPLAINED / (UNEXPLAINED + unexplained)))


def _from_beside(
    model: "WorldModel", memory: Memory, picture: Float[Tensor, "channel height width"], poses: Float[Tensor, "n 3"]
) -> tuple[Float[Tensor, "3"], Fit]:
    """The pose at which the imagined view fits a picture best, searched around some of `poses`, likeliest first.

    An agent with a heading may have taken the picture a step beside every memorised view.
    """
    space, path = model.motion.space, model.motion.pose_at(memory.place.mean[0])
    walked = space.difference(path[:-1], path[1:]) if len(path) > 1 else path
    step, turn = walked[:, :2].norm(dim=-1).max(), walked[:, 2].abs().max()
    scale = torch.stack([step, step, turn]).clamp_min(1e-6)
    around = poses[:1]
    for pose in poses[1:]:
        far = (space.difference(around, pose.expand_as(around)) / scale).abs().amax(1)
        if len(around) < IMAGINED and bool((far > 2).all()):
            around = torch.cat([around, pose[None]])
    beside = torch.cat([torch.zeros(1, 3), torch.eye(3), -torch.eye(3)]).to(scale) * scale
    for radius in ROUNDS:
        tried = (around[:, None] + radius * beside).flatten(0, 1)
        fit = _compared(
            picture, model.vae.decode(model.read(memory, Belief(model.motion.place(tried)[None])).peak())[0]
        )
        around = tried[fit.best : fit.best + 1]
    return around[0], fit


def usual_difference(code: Gaussian) -> Float[Tensor, ""]:
    """Median difference between successive views of a walk, of those that differ; 1 if none do."""
    steps = difference(code[:, 1:], code[:, :-1])[0]
    moved = steps[steps > EXACT]
    return moved.median() if len(moved) else steps.new_tensor(1.0)


def difference(a: Gaussian, b: Gaussian) -> Float[Tensor, "batch n"]:
    """Mean squared difference of codes in units of their variances; broadcasts over entries."""
    return ((a.mean - b.mean).square() / (a.log_var.exp() + b.log_var.exp())).mean(-1)
