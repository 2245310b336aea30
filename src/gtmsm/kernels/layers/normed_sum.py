"""A shortcut, a bias and the layer norm that follows, in one pass: the seam between two blocks of a transformer.

By parts the sum is written, read, and written again, and on the way back gradients that meet there are added up apart.
`normed_sum_by_parts` is the readable twin, `normed_sum` picks the fastest one for the device; on a CPU that is the
readable one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose

MOST = 2**30
"""Numbers, for the fast twin: 32 bits count them, and a walk over all of them may overshoot the end."""
WIDEST = 1_024
"""Rows, for the fast twin: a program looks at whole ones."""


def normed_sum_by_parts(
    x: Float[Tensor, "*rows width"],
    r: Float[Tensor, "*rows width"] | None,
    bias: Float[Tensor, "width"] | None,
    weight: Float[Tensor, "width"] | None,
    shift: Float[Tensor, "width"] | None,
    eps: float,
) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, "*rows width"]]:
    """The readable twin: in float32 at least; the sum is rounded to the precision of x, then normalised.

    Autocast changes nothing.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        y = x
        if r is not None or bias is not None:
            y = sum((part.to(wide) for part in (r, bias) if part is not None), x.to(wide)).to(x.dtype)
        weight, shift = (None if part is None else part.to(wide) for part in (weight, shift))
        return y, F.layer_norm(y.to(wide), x.shape[-1:], weight, shift, eps).to(x.dtype)


def normed_sum(
    x: Float[Tensor, "*rows width"],
    r: Float[Tensor, "*rows width"] | None,
    bias: Float[Tensor, "width"] | None,
    weight: Float[Tensor, "width"] | None,
    shift: Float[Tensor, "width"] | None,
    eps: float,
) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, "*rows width"]]:
    """y = x + r + bias and its layer norm, in the precision of x, by the fastest twin for where the tensors are.

    Without r and bias y is x itself. Go on with y even then: the gradients of both results meet in one pass.
    """
    parameters = [part for part in (bias, weight, shift) if part is not None]
    usual = x.dtype in (torch.float32, torch.bfloat16) and 0 < x.numel() < MOST and x.shape[-1] <= WIDEST
    alike = r is None or (r.dtype == x.dtype and r.shape == x.shape and r.is_contiguous())
    precise = all(part.dtype == torch.float32 and part.shape == x.shape[-1:] for part in parameters)
    can = usual and x.is_contiguous() and alike and precise and (r is not None or bias is None)
    if choose(x, triton=can) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import normed_sum_triton

        return normed_sum_triton.normed_sum(x, r, bias, weight, shift, eps)
    return normed_sum_by_parts(x, r, bias, weight, shift, eps)
