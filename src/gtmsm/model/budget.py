"""A limit on what building a model from a weights file may allocate: its settings may ask for any size."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gtmsm.errors import InputError

MAKERS = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn)
"""Functions of PyTorch that allocate weights and a constructor's temporary tensors."""
FACTOR, ANYHOW = 4, 10**7
"""Elements that may be allocated: `FACTOR` times those of the file, plus `ANYHOW`."""


class Budget(TorchFunctionMode):
    """A context in which a model is built that will take its weights from `tensors`, found in `source`.

    The model is not built on the device "meta", whose arithmetic would load PyTorch's compiler first: two seconds.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        super().__init__()
        self.source, self.left = source, FACTOR * sum(value.numel() for value in tensors.values()) + ANYHOW

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MAKERS:
            sizes = args if args and isinstance(args[0], int) else args[0] if args else kwargs["size"]
            self.left -= math.prod(sizes)
            if self.left < 0:
                told = "holds weights of another model: its settings describe a larger one than the file can fill"
                raise InputError(f"{self.source} {told}")
        return func(*args, **(kwargs or {}))
