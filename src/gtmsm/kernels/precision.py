"""The precision of products that PyTorch is told to use, for kernels that compute products themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Float32
from torch import Tensor

Precision: TypeAlias = Literal["bfloat16", "tf32", "ieee"]
"""The type that a kernel's factors are rounded to; their sums are float32."""


def products_of(dtype: torch.dtype, convolution: bool = False) -> Precision:
    """The precision of products of this type; for float32, what PyTorch is told about its own.

    PyTorch lets convolutions round to TF32 unless told otherwise, and matrices only if told to.
    """
    if dtype == torch.bfloat16:
        return "bfloat16"
    exact = not torch.backends.cudnn.allow_tf32 if convolution else torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"


def between_layers(x: Tensor) -> torch.dtype:
    """The type of what networks pass from layer to layer: that of autocast, or else of x."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.is_floating_point() else torch.float32


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Within this, products of float32 matrices on a GPU may round to TF32 ("high") or not ("highest")."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"]
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + b in the precision of the weights, whatever autocast says, where x may be rounded to a smaller one.

    On a GPU products of bfloat16 have sums of float32: to widen x first would take 4% of an update of walk.
    """
    with torch.autocast(x.device.type, enabled=False):
        if x.is_cuda and x.dtype == torch.bfloat16 and weight.dtype == torch.float32:
            product: Tensor = _WideProduct.apply(x.flatten(0, -2), weight.bfloat16())
            return product.view(*x.shape[:-1], -1) + bias
        return F.linear(x.to(weight.dtype), weight, bias)


class _WideProduct(torch.autograd.Function):
    """x W^T of bfloat16 in float32; PyTorch has the product, but not its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: BFloat16[Tensor, "n inputs"], weight: BFloat16[Tensor, "outputs inputs"]
    ) -> Float32[Tensor, "n outputs"]:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Float32[Tensor, "n outputs"]) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradient.bfloat16()
        return gradient @ weight, gradient.t() @ x
