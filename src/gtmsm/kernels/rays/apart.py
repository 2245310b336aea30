"""Slices of one product, whose gradients come back side by side.

Queries, keys and values of several layers are made by one product. PyTorch would make the gradient of the whole from
those of the slices by copying each; here whoever works a slice's gradient out is told where it is wanted.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.choice import choose


class Apart(NamedTuple):
    """A slice, and where its gradient is wanted; None: wherever."""

    values: Float[Tensor, "*batch some"]
    gradient: Float[Tensor, "*batch some"] | None


def apart(x: Float[Tensor, "*batch width"], count: int) -> list[Apart]:
    """The last axis in so many equal parts, none of them copied; each is to be used once."""
    # Kernels of our own can write where they are told to; PyTorch's cannot.
    if not (x.requires_grad and torch.is_grad_enabled()) or choose(x, triton=True) != "triton":
        return [Apart(part, None) for part in x.chunk(count, dim=-1)]
    whole = torch.empty_like(x)
    return [Apart(*pair) for pair in zip(_Apart.apply(x, whole, count), whole.chunk(count, dim=-1), strict=True)]


class _Apart(torch.autograd.Function):
    """The slices; on the way back, the whole: as it lies there already, or copied together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.whole, ctx.count = whole, count
        return x.chunk(count, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        whole, ctx.whole = ctx.whole, None
        in_place = all(
            came.data_ptr() == want.data_ptr() and came.stride() == want.stride()
            for came, want in zip(gradients, whole.chunk(ctx.count, dim=-1), strict=True)
        )
        return whole if in_place else torch.cat(gradients, dim=-1), None, None
