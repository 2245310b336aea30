"""Where the columns of rays of a view run, and waves of it: what attention over rays knows of a remembered view's pose.

By parts that is some twenty small operations, each of which is a launch of its own on a GPU, and what they make is
rounded by a further one. `ray_columns_by_parts` is the readable twin, `ray_columns` picks the fastest one for the
device; on a CPU, and where poses learn, that is the readable one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose


def ray_columns_by_parts(
    relative: Float[Tensor, "*views 4"],
    yaw: Float[Tensor, "columns"],
    frequency: Float[Tensor, "waves"],
    made: torch.dtype,
) -> Float[Tensor, "*views columns features"]:
    """The readable twin: six numbers of every column, and at every frequency their sines and then their cosines."""
    x, y, c, s = (part[..., None] for part in relative.unbind(-1))
    yaw_cos, yaw_sin = yaw.cos(), yaw.sin()
    cos, sin = c * yaw_cos - s * yaw_sin, s * yaw_cos + c * yaw_sin
    passing, along = x * sin - y * cos, x * cos + y * sin
    f = torch.stack([x.expand_as(cos), y.expand_as(cos), cos, sin, passing, along], dim=-1)
    waves = f[..., None, :] * frequency[:, None]
    return torch.cat([f, torch.stack([waves.sin(), waves.cos()], dim=-2).flatten(-3)], dim=-1).to(made)


def ray_columns(
    relative: Float[Tensor, "*views 4"],
    yaw: Float[Tensor, "columns"],
    frequency: Float[Tensor, "waves"],
    made: torch.dtype,
) -> Float[Tensor, "*views columns features"]:
    """Columns of views at `relative`, (x, y, cos, sin) as the asking eye sees them; `yaw` is the turn of each column.

    Origin and direction, and the line's own coordinates: how far it passes from the asking eye, and how far along it
    the eye is abreast. All also as waves of several lengths, which attention can compare finely. They are worked out in
    the precision of `relative` and rounded to `made` once.
    """
    given, rows = (relative, yaw, frequency), relative.numel() // 4 * len(yaw)
    precise = all(part.dtype == torch.float32 for part in given)
    learning = torch.is_grad_enabled() and any(part.requires_grad for part in given)
    can = precise and not learning and made in (torch.float32, torch.bfloat16, torch.float16) and 0 < rows < 2**31
    if choose(relative, triton=can) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.rays import ray_columns_triton

        return ray_columns_triton.columns(relative, yaw, frequency, made)
    return ray_columns_by_parts(relative, yaw, frequency, made)
