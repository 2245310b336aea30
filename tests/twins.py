"""What a kernel and its readable twin made, side by side, and inputs that lie oddly; for the tests of kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor


def assert_equal_twins(fast: Sequence[Tensor], readable: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    """In units of the largest number: a sum over thousands of rows is as inexact as what it adds up."""
    for index, (one, other) in enumerate(zip(fast, readable, strict=True)):
        assert one.shape == other.shape, index
        size = max(1.0, other.abs().max().item()) if other.numel() else 1.0
        error = (one.double() - other.double()).abs().max().item() if other.numel() else 0.0
        assert error <= tolerance * size, f"part {index} is off by {error}, and no number is larger than {size}"


def assert_close_twins(
    names: Sequence[str], fast: Sequence[Tensor], readable: Sequence[Tensor], rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """Number by number, in the precision of the fast one."""
    for name, one, other in zip(names, fast, readable, strict=True):
        told = f"{name}: {{}}".format
        torch.testing.assert_close(one, other.to(one.dtype), rtol=rtol, atol=atol, msg=told)


def strided(x: Tensor) -> Tensor:
    """The same numbers, every second element of a larger tensor, axes stored backwards."""
    backwards = tuple(range(x.dim()))[::-1]
    others = ~x if x.dtype == torch.bool else x + 1
    return torch.stack([x, others], -1).permute(*backwards, -1).contiguous().permute(*backwards, -1)[..., 0]
