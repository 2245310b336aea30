"""A clip: actions and frames of agents, with their true poses."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require_whole
from gtmsm.pose import space_of
from gtmsm.tensors import Actions, Frames, Gaussian, Poses


@dataclass(frozen=True)
class Clip:
    """A batch of walks. Frame t is what action t led to, so the starting frame is not part of it."""

    x: Frames
    """Frames in [0, 1]."""
    a: Actions
    """Actions; one-hot where the world's actions are discrete."""
    true_pose: Poses
    """True pose of the agent. Scores use it; the model does not."""
    true_step: Poses
    """True displacement of each step, in the agent's own frame if it has a heading. Training uses it if the objective
    asks for displacements (section 4.2.2), recognition or regret (App. D); it also determines where the walk began."""
    tried: Actions | None = None
    """Actions that were tried, if failed steps are known: in `a` these are steps without an action."""
    code: Gaussian | None = None
    """q(z|x) of the frames, if it was computed once for all updates."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.x.shape[1]

    @property
    def true_start(self) -> Float[Tensor, "batch D"]:
        """True pose of the agent before its first action."""
        first, step = self.true_pose[:, 0], self.true_step[:, 0]
        turned_back = torch.cat([first[:, :2], (first - step)[:, 2:]], dim=-1)
        return torch.cat([space_of(first.shape[-1]).step(turned_back, -step)[:, :2], turned_back[:, 2:]], dim=-1)

    def split(self, tau: int) -> "tuple[Clip, Clip]":
        """Split into the tau steps to memorise and the rest, to predict."""
        require_whole("tau", tau, most=self.steps - 1)
        return self[:, :tau], self[:, tau:]

    def __getitem__(self, index: object) -> "Clip":
        """Apply the same index to every field."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Clip(**{name: part[index] for name, part in parts.items() if part is not None})


Source: TypeAlias = Callable[[int, int, torch.Generator], Clip]
"""Draws clips, given (number of clips, steps of each, generator)."""
