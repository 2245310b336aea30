"""Opens weights with their settings from one safetensors file, for world models and their rivals."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from gtmsm.config import read_config, require
from gtmsm.errors import InputError
from gtmsm.files import read_tensors
from gtmsm.model.budget import Budget
from gtmsm.model.checks import require_device
from gtmsm.tensors import FLOATS, are_finite

WEIGHTS = "weights.safetensors"

Described = TypeVar("Described")
Model = TypeVar("Model", bound=nn.Module)


def open_weights(
    path: Path,
    device: torch.device | str,
    what: str,
    key: str,
    description: type[Described],
    build: Callable[[Described], Model],
) -> Model:
    """A model from a folder or a file of weights; `key` is the setting that only weights of `what` have.

    It is for use, not for training: its weights have no gradients.
    """
    device = require_device(device)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"no weights at {file}; give a run folder that holds {WEIGHTS}")
    about, tensors = read_tensors(file)
    if key not in about:
        raise InputError(f"{file} holds no weights of a {what}; give the folder of a trained one, or its {WEIGHTS}")
    described = read_config(description, about, str(file))
    with Budget(tensors, file):
        model = build(described)
    take_weights(model, tensors, file)
    return model.to(device).eval().requires_grad_(False)


class Weighted(Protocol):
    """The methods of a module that concern its weights."""

    def state_dict(self) -> dict[str, Any]:
        """As in `nn.Module`."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As in `nn.Module`."""


def take_weights(module: Weighted, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Load the weights of `source` into a module; refuses those of a module unlike this one."""
    mine = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise InputError(
                f"{source} holds weights of another model: {name} is {theirs.get(name, 'missing')} there and "
                f"{mine.get(name, 'unknown')} here"
            )
    require_weights(tensors, source)
    module.load_state_dict(tensors)


def require_weights(tensors: Mapping[str, Tensor], source: Path) -> None:
    """Require weights that are finite real numbers."""
    for name, value in tensors.items():
        require(value.dtype in FLOATS, f"{source}: {name} is {value.dtype}; weights are real floats of 16 bits or more")
        require(
            are_finite(value), f"{source}: {name} holds NaN or infinity; train the model again, or fetch the file again"
        )
