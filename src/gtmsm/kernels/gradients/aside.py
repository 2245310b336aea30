"""Work on a GPU that nobody waits for yet: it runs beside what follows, on a stream of its own.

Gradients of weights are the case: the way back needs those of activations only, and a small network leaves a GPU half
empty. Whoever opens `aside_allowed` promises not to look at such gradients before it is closed again.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

# Not a context variable: the way back runs on a thread of PyTorch's own.
_allowed: list[torch.device] = []
_uses: Counter[int] = Counter()
"""How often each parameter was used since `aside_allowed` was opened."""


@contextmanager
def aside_allowed(device: torch.device) -> Iterator[None]:
    """Within this, `aside` may put work aside; at its end, all of it is waited for (by the device, not by the host)."""
    if device.type != "cuda":
        yield
        return
    side = _side(device)
    side.wait_stream(torch.cuda.current_stream(device))  # even if nothing is put aside, a graph must know of it
    _allowed.append(device)
    _uses.clear()
    try:
        yield
    finally:
        _allowed.remove(device)
        torch.cuda.current_stream(device).wait_stream(side)


def noted(*parameters: Tensor) -> tuple[int, ...] | None:
    """To be called where parameters are used on the way forward; what `aside` asks for where they learn.

    None where one of them was made from others: whatever it learns is handed on at once.
    """
    if not all(parameter.is_leaf for parameter in parameters):
        return None
    keys = tuple(parameter.data_ptr() for parameter in parameters)
    _uses.update(keys)
    return keys


@contextmanager
def aside(*used: Tensor | None, learning: tuple[int, ...] | None = ()) -> Iterator[None]:
    """Run this beside what follows, if that is allowed; `used` are the tensors that it reads.

    `learning` is what `noted` said of the parameters whose gradients these are. Where one is used several times its
    gradients are added up at once, and nothing is put aside.
    """
    given = [x for x in used if x is not None]
    device = given[0].device
    if device not in _allowed or learning is None or any(_uses[key] > 1 for key in learning):
        yield
        return
    side = _side(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    for x in given:
        x.record_stream(side)  # or their memory would be given away while it is still read


@lru_cache(maxsize=8)
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
