"""What a world must offer: batched tensors on any device, no learning inside."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ActionNumbers: TypeAlias = Int[Tensor, "n time"]
Twice: TypeAlias = Bool[Tensor, "n time"] | None
"""Which actions are done a second time, before the frame."""


@dataclass(frozen=True)
class Walk:
    """What `n` agents saw and where they were, after each of their actions."""

    frames: Float[Tensor, "n time channel height width"]
    where: Float[Tensor, "n time D"] | Int[Tensor, "n time D"]
    """Poses as the world counts them; cells are whole numbers."""

    @property
    def poses(self) -> Float[Tensor, "n time D"]:
        """Where they were."""
        return self.where.float()


def drawn(high: int, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Int[Tensor, "*shape"]:
    """Numbers from 0 to high - 1, drawn where the generator is: a CPU's gives the same numbers on any device."""
    return torch.randint(high, shape, generator=generator, device=generator.device).to(device)


@runtime_checkable
class World(Protocol):
    """`n` agents, each in a place of its own."""

    action_names: tuple[str, ...]
    frame_shape: tuple[int, int, int]

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Put `n` agents into places drawn at random (without a generator: the first `n`, in order)."""

    def step(self, action: Int[Tensor, "n"]) -> None:
        """Each agent does its action."""

    def walk(self, actions: ActionNumbers) -> Walk:
        """Many steps at once: the same as `step` and `look` in turn.

        Without a loop over time where the world allows it. Where movement is sequential, as with momentum, only
        poses are computed step by step, and all frames are drawn afterwards.
        """

    def look(self) -> Float[Tensor, "n channel height width"]:
        """What each agent sees now, in [0, 1]."""

    @property
    def device(self) -> torch.device:
        """Where all its tensors are."""

    @property
    def agents(self) -> int:
        """How many agents there are."""

    @property
    def pose(self) -> Float[Tensor, "n D"]:
        """Where each agent really is."""
