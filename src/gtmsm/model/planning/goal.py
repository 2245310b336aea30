"""Where to go: a pose as it is, or a picture that is looked up in memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d

from gtmsm.config import require
from gtmsm.errors import shown
from gtmsm.model.checks import require_frames
from gtmsm.model.memory import Memory
from gtmsm.tensors import Gaussian

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

EXACT = 1e-3
"""Two codes whose mean squared difference, in units of their variances, is at most this show the same picture."""
LOOKED_AT = 64
"""Number of memorised views, those of the most similar codes, that are compared with a picture pixel by pixel."""
GAIN = (0.5, 2.0)
"""Least and largest gain of brightness by which a view is fitted to a picture."""
COARSE = 4
"""Side of the squares of pixels that are averaged to judge how well a view fits: noise counts little then."""
FIT = 0.004
"""Mean squared difference of such squares at which the probability of a match is one half."""
SIMILAR = 0.7
"""With landmarks: a picture that pixels match with less than this probability is localised by landmarks instead."""


@dataclass(frozen=True)
class Goal:
    """A pose to reach, and the probability that it is the place that was asked for."""

    pose: Float[Tensor, "D"]
    """Of an agent with a heading this may be x and y alone: any heading will do."""
    known: float
    """Probability that a picture was seen there; 1 where a pose was given."""


def find_goal(model: "WorldModel", memory: Memory, goal: Tensor, any_heading: bool = False) -> Goal:
    """The pose itself, or that of the memorised view which looks like the picture.

    A picture that was memorised as it is, is found by its code. Any other is taken to be where the memorised view was
    seen that fits it best, pixel by pixel, up to a gain: codes of a darker or noisy picture are often nearer to those
    of another place. How sure that is depends on how well it fits. With landmarks a picture that fits less well is
    localised by them instead: they know strange places well, but hardly a picture with noise. With
    `any_heading` x and y alone are a goal, too.
    """
    size, least = model.motion.pose_size, model.motion.space.positions if any_heading else model.motion.pose_size
    fits = isinstance(goal, Tensor) and goal.shape in ((size,), (least,), model.frame_shape)
    fewer = f", or {least} for any heading" if least < size else ""
    wanted = f"a pose of {size} numbers{fewer}, or a picture of shape {model.frame_shape} in [0, 1]"
    require(fits, f"goal is {shown(goal)}; give {wanted}")
    if goal.dim() == 1:
        require(bool(goal.isfinite().all()), "goal holds NaN or infinity; give finite numbers")
        return Goal(goal.to(memory.place.mean), 1.0)
    require_frames(model, goal[None, None])
    code = model.vae.encode(goal[None, None])
    far = difference(memory.code, code)[0]
    entry, known = int(far.argmin()), 1.0
    if far[entry] > EXACT:
        likely = far.topk(min(LOOKED_AT, len(far)), largest=False).indices
        best, known = _compared(goal, model.vae.decode(memory.code.mean[0, likely]))
        entry = int(likely[best])
    if known < SIMILAR and model.landmarks is not None and len(memory) >= model.landmarks.settings.matches:
        found = model.localise(memory, goal[None, None])
        return Goal(found.pose[0, 0], float(found.weight[0, 0]))
    return Goal(model.motion.pose_at(memory.place.mean[0, entry]), known)


def _compared(
    picture: Float[Tensor, "channel height width"], views: Float[Tensor, "n channel height width"]
) -> tuple[int, float]:
    """Which of these views fits a picture best, and the probability that it is of the same place."""
    gain = ((views * picture).flatten(1).sum(1) / views.square().flatten(1).sum(1).clamp_min(1e-6)).clamp(*GAIN)
    off = gain[:, None, None, None] * views - picture
    best = int(off.square().flatten(1).sum(1).argmin())
    side = min(COARSE, *picture.shape[1:])
    coarse = avg_pool2d(off[best], side, ceil_mode=True)
    return best, float(FIT / (FIT + coarse.square().mean()))


def usual_difference(code: Gaussian) -> Float[Tensor, ""]:
    """How much two successive views of a walk differ, where they differ at all; 1 where none do."""
    steps = difference(code[:, 1:], code[:, :-1])[0]
    moved = steps[steps > EXACT]
    return moved.median() if len(moved) else steps.new_tensor(1.0)


def difference(a: Gaussian, b: Gaussian) -> Float[Tensor, "batch n"]:
    """Mean squared difference of codes in units of their variances; broadcasts over entries."""
    return ((a.mean - b.mean).square() / (a.log_var.exp() + b.log_var.exp())).mean(-1)
