"""Which twin of a kernel runs: the fastest for where the tensors are, or the one a test asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Twin: TypeAlias = Literal["readable", "cpu", "triton"]
"""readable: plain PyTorch, on any device and in any precision; cpu, triton: fast where they run."""

Precision: TypeAlias = Literal["bfloat16", "tf32", "ieee"]
"""What a kernel's products are made of; their sums are of float32."""

_forced: ContextVar[Twin | None] = ContextVar("forced", default=None)


def choose(like: Tensor, *, cpu: bool = False, triton: bool = False) -> Twin:
    """The twin for tensors like this one, of those that can: `cpu` and `triton` say which of them do this case.

    A forced twin that cannot do the case gives way to the readable one.
    """
    # vmap and jacrev look through plain operations only; this is what autograd.Function itself asks for.
    plain = torch._C._are_functorch_transforms_active()
    cpu, triton = cpu and like.device.type == "cpu" and not plain, triton and not plain
    can: dict[Twin, bool] = {"readable": True, "cpu": cpu, "triton": triton}
    if wanted := _forced.get():
        return wanted if can[wanted] else "readable"
    if like.is_cuda:
        # Triton comes with the CUDA builds of PyTorch on Linux only.
        return "triton" if triton and find_spec("triton") is not None else "readable"
    return "cpu" if cpu else "readable"


def products_of(dtype: torch.dtype, convolution: bool = False) -> Precision:
    """The precision of products of this type; for float32, what PyTorch is told about its own.

    It lets convolutions round to TF32 unless told otherwise, and matrices only if told to.
    """
    if dtype == torch.bfloat16:
        return "bfloat16"
    exact = not torch.backends.cudnn.allow_tf32 if convolution else torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"


def between_layers(x: Tensor) -> torch.dtype:
    """The precision of what networks pass on from layer to layer: that of autocast, or else of x."""
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


@contextmanager
def forced(twin: Twin) -> Iterator[None]:
    """Within this, every kernel runs as `twin`: Triton on a CPU by its interpreter, where TRITON_INTERPRET is 1."""
    token = _forced.set(twin)
    try:
        yield
    finally:
        _forced.reset(token)
