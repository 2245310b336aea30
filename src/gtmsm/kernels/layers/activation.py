"""Biases, shortcuts and activations between layers, in one pass: what lies there is large, and reading is all the work.

By parts it is read and written two or three times on the way forward and, with the sum for the bias, as often again on
the way back. `..._by_parts` are the readable twins; `activated` and `shortcut` pick the fastest ones for the device; on
a CPU those are the readable ones.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose

Kind: TypeAlias = Literal["elu", "silu", "gelu"]
"""Of the activation; gelu is that of the error function."""

MOST = 2**31
"""Numbers, for the fast twins: 32 bits count their pixels."""
_ACTIVATIONS: dict[Kind, Callable[[Tensor], Tensor]] = {"elu": F.elu, "silu": F.silu, "gelu": F.gelu}


def activated_by_parts(
    x: Float[Tensor, "*shape"], bias: Float[Tensor, "channel"] | None, kind: Kind
) -> Float[Tensor, "*shape"]:
    """The readable twin: added up in float32 at least, and rounded to the precision of x once, at the end."""
    return _ACTIVATIONS[kind](_total(x, None, bias)).to(x.dtype)


def shortcut_by_parts(
    x: Float[Tensor, "*shape"], r: Float[Tensor, "*shape"] | None, bias: Float[Tensor, "channel"] | None, kind: Kind
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """The readable twin: the sum is rounded to the precision of x, and what is activated is the rounded one."""
    y = _total(x, r, bias).to(x.dtype)
    return y, _ACTIVATIONS[kind](_widened(y)).to(x.dtype)


def activated(x: Float[Tensor, "*shape"], bias: Float[Tensor, "channel"] | None, kind: Kind) -> Float[Tensor, "*shape"]:
    """act(x + bias) in the precision of x, by the fastest twin for where the tensors are.

    Channels are the second axis of pictures (four axes), and the last of anything else. The fast twin is for the
    channels of a pixel beside each other: channels_last, or row by row.
    """
    if choose(x, triton=_can(x, bias)) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import activation_triton

        return activation_triton.activated(x, bias, kind)
    return activated_by_parts(x, bias, kind)


def shortcut(
    x: Float[Tensor, "*shape"], r: Float[Tensor, "*shape"] | None, bias: Float[Tensor, "channel"] | None, kind: Kind
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """y = x + r + bias and act(y), in the precision of x: the end of a residual block, and the beginning of the next.

    Channels are where `activated` looks for them. Without r a block begins: its sum is x + bias.
    """
    alike = r is None or (x.dtype == r.dtype and x.shape == r.shape and _channels_beside(r))
    if choose(x, triton=alike and _can(x, bias)) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import activation_triton

        return activation_triton.shortcut(x, r, bias, kind)
    return shortcut_by_parts(x, r, bias, kind)


def _total(
    x: Float[Tensor, "*shape"], r: Float[Tensor, "*shape"] | None, bias: Float[Tensor, "channel"] | None
) -> Float[Tensor, "*shape"]:
    """The sum, not yet rounded."""
    total = _widened(x)
    if r is not None:
        total = total + r.to(total.dtype)
    if bias is not None:
        total = total + bias.to(total.dtype).view(-1, *[1] * (2 if x.dim() == 4 else 0))
    return total


def _widened(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _channels_beside(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


def _can(x: Tensor, bias: Tensor | None) -> bool:
    """Whether the fast twins can."""
    usual = x.dtype in (torch.float32, torch.bfloat16) and x.dim() >= 2 and 0 < x.numel() < MOST
    if not usual or not _channels_beside(x):
        return False
    return bias is None or (bias.dtype == torch.float32 and len(bias) == x.shape[1 if x.dim() == 4 else -1])
