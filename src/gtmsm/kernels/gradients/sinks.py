"""Gradients of parameters that go straight to where an optimiser wants them, without a sum and a copy each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

# Not a context variable: the way back runs on a thread of PyTorch's own.
_sinks: dict[int, Tensor] = {}
_used: set[int] = set()


@contextmanager
def sinking(sinks: Mapping[int, Tensor]) -> Iterator[None]:
    """Within this, kernels that can add gradients of a parameter to its sink, by its `data_ptr`, and hand on none.

    In float32, and in whatever order programs come: the last bits of a sum may differ from run to run.
    """
    _sinks.update(sinks)
    _used.clear()
    try:
        yield
    finally:
        _sinks.clear()


def sinks_of(*parameters: Tensor) -> list[Tensor] | None:
    """Where their gradients are to be added, if each of them is a parameter with a sink."""
    keys = [parameter.data_ptr() for parameter in parameters if parameter.is_leaf]
    if len(keys) < len(parameters) or not all(key in _sinks for key in keys):
        return None
    _used.update(keys)
    return [_sinks[key] for key in keys]


def has_sunk(parameter: Tensor) -> bool:
    """Whether gradients of it went into its sink since `sinking` was last opened."""
    return parameter.data_ptr() in _used
