"""One agent in one place: a frame and an action at a time."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import is_whole, require
from gtmsm.errors import shown
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, States

Frame: TypeAlias = np.ndarray | Tensor
"""A picture as cameras give it (`height width channel`, uint8), or as the model takes it (`channel height width` in
[0, 1])."""
Action: TypeAlias = int | Sequence[float] | np.ndarray | Tensor


class Explorer:
    """Memorises, recognises and imagines while an agent walks.

    explorer = Explorer(model)
    explorer.step(frame)                      # what it sees first
    explorer.step(frame, action)              # what an action led to
    explorer.imagine([[0, 0, 2]]).frames      # what three actions would show
    """

    def __init__(self, model: WorldModel, memory: Memory | None = None, here: Belief | None = None) -> None:
        self.model = model
        self.memory = memory
        self.here = Belief(model.motion.start(1)) if here is None else here
        self._path: list[Float[Tensor, "1 S"]] = []

    def __len__(self) -> int:
        """Number of views memorised."""
        return 0 if self.memory is None else len(self.memory)

    @property
    def path(self) -> States:
        """Where it was after each step."""
        start = self.model.motion.start(1)[:, None]
        return torch.stack(self._path, dim=1) if self._path else start[:, :0]

    @torch.no_grad()
    def step(self, frame: Frame, action: Action | None = None) -> Belief:
        """Memorise what `action` led to; returns where the agent is now. None: it did nothing, or has just arrived."""
        frames = self._frame(frame)[None, None]
        self.memory, self.here = self.model.memorise(frames, self._action(action)[None, None], self.memory, self.here)
        self._path.append(self.here.mean)
        return self.here

    @torch.no_grad()
    def imagine(self, plans: Tensor | Sequence[Sequence[Action]], generator: torch.Generator | None = None) -> Dream:
        """What each of these plans would show from here; a plan is a sequence of actions."""
        if not isinstance(plans, Tensor):
            plans = torch.stack([torch.stack([self._action(action) for action in plan]) for plan in plans])
        require(len(self) > 0, "nothing is memorised yet; call step with what is seen first")
        assert self.memory is not None
        return self.model.imagine(self.memory, self.here, plans, generator)

    @torch.no_grad()
    def localise(self, frame: Frame) -> PoseMixture:
        """Where was this picture seen?"""
        require(len(self) > 0, "nothing is memorised yet; call step with what is seen first")
        assert self.memory is not None
        return self.model.localise(self.memory, self._frame(frame)[None, None])

    def _frame(self, frame: Frame) -> Float[Tensor, "channel height width"]:
        """As the model takes it."""
        if isinstance(frame, np.ndarray):
            fits = frame.dtype == np.uint8 and frame.ndim == 3
            require(fits, f"frame is {shown(frame)}; give uint8 of shape (height, width, channel)")
            return torch.from_numpy(frame).permute(2, 0, 1).to(self._like) / 255
        require(isinstance(frame, Tensor), f"frame is {shown(frame)}; give an array or a tensor")
        return frame.to(self._like)

    def _action(self, action: Action | None) -> Float[Tensor, " A"]:
        """One-hot, where it is a number."""
        size, like = self.model.action_size, self._like
        if action is None:
            return like.new_zeros(size)
        if is_whole(action):
            require(0 <= int(action) < size, f"action is {action}; give 0 to {size - 1}")  # type: ignore[arg-type]
            return torch.nn.functional.one_hot(torch.tensor(int(action)), size).to(like)  # type: ignore[arg-type]
        return torch.as_tensor(action).to(like)

    @property
    def _like(self) -> Tensor:
        """A tensor of the model's device and precision."""
        return self.model.motion.start(1)
