"""One agent in one place: a frame and an action at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import is_whole, require
from gtmsm.errors import shown
from gtmsm.files import as_path, read_tensors, write_tensors
from gtmsm.model.checks import require_here, require_like, require_memory
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, Gaussian, States

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
    explorer.save("walk.safetensors")         # Explorer.load goes on from there
    """

    def __init__(self, model: WorldModel, memory: Memory | None = None, here: Belief | None = None) -> None:
        """Go on with `memory`, which stays as it is, from `here`: `model.anywhere(1)` where nobody knows that."""
        if memory is not None:
            require_memory(model, memory)
            require(memory.batch == 1, f"got {memory.batch} memories for 1 agent; give one of them, as memory[:1] is")
        if here is not None:
            require_here(model, here)
            require(len(here.mean) == 1, f"got {len(here.mean)} poses for 1 agent; give one of them, as here[:1] is")
        self.model = model
        self.memory = memory
        if model.settings.recall.distance == "euclidean":  # the only one that a long memory is searched by
            empty = LongMemory() if memory is None else LongMemory.of(memory)
            self.memory = memory.snapshot() if isinstance(memory, LongMemory) else empty
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

    def fork(self) -> "Explorer":
        """Another explorer that knows what this one does; from now on each remembers for itself."""
        other = Explorer(self.model, self.memory, self.here)
        other._path = list(self._path)
        return other

    def save(self, path: str | Path) -> None:
        """What it remembers, where it is and where it was, as one safetensors file; written whole or not at all."""
        memory = None if self.memory is None else self.memory.snapshot()
        columns = {} if memory is None or not len(memory) else memory.columns
        tensors = {f"memory.{name}": column for name, column in columns.items()}
        tensors |= {"path": self.path, "here.mean": self.here.mean}
        if self.here.covariance is not None:
            tensors["here.covariance"] = self.here.covariance
        about = {"explorer": 1, "weights": self.model.fingerprint}
        write_tensors(as_path(path), tensors, about)

    @classmethod
    def load(cls, path: str | Path, model: WorldModel) -> "Explorer":
        """As it was when it was saved; `model` must have the weights that it had then."""
        path = as_path(path)
        about, tensors = read_tensors(path)
        require("explorer" in about, f"{path} was not saved by an Explorer; give a file that Explorer.save wrote")
        made, mine = about.get("weights"), model.fingerprint
        require(
            made == mine, f"{path} was made by the weights {shown(made)}, not by {mine}; load the model that made it"
        )
        like = model.motion.start(1)
        tensors = {name: tensor.to(like.device) for name, tensor in tensors.items()}
        require(
            {"path", "here.mean"} <= tensors.keys(),
            f"{path} lacks path or here.mean; give a file that Explorer.save wrote",
        )
        memory = None
        if "memory.mean" in tensors:
            columns = {name.removeprefix("memory."): value for name, value in tensors.items()}
            require({"place", "log_var"} <= columns.keys(), f"{path} lacks places or codes; is it whole?")
            place = Belief(columns["place"], columns.get("covariance"))
            code = Gaussian(columns["mean"], columns["log_var"])
            memory = Memory(place, code, columns.get("digest"), columns.get("variance"), mine)
        explorer = cls(model, memory, Belief(tensors["here.mean"], tensors.get("here.covariance")))
        require_like(model, "path is", tensors["path"], (1, "time", like.shape[-1]), "")
        explorer._path = list(tensors["path"].unbind(1))
        return explorer

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
