"""Walking between walls, step after step: eq. (nonlin_tr) of section 4.1.

s_t = s_{t-1} + d_t * sigma_d(s_{t-1} + d_t) + noise_t, with d_t = M a_t and sigma_d a network with one
hidden layer of ReLUs. The recurrence is truly sequential, so it is the one loop over time of the model:
`walled_scan_by_steps` is the readable twin, `walled_scan` picks the fastest one for the device.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import Twin, choose
from gtmsm.kernels.scans import walled_scan_cpu


class Gate(NamedTuple):
    """Weights of sigma_d: sigmoid(relu(q W^T + b) . v + c), 0 where a step would end inside a wall."""

    W: Float[Tensor, "H S"]
    b: Float[Tensor, "H"]
    v: Float[Tensor, "H"]
    c: Float[Tensor, ""]

    def __call__(self, q: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch"]:
        """sigma_d(q): how much of a step that would lead to q is really made."""
        return torch.sigmoid(self.logit(q))

    def logit(self, q: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch"]:
        """The same before it is squashed."""
        return torch.relu(q @ self.W.T + self.b) @ self.v + self.c


def walled_scan_by_steps(
    start: Float[Tensor, "batch S"],
    displacement: Float[Tensor, "batch time S"],
    noise: Float[Tensor, "batch time S"] | None,
    gate: Gate,
) -> Float[Tensor, "batch time S"]:
    """The readable twin: poses after each step, by stepping; without noise, those of the mean path."""
    s, poses = start, []
    for t, d in enumerate(displacement.unbind(1)):
        s = s + d * gate(s + d)[..., None]
        s = s if noise is None else s + noise[:, t]
        poses.append(s)
    return torch.stack(poses, dim=1) if poses else torch.zeros_like(displacement)


def walled_scan(
    start: Float[Tensor, "batch S"],
    displacement: Float[Tensor, "batch time S"],
    noise: Float[Tensor, "batch time S"] | None,
    gate: Gate,
) -> Float[Tensor, "batch time S"]:
    """Poses after each step, by the fastest twin for where the tensors are."""
    twin = _twin(displacement, gate)
    if twin == "cpu":
        return walled_scan_cpu.scan(start, displacement, noise, *gate)
    if twin == "triton":
        from gtmsm.kernels.scans import walled_scan_triton

        return walled_scan_triton.scan(start, displacement, noise, *gate)
    return walled_scan_by_steps(start, displacement, noise, gate)


def walled_scan_twice(
    start: Float[Tensor, "batch S"],
    displacement: Float[Tensor, "batch time S"],
    noise: Float[Tensor, "batch time S"],
    gate: Gate,
) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time S"]]:
    """The mean path and the one that noise shakes, in one scan: both try the same steps."""
    if _twin(displacement, gate) == "triton":
        from gtmsm.kernels.scans import walled_scan_triton

        return walled_scan_triton.scan_twice(start, displacement, noise, *gate)
    both = torch.cat([start, start])
    shaken = torch.cat([torch.zeros_like(noise), noise])
    mean, sample = walled_scan(both, torch.cat([displacement, displacement]), shaken, gate).chunk(2)
    return mean, sample


def _twin(displacement: Float[Tensor, "batch time S"], gate: Gate) -> Twin:
    """Which twin does such steps."""
    flat = displacement.shape[-1] == 2 and displacement.dtype == torch.float32
    return choose(displacement, cpu=True, triton=flat and len(gate.b) > 0)
