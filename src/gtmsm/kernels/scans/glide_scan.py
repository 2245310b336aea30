"""Velocities of an agent whose momentum outlasts a turn, with a network for friction and acceleration.

It is the loop over time of a gliding motion. Without the fast implementations an update of `walk` takes six times
as long on an H200.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.operator import operator
from gtmsm.pose import PlaneWithHeading
from gtmsm.tensors import applied


class GlideNetwork(NamedTuple):
    """From the velocity before a step to the displacement and the velocity after: linear, plus one layer of ReLUs."""

    keep: Float[Tensor, "2"]
    """Fraction of the velocity that friction leaves after a step."""
    W: Float[Tensor, "H 2"]
    V: Float[Tensor, "4 H"]
    """From hidden units to corrections of the displacement (two rows) and of the velocity (two rows)."""

    def step(
        self,
        v: Float[Tensor, "*batch 2"],
        u: Float[Tensor, "*batch 2"],
        cos: Float[Tensor, "*batch"],
        sin: Float[Tensor, "*batch"],
        pre: Float[Tensor, "*batch H"],
    ) -> tuple[Float[Tensor, "*batch 2"], Float[Tensor, "*batch 2"]]:
        """The displacement in the frame before the turn, and the velocity left in the frame after it.

        `u` is the acceleration by the action, `cos` and `sin` are those of its turn, `pre` its input to the network.
        """
        correction = torch.relu(pre + v @ self.W.T) @ self.V.T
        drift = self.keep * v + u
        left = drift + correction[..., 2:]
        x, y = left.unbind(-1)
        return drift + correction[..., :2], torch.stack([cos * x + sin * y, cos * y - sin * x], dim=-1)


@operator(cpu="gtmsm.kernels.scans.glide_scan_cpu", cuda="gtmsm.kernels.scans.glide_scan_triton")
def glide_steps(
    start: Float[Tensor, "batch 2"],
    u: Float[Tensor, "batch time 2"],
    cos: Float[Tensor, "batch time"],
    sin: Float[Tensor, "batch time"],
    pre: Float[Tensor, "batch time H"],
    keep: Float[Tensor, "2"],
    W: Float[Tensor, "H 2"],
    V: Float[Tensor, "4 H"],
) -> tuple[Float[Tensor, "batch time 2"], Float[Tensor, "batch time 2"]]:
    """The displacement of each step and the velocity after it, by the weights of a `GlideNetwork`; see its `step`."""
    v, network, steps = start, GlideNetwork(keep, W, V), []
    for inputs in zip(u.unbind(1), cos.unbind(1), sin.unbind(1), pre.unbind(1), strict=True):
        d, v = network.step(v, *inputs)
        steps.append((d, v))
    if not steps:
        return torch.zeros_like(u), torch.zeros_like(u)
    displacements, velocities = zip(*steps, strict=True)
    return torch.stack(displacements, dim=1), torch.stack(velocities, dim=1)


@operator(cpu="gtmsm.kernels.scans.glide_walk_cpu")
def glide_walk(
    start: Float[Tensor, "batch 5"],
    a: Float[Tensor, "batch time A"],
    move: Float[Tensor, "2 A"],
    turn: Float[Tensor, "A"],
    W_a: Float[Tensor, "H A"],
    b: Float[Tensor, "H"],
    keep: Float[Tensor, "2"],
    W: Float[Tensor, "H 2"],
    V: Float[Tensor, "4 H"],
) -> Float[Tensor, "batch time 5"]:
    """Pose and velocity after each action: `glide_steps` with inputs computed from actions, then running sums.

    The implementation for a CPU has no gradients: it is for planning. A plan in rooms takes 0.56 of the time with it.
    """
    turns = (a * turn).sum(-1)
    d, v = glide_steps(start[:, 3:], applied(move, a), turns.cos(), turns.sin(), a @ W_a.T + b, keep, W, V)
    poses = PlaneWithHeading().path(start[:, :3], torch.cat([d, turns[..., None]], dim=-1))
    return torch.cat([poses, v], dim=-1)
