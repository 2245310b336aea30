"""Bias and ELU after a convolution, in one pass: what lies between layers is large, and reading it is all the work.

By parts it is read and written twice on the way forward and, with the sum for the bias, three times on the way back.
`bias_elu_by_parts` is the readable twin, `bias_elu` picks the fastest one for the device; on a CPU that is the readable
one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose

MOST = 2**31
"""Numbers, for the fast twin: 32 bits count its pixels."""


def bias_elu_by_parts(
    x: Float[Tensor, "n channel *pixels"], bias: Float[Tensor, "channel"]
) -> Float[Tensor, "n channel *pixels"]:
    """The readable twin: added up in float32 at least, and rounded to the precision of x once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.elu(x.to(wide) + bias.to(wide).view(-1, *[1] * (x.dim() - 2))).to(x.dtype)


def bias_elu(
    x: Float[Tensor, "n channel *pixels"], bias: Float[Tensor, "channel"]
) -> Float[Tensor, "n channel *pixels"]:
    """ELU(x + bias) in the precision of x, by the fastest twin for where the tensors are.

    The fast one is for the channels of a pixel beside each other: channels_last, or a matrix row by row.
    """
    channels_beside = x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)
    precise = x.dtype in (torch.float32, torch.bfloat16) and bias.dtype == torch.float32
    can = x.dim() in (2, 4) and channels_beside and precise and 0 < x.numel() < MOST
    if choose(x, triton=can) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels import bias_elu_triton

        return bias_elu_triton.activated(x, bias)
    return bias_elu_by_parts(x, bias)
