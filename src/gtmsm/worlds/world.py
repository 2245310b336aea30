"""What a world must offer: batched tensors on any device, no learning inside."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.config import require, require_whole
from gtmsm.errors import shown
from gtmsm.tensors import require_generator

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


def require_reset(n: object, generator: object) -> None:
    """Refuse what is no number of agents, or no source of chance."""
    require_whole("number of agents", n)
    require_generator(generator)


def require_walk(actions: Any, agents: int, known: int, device: torch.device) -> None:
    """Refuse what are no numbers of actions, from -1 (none) on, for every agent and step."""
    fits = isinstance(actions, Tensor) and actions.dim() == 2 and actions.dtype in (torch.int32, torch.int64)
    fits = fits and (not actions.is_meta or device.type == "meta")
    require(fits, f"actions are {shown(actions)}; give a tensor of whole numbers, (agents, steps)")
    require(len(actions) == agents, f"actions are for {len(actions)} agents; this world has {agents}")
    require(actions.shape[1] >= 1, "there is no action to walk; give at least one step")
    if actions.device.type == "cpu":  # to look at a GPU's would wait for it
        low, high = (int(end) for end in actions.aminmax())
        require(-1 <= low <= high < known, f"actions are {low} to {high}; expected 0 to {known - 1}, or -1 for none")


def one_step(action: Int[Tensor, "n"]) -> ActionNumbers:
    """The actions of a single step, as those of a walk."""
    fits = isinstance(action, Tensor) and action.dim() == 1
    require(fits, f"the actions of a step are {shown(action)}; give a tensor of one number per agent")
    return action[:, None]


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
