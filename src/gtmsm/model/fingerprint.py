"""Identifies the weights that made a memory: codes of one model mean nothing to another."""

import hashlib
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from gtmsm.tensors import are_finite, have_values


class Fingerprint:
    """The SHA-256 of a module's weights, cached until they may have changed."""

    def __init__(self) -> None:
        self._found: tuple[Hashable, str] | None = None
        self._finite: tuple[Hashable, bool] | None = None

    def forget(self) -> None:
        """Compute it again next time: a captured graph changes weights without updating PyTorch's version counters."""
        self._found = self._finite = None

    def of(self, module: nn.Module) -> str | None:
        """16 hexadecimal digits; None while weights cannot be read, as during compilation."""
        weights = tensors_of(module)
        if not have_values(*weights[:1]):
            return None
        state = state_of(weights)
        if self._found is None or self._found[0] != state:
            self._found = state, _digest(module.state_dict())
        return self._found[1]

    def is_finite(self, module: nn.Module) -> bool:
        """Whether the weights hold no NaN and no infinity, or cannot be read."""
        weights = tensors_of(module)
        if not have_values(*weights):
            return True
        state = state_of(weights)
        if self._finite is None or self._finite[0] != state:
            self._finite = state, are_finite(*weights)
        return self._finite[1]


def state_of(weights: Sequence[Tensor]) -> Hashable:
    """Addresses and version counters of tensors; inference tensors have no counter."""
    return tuple((x.data_ptr(), 0 if x.is_inference() else x._version) for x in weights)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, in a tenth of the time that `parameters()` takes: this is called at each step."""
    found: list[Tensor] = []
    modules: list[nn.Module | None] = [module]
    for inner in modules:  # a list that grows during the loop
        if inner is not None:
            found += [x for x in inner._parameters.values() if x is not None]
            found += [x for x in inner._buffers.values() if x is not None]
            modules += inner._modules.values()
    return found


def _digest(tensors: dict[str, Tensor]) -> str:
    """The hash of names, types, sizes and bits."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
