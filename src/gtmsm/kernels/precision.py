"""The precision of products that PyTorch is told to use, for kernels that compute products themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch

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


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Within this context, products of float32 matrices on a GPU may round to TF32 ("high") or not ("highest")."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
