"""Weights in half precision, all of them made by one launch: each by itself is so small that its launch costs more."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HALF = torch.bfloat16

# Not a context variable: the way back runs on a thread of PyTorch's own.
_whole: list[Tensor] = []
_halved: list[Tensor] = []


@contextmanager
def halving(vector: Tensor) -> Iterator[None]:
    """Within this, parameters that lie in `vector` (an optimiser's) are halved together, and do not change."""
    assert not _whole, "one vector at a time"
    _whole.append(vector)
    try:
        yield
    finally:
        _whole.clear()
        _halved.clear()


def half_of(parameter: Tensor) -> Tensor:
    """A parameter in bfloat16, as it lies in memory; nobody learns through this."""
    parameter = parameter.detach()
    if not _whole or parameter.dtype != _whole[0].dtype or not _lies_in(parameter, _whole[0]):
        return parameter.to(HALF)
    if not _halved:
        _halved.append(_whole[0].to(HALF))
    begin = (parameter.data_ptr() - _whole[0].data_ptr()) // parameter.element_size()
    return _halved[0].as_strided(parameter.shape, parameter.stride(), begin)


def _lies_in(parameter: Tensor, vector: Tensor) -> bool:
    return vector.data_ptr() <= parameter.data_ptr() < vector.data_ptr() + vector.nbytes
