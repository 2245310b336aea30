"""A clip: what an agent did and saw, and where it really was."""

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
    """Where the agent really was. Scores read it; the model does not."""
    true_step: Poses
    """How it really moved at each step, in its own frame where it has a heading. Training reads it where the objective
    asks for displacements (section 4.2.2), recognition or regret (App. D); it also tells where the walk began."""
    tried: Actions | None = None
    """What was tried, where steps that failed are known: they count as steps without an action in `a`."""
    code: Gaussian | None = None
    """q(z|x) of the frames, where it was computed once for all updates."""

    @property
    def steps(self) -> int:
        """How many steps long."""
        return self.x.shape[1]

    @property
    def true_start(self) -> Float[Tensor, "batch D"]:
        """Where the agent really was before its first action."""
        first, step = self.true_pose[:, 0], self.true_step[:, 0]
        turned_back = torch.cat([first[:, :2], (first - step)[:, 2:]], dim=-1)
        return torch.cat([space_of(first.shape[-1]).step(turned_back, -step)[:, :2], turned_back[:, 2:]], dim=-1)

    def split(self, tau: int) -> "tuple[Clip, Clip]":
        """The tau steps to memorise, and the rest, to predict."""
        require_whole("tau", tau, most=self.steps - 1)
        return self[:, :tau], self[:, tau:]

    def __getitem__(self, index: object) -> "Clip":
        """The same index into every field."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return Clip(**{name: part[index] for name, part in parts.items() if part is not None})


Source: TypeAlias = Callable[[int, int, torch.Generator], Clip]
"""Fresh clips: (how many, how many steps each, randomness)."""
