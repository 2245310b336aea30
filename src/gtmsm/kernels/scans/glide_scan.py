"""Momentum that survives a turn, with a network for friction and acceleration: a gliding motion's loop over time.

`glide_scan_by_steps` is the readable twin, `glide_scan` picks the fastest one for the device.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.scans import glide_scan_cpu


class GlideNetwork(NamedTuple):
    """What a step makes of the velocity: linear, and corrected by one hidden layer of ReLUs."""

    keep: Float[Tensor, "2"]
    """How much of the velocity is left after a step, by friction alone."""
    W: Float[Tensor, "H 2"]
    V: Float[Tensor, "4 H"]
    """To corrections of the displacement and of the velocity."""

    def step(
        self,
        v: Float[Tensor, "*batch 2"],
        u: Float[Tensor, "*batch 2"],
        cos: Float[Tensor, "*batch"],
        sin: Float[Tensor, "*batch"],
        pre: Float[Tensor, "*batch H"],
    ) -> tuple[Float[Tensor, "*batch 2"], Float[Tensor, "*batch 2"]]:
        """The displacement of a step, in the frame before its turn, and the velocity left, in the frame after it.

        `u` is the push of the keys, `cos` and `sin` are those of the turn, `pre` is what the keys tell the network.
        """
        correction = torch.relu(pre + v @ self.W.T) @ self.V.T
        drift = self.keep * v + u
        left = drift + correction[..., 2:]
        x, y = left.unbind(-1)
        return drift + correction[..., :2], torch.stack([cos * x + sin * y, cos * y - sin * x], dim=-1)


def glide_scan_by_steps(
    start: Float[Tensor, "batch 2"],
    u: Float[Tensor, "batch time 2"],
    cos: Float[Tensor, "batch time"],
    sin: Float[Tensor, "batch time"],
    pre: Float[Tensor, "batch time H"],
    network: GlideNetwork,
) -> tuple[Float[Tensor, "batch time 2"], Float[Tensor, "batch time 2"]]:
    """The readable twin: displacements and velocities of each step, by stepping."""
    v, steps = start, []
    for inputs in zip(u.unbind(1), cos.unbind(1), sin.unbind(1), pre.unbind(1), strict=True):
        d, v = network.step(v, *inputs)
        steps.append((d, v))
    if not steps:
        return torch.zeros_like(u), torch.zeros_like(u)
    displacements, velocities = zip(*steps, strict=True)
    return torch.stack(displacements, dim=1), torch.stack(velocities, dim=1)


def glide_scan(
    start: Float[Tensor, "batch 2"],
    u: Float[Tensor, "batch time 2"],
    cos: Float[Tensor, "batch time"],
    sin: Float[Tensor, "batch time"],
    pre: Float[Tensor, "batch time H"],
    network: GlideNetwork,
) -> tuple[Float[Tensor, "batch time 2"], Float[Tensor, "batch time 2"]]:
    """Displacements and velocities of each step, by the fastest twin for where the tensors are."""
    units = len(network.W) > 0
    twin = choose(u, cpu=units, triton=u.dtype == torch.float32 and units)
    if twin == "cpu":
        return glide_scan_cpu.scan(start, u, cos, sin, pre, *network)
    if twin == "triton":
        from gtmsm.kernels.scans import glide_scan_triton

        return glide_scan_triton.scan(start, u, cos, sin, pre, *network)
    return glide_scan_by_steps(start, u, cos, sin, pre, network)
