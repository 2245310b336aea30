"""How far the actions of a motion lead."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.model.motion import Motion

CHOICES = 16
"""Maximum number of actions to choose from, where actions are vectors."""
STILL = 0.05
"""An action counts as not moving the agent below this fraction of the distance of the action that moves it most."""
SOONER = 1.5
"""An agent is assumed to stop by doing nothing if it coasts at most this many times as far as by such an action."""


def typical(actions: Float[Tensor, "n A"]) -> Float[Tensor, "m A"] | None:
    """Some of these actions, as different from each other as possible; None if all are one-hot or zero."""
    tried = actions[actions.any(-1)]
    if not len(tried) or bool(((tried == 1).sum(-1) == 1).logical_and((tried != 0).sum(-1) == 1).all()):
        return None
    tried = tried.unique(dim=0)
    chosen, far = [0], (tried - tried[0]).norm(dim=-1)
    while len(chosen) < CHOICES and float(far.max()) > 0:
        chosen.append(int(far.argmax()))
        far = far.minimum((tried - tried[chosen[-1]]).norm(dim=-1))
    return tried[chosen]


class Gait(NamedTuple):
    """How far the actions of a motion lead."""

    stride: float
    """The longest step."""
    shortest: float
    """The longest step of the action that moves least, among actions that move at all."""
    turn: float
    """The largest turn of one step in radians; 0 for motions without a heading."""
    coast: float
    """How far an agent coasts, per unit of its velocity; 0 without momentum."""
    idles: bool
    """Whether an agent with momentum comes to rest by doing nothing."""


def brake(motion: Motion, actions: Float[Tensor, "m A"], held: int = 8) -> tuple[Float[Tensor, "A"], bool]:
    """The action by which an agent with momentum comes to rest, and whether that is doing nothing (zeros).

    If training had no step without an action, the motion predicts nothing useful for zeros. Then an action that does
    not move the agent, such as turning, stops it sooner.
    """
    moved = motion.unroll(motion.start(len(actions)), actions[:, None].expand(-1, held, -1))[:, -1]
    far = moved[:, :2].norm(dim=-1)
    options = torch.cat([torch.zeros_like(actions[:1]), actions[far < STILL * far.max()]])
    after = motion.unroll(moved[far.argmax()].expand(len(options), -1), options[:, None].expand(-1, 2 * held, -1))
    coasted = (after[:, -1, :2] - moved[far.argmax(), :2]).norm(dim=-1)
    best = int(coasted.argmin())
    return (options[0], True) if coasted[0] <= SOONER * coasted[best] else (options[best], False)


def gait(motion: Motion, actions: Float[Tensor, "m A"], held: int = 8) -> Gait:
    """The gait of a motion, measured by holding each action for `held` steps, then letting the agent come to rest."""
    size, count = motion.pose_size, len(actions)
    rest, idles = brake(motion, actions) if motion.state_size > size else (torch.zeros_like(actions[0]), False)
    plan = torch.cat([actions[:, None].expand(-1, held, -1), rest.expand(count, 2 * held, -1)], 1)
    states = motion.unroll(motion.start(count), plan)
    steps = motion.displacement(states)[:, :held]
    length = steps[..., :2].norm(dim=-1).amax(1)
    stride = float(length.max())
    require(stride > 0, "no action leads anywhere by this motion; give others to choose from")
    shortest = float(length[length > 0.2 * stride].min())
    turn = float(steps[..., 2].abs().max()) if size == 3 else 0.0
    coast = 0.0
    if motion.state_size > size:
        fastest = int(states[:, held - 1, size : size + 2].norm(dim=-1).argmax())
        speed = states[fastest, held - 1, size : size + 2].norm()
        coast = float((states[fastest, -1, :2] - states[fastest, held - 1, :2]).norm() / speed)
    return Gait(stride, shortest, turn, coast, idles)
