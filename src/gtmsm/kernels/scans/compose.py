"""Where steps lead that were made in the agent's own frame: turns add up, then moves along the headings they lead to.

By sums that is some fifteen small operations, and as many again for gradients, each a launch of its own on a GPU; there
one kernel goes each way. `compose_by_sums` is the readable twin, `compose` picks the fastest one for where the tensors
are.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose


def compose_by_sums(
    start: Float[Tensor, "batch 3"], d: Float[Tensor, "batch time 3"], noise: Float[Tensor, "batch time 3"] | None
) -> Float[Tensor, "batch time 3"]:
    """The readable twin: poses (x, y, heading) after each of the displacements, by cumulative sums."""
    noise = torch.zeros_like(d) if noise is None else noise
    heading = start[:, None, 2] + (d[..., 2] + noise[..., 2]).cumsum(1)
    before = torch.cat([start[:, None, 2], heading[:, :-1]], dim=1)
    c, sine = before.cos(), before.sin()
    moved = torch.stack([c * d[..., 0] - sine * d[..., 1], sine * d[..., 0] + c * d[..., 1]], dim=-1)
    xy = start[:, None, :2] + (moved + noise[..., :2]).cumsum(1)
    return torch.cat([xy, heading[..., None]], dim=-1)


def compose(
    start: Float[Tensor, "batch 3"], d: Float[Tensor, "batch time 3"], noise: Float[Tensor, "batch time 3"] | None
) -> Float[Tensor, "batch time 3"]:
    """Poses after each of the displacements, which are in the agent's frame; noise is in that of the map."""
    alike = all(x.dtype == torch.float32 for x in (start, d, noise) if x is not None)
    if choose(d, triton=alike and d.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.scans import compose_triton

        return compose_triton.scan(start, d, noise)
    return compose_by_sums(start, d, noise)
