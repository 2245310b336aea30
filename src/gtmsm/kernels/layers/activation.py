"""Bias, shortcut and activation between two layers, in one pass.

Without `activated` an update of walk takes 66% longer and one of walk-strong 38%, without `shortcut` one of walk-strong
45% and one of walk-landmarks 29%: activations are large, and separate operations read and write them two or three
times, forward and backward.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.operator import operator

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu": F.elu, "silu": F.silu, "gelu": F.gelu}
"""Activations by kind; gelu is the exact one, by the error function."""


@operator(cuda="gtmsm.kernels.layers.activation_triton")
def activated(
    x: Float[Tensor, "*shape"], bias: Float[Tensor, "channel"], kind: str, made: torch.dtype | None = None
) -> Float[Tensor, "*shape"]:
    """act(x + bias), computed in float32 at least and rounded once: to the precision of x, or to `made`.

    Channels are the second axis of pictures (four axes), and the last axis of anything else. The fast implementation
    expects the channels of a pixel to be contiguous: channels_last, or row by row.
    """
    return ACTIVATIONS[kind](_total(x, None, bias)).to(made or x.dtype)


@operator(cuda="gtmsm.kernels.layers.activation_triton")
def shortcut(
    x: Float[Tensor, "*shape"], r: Float[Tensor, "*shape"] | None, bias: Float[Tensor, "channel"], kind: str
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """y = x + r + bias and act(y), both in the precision of x: the end of a residual block and the start of the next.

    Without r, where a block starts, the sum is x + bias. Channels are on the same axis as in `activated`.
    """
    y = _total(x, r, bias).to(x.dtype)
    return y, ACTIVATIONS[kind](_widened(y)).to(x.dtype)


def _total(
    x: Float[Tensor, "*shape"], r: Float[Tensor, "*shape"] | None, bias: Float[Tensor, "channel"]
) -> Float[Tensor, "*shape"]:
    """The sum, not yet rounded."""
    total = _widened(x)
    if r is not None:
        total = total + r.to(total.dtype)
    return total + bias.to(total.dtype).view(-1, *[1] * (2 if x.dim() == 4 else 0))


def _widened(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
