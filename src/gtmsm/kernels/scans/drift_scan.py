"""Momentum that is damped and saturates, step after step: section 4.2.2.

`drift_scan_by_steps` is the readable twin, `drift_scan` picks the fastest one for the device.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.scans import drift_scan_cpu


def drift_scan_by_steps(
    start: Float[Tensor, "batch D"], push: Float[Tensor, "batch time D"], keep: Float[Tensor, "D"]
) -> Float[Tensor, "batch time D"]:
    """The readable twin: v_t = tanh(keep v_{t-1} + push_t), for every step."""
    v, velocities = start, []
    for u in push.unbind(1):
        v = torch.tanh(torch.addcmul(u, keep, v))
        velocities.append(v)
    return torch.stack(velocities, dim=1) if velocities else torch.zeros_like(push)


def drift_scan(
    start: Float[Tensor, "batch D"], push: Float[Tensor, "batch time D"], keep: Float[Tensor, "D"]
) -> Float[Tensor, "batch time D"]:
    """Velocities of every step, by the fastest twin for where the tensors are."""
    twin = choose(push, cpu=True, triton=push.dtype == torch.float32)
    if twin == "cpu":
        return drift_scan_cpu.scan(start, push, keep)
    if twin == "triton":
        from gtmsm.kernels.scans import drift_scan_triton

        return drift_scan_triton.scan(start, push, keep)
    return drift_scan_by_steps(start, push, keep)
