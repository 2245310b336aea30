"""What the loop trains: a loss that owns a model. GTM-SM has one (loss.py), each rival another."""

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
"""Groups of parameters whose hidden matrices are a group of their own, and how it is called."""


class Trainable(Protocol):
    """A module whose weights are files."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As of every module."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As of every module."""

    def state_dict(self) -> dict[str, Any]:
        """As of every module."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As of every module."""

    def save(self, path: str | Path) -> None:
        """Weights and settings in one file."""


Model = TypeVar("Model", bound=Trainable)


class BaseLoss(nn.Module, ABC, Generic[Model]):
    """The loss of a model on clips, whose first tau steps are memorised, and how its parameters learn."""

    model: Model

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """What `forward` logs."""

    @property
    @abstractmethod
    def reading(self) -> RecallConfig:
        """How memory is read in the last stage of the curriculum; earlier stages read it more softly."""

    @property
    @abstractmethod
    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        """All parameters, in groups with rates of their own: `rest`, `motion`, `walls`, `landmarks`, and `MATRICES`."""

    @property
    def clipped_together(self) -> Mapping[str, str]:
        """A word for each group: the gradients of groups with the same word are clipped by their joint norm."""
        return dict.fromkeys(self.groups, "bound")

    def search(self, source: Source, settings: ProspectConfig, generator: torch.Generator) -> Find | None:
        """Search for the parameters that gradients do not find; None where the model has none of these."""
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
        """The loss, values to log, and how many distinct memorised frames were retrieved, if that was counted.

        `capacity`, `tried`: see `Loss`. True poses are there only where the source records them, and are for models
        that are declared to need them. `code` is q(z|x), where it was computed before.
        """
