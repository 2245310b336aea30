"""The interface between the training loop and a model: a loss that owns the model.

GTM-SM's is in loss.py, that of the rivals in rivals/loss.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.data.clip import Source
from gtmsm.model.recall import RecallConfig
from gtmsm.tensors import Actions, Frames, Gaussian, Poses
from gtmsm.training.prospect import Find, ProspectConfig

MATRICES = {"rest": "attention", "landmarks": "comparison"}
"""Groups of parameters whose hidden matrices form a group of their own, and that group's name."""


class Trainable(Protocol):
    """A module that can save its weights and settings to a file."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """See `nn.Module.parameters`."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """See `nn.Module.named_parameters`."""

    def state_dict(self) -> dict[str, Any]:
        """See `nn.Module.state_dict`."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """See `nn.Module.load_state_dict`."""

    def save(self, path: str | Path) -> None:
        """Write weights and settings to one file."""


Model = TypeVar("Model", bound=Trainable)


class BaseLoss(nn.Module, ABC, Generic[Model]):
    """The loss of a model on clips whose first tau steps are memorised, and how its parameters are optimised."""

    model: Model

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Names of the values that `forward` logs."""

    @property
    @abstractmethod
    def reading(self) -> RecallConfig:
        """Settings for reading memory in the last stage of the curriculum; earlier stages read it more softly."""

    @property
    @abstractmethod
    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        """All parameters, in groups with separate rates: `rest`, `motion`, `walls`, `landmarks`, `MATRICES`."""

    @property
    def clipped_together(self) -> Mapping[str, str]:
        """A label for each group: gradients of groups with the same label are clipped by their joint norm."""
        return dict.fromkeys(self.groups, "bound")

    def search(self, source: Source, settings: ProspectConfig, generator: torch.Generator) -> Find | None:
        """Search for the parameters that gradients do not find; None if the model has no such parameters."""
        return None

    @abstractmethod
    def forward(
        self,
        x: Frames,
        a: Actions,
        true_step: Poses,
        tau: int,
        reading: RecallConfig,
        generator: torch.Generator,
        capacity: int | None = None,
        tried: Actions | None = None,
        true_pose: Poses | None = None,
        code: Gaussian | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor], Int[Tensor, ""] | None]:
        """The loss, values to log, and the number of distinct memorised frames retrieved (None if not counted).

        `capacity`, `tried`: see `Loss`. `true_pose` is given only if the source records true poses, and is for models
        that declare that they need it. `code` is q(z|x) if it was computed before.
        """
