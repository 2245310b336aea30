"""An explorer as one safetensors file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtmsm.config import is_whole, require
from gtmsm.errors import shown
from gtmsm.explore.loops import OpenSteps
from gtmsm.explore.trail import Trail
from gtmsm.files import as_path, read_tensors, write_tensors
from gtmsm.model.checks import require_finite, require_here, require_like, require_memory
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.landmark_filter import Sights
from gtmsm.model.memory import Memory
from gtmsm.model.place_graph import Edges, PlaceGraph
from gtmsm.tensors import Actions, Belief, Frames

FORMAT = 1
"""Of the files. It has only grown so far: parts that older files lack are filled in."""
MOST = 2**40
"""Step and entry numbers of a file must be below this."""


@dataclass(frozen=True)
class Saved:
    """The complete state of an explorer."""

    memory: Memory | None
    """None if it is empty."""
    here: Belief
    trail: Trail
    closure: int
    since_closure: int
    moved: int
    """Number of entries in memory when settled entries were last moved."""
    open: OpenSteps | None
    places: PlaceGraph | None
    unplaced: tuple[Frames, Actions] | None
    """The latest frames and actions of an explorer that is lost; otherwise None."""

    def write(self, path: str | Path, model: WorldModel) -> None:
        """Write one safetensors file, atomically."""
        tensors = {
            "path": self.trail.states,
            "actions": self.trail.actions,
            "here.mean": self.here.mean,
            "here.covariance": self.here.covariance,
        }
        made = (self.memory and self.memory.weights) or model.fingerprint  # the model may have learned since
        about = {"explorer": FORMAT, "weights": made, "closure": self.closure, "since": self.since_closure}
        about["moved"], about["guessed"] = self.moved, self.trail.guessed
        if self.memory is not None:
            tensors |= {f"memory.{name}": column for name, column in self.memory.snapshot().columns.items()}
        if self.open is not None:
            about["first"] = self.open.first
            tensors |= {f"open.{name}": getattr(self.open, name) for name in ("start", "state", "plan", "added")}
            tensors |= {f"sights.{name}": part for name, part in self.open.sights._asdict().items()}
        if self.places is not None:
            about["places"] = self.places.first
            named = {"of": self.places.of, "pose": self.places.pose, "past": self.places.past}
            named |= {"fixed": self.places.fixed.to(torch.uint8), **self.places.edges._asdict()}
            tensors |= {f"places.{name}": part for name, part in named.items()}
        if self.unplaced is not None:
            tensors |= {"unplaced.frames": self.unplaced[0], "unplaced.actions": self.unplaced[1]}
        there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_tensors(as_path(path), there, about)

    @classmethod
    def read(cls, path: str | Path, model: WorldModel) -> "Saved":
        """Read a file of `write`; refuse one of other weights, or one with missing or inconsistent parts."""
        path = as_path(path)
        about, tensors = read_tensors(path)
        require("explorer" in about, f"{path} was not saved by an Explorer; give a file that Explorer.save wrote")
        newer = f"{path} is of format {shown(about['explorer'])}, and this gtmsm reads {FORMAT}; update gtmsm"
        require(about["explorer"] == FORMAT, newer)
        made, mine = about.get("weights"), model.fingerprint
        other = f"{path} was made by the weights {shown(made)}, not by {mine}; load the model that made it"
        require(made == mine, other)
        file = _File(path, model, {name: x.to(model.motion.start(1).device) for name, x in tensors.items()}, about)
        memory, opened = file.memory(), None
        held = 0 if memory is None else len(memory)
        if "first" in about:
            opened = file.open_steps(held)
        places = file.places(held) if "places" in about else None
        unplaced = None
        if "unplaced.frames" in tensors:
            frames = file.like("unplaced.frames", 1, "time", *model.frame_shape)
            unplaced = frames, file.like("unplaced.actions", 1, frames.shape[1], model.action_size)
        here = Belief(file.tensor("here.mean"), file.tensors.get("here.covariance"))
        require_here(model, here)
        trail = file.trail()
        guesses = 0 if unplaced is None else unplaced[0].shape[1]
        few = f"{path}: guessed is {trail.guessed}, but {guesses} frames are not placed yet; {WHOLE}"
        require(guesses <= trail.guessed, few)
        steps = 0 if opened is None else len(opened)
        require(steps <= trail.states.shape[1], f"{path}: more steps are open than were walked; {WHOLE}")
        floats = {name: x for name, x in file.tensors.items() if x.is_floating_point() and name not in ODDS}
        require_finite(model, "load", floats)
        moved = file.number("moved") if "moved" in about else 0  # files older than the place graph lack it
        closing = file.number("closure"), file.number("since"), moved
        return cls(memory, here, trail, *closing, opened, places, unplaced)


ODDS = ("sights.log_odds", "places.log_odds")
"""Tensors that may hold infinite values."""
WHOLE = "is it a whole file of Explorer.save?"


@dataclass(frozen=True)
class _File:
    """The contents of a file; each method checks what it returns."""

    path: Path
    model: WorldModel
    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def number(self, name: str) -> int:
        """A whole number from the metadata."""
        value = self.about.get(name)
        require(is_whole(value) and 0 <= value < MOST, f"{self.path}: {name} is {shown(value)}; {WHOLE}")  # type: ignore[operator]
        return int(value)  # type: ignore[arg-type]

    def tensor(self, name: str) -> Tensor:
        """A tensor that must be present."""
        require(name in self.tensors, f"{self.path} lacks {name}; {WHOLE}")
        return self.tensors[name]

    def like(self, name: str, *sizes: int | str) -> Tensor:
        """A tensor that must have these sizes and the dtype of the weights."""
        require_like(self.model, f"{self.path}: {name} is", self.tensor(name), sizes, f"; {WHOLE}")
        return self.tensors[name]

    def trail(self) -> Trail:
        """The actions, and the state after each."""
        states = self.like("path", 1, "time", self.model.motion.state_size)
        if "actions" not in self.tensors and "guessed" not in self.about:
            # A file of before actions were kept: which of its steps failed is unknown, as it is of guesses.
            trail = Trail(states, states.new_zeros(1, 1, self.model.action_size))
            trail.went(states, states.new_zeros(*states.shape[:2], self.model.action_size))
            trail.guessed = states.shape[1]
            return trail
        actions = self.like("actions", 1, states.shape[1], self.model.action_size)
        trail = Trail(states, actions)
        trail.went(states, actions)
        if "guessed" in self.about:
            trail.guessed = self.number("guessed")
        elif "unplaced.frames" in self.tensors:  # an older file without the count, of an explorer that is lost
            trail.guessed = states.shape[1]
        fits = trail.guessed <= states.shape[1]
        require(fits, f"{self.path}: guessed is {trail.guessed} of {states.shape[1]} steps; {WHOLE}")
        return trail

    def memory(self) -> Memory | None:
        """The memory, if it is not empty."""
        columns = {name[7:]: x for name, x in self.tensors.items() if name.startswith("memory.")}
        if not columns:
            return None
        for name in ("place", "mean", "log_var"):
            self.tensor(f"memory.{name}")
        memory = Memory.of_columns(columns, self.model.fingerprint)
        require_memory(self.model, memory)
        require(memory.batch == 1, f"{self.path} holds {memory.batch} memories; {WHOLE}")
        return memory

    def open_steps(self, held: int) -> OpenSteps:
        """The steps that are still corrected; `held` is the number of entries in memory."""
        landmarks, first = self.model.require_landmarks("close loops"), self.number("first")
        steps, size = held - first, self.model.motion.pose_size
        require(steps > 0, f"{self.path}: first is {first} of {held} entries; {WHOLE}")
        state = self.like("open.state", 1, steps, self.model.motion.state_size)
        sizes, index = (1, steps, landmarks.settings.matches), self.tensor("sights.index")
        fits = index.dtype == torch.int64 and index.shape == sizes and 0 <= int(index.min()) <= int(index.max()) < held
        require(fits, f"{self.path}: sights.index is {shown(index)}; {WHOLE}")
        log_odds, noise = self.like("sights.log_odds", *sizes), self.like("sights.noise", *sizes, len(landmarks.groups))
        require(not log_odds.isnan().any(), f"{self.path}: sights.log_odds holds NaN; {WHOLE}")
        require(bool((noise > 0).all()), f"{self.path}: sights.noise is not positive; {WHOLE}")
        sights = Sights(index, log_odds, self.like("sights.offset", *sizes, size), noise)
        start = self.like("open.start", 1, self.model.motion.state_size)
        plan, added = self.like("open.plan", 1, steps, size), None
        if landmarks.settings.watch:
            added = self.like("open.added", 1, steps, len(landmarks.groups))
            require(bool((added > 0).all()), f"{self.path}: open.added is not positive; {WHOLE}")
        return OpenSteps(first, start, state, plan, sights, added)

    def places(self, held: int) -> PlaceGraph:
        """The place graph as of the last loop closure; `held` is the number of entries in memory."""
        first, size, groups = self.number("places"), self.model.motion.pose_size, len(self.model.motion.space.groups)
        of, pose, past, fixed, pair, steps = (
            self.tensor(f"places.{name}").cpu() for name in ("of", "pose", "past", "fixed", "pair", "steps")
        )
        offset, noise, odds = (self.tensor(f"places.{name}").cpu() for name in ("offset", "noise", "log_odds"))
        shapes = {
            "of": (of, torch.int64, (len(of),)), "pose": (pose, torch.float64, (len(pose), size)),
            "past": (past, torch.int64, (len(past), 2)), "fixed": (fixed, torch.uint8, (len(pose),)),
            "pair": (pair, torch.int64, (len(pair), 2)), "offset": (offset, torch.float64, (len(pair), size)),
            "noise": (noise, torch.float64, (len(pair), groups)), "log_odds": (odds, torch.float64, (len(pair),)),
            "steps": (steps, torch.int64, (len(pair),)),
        }  # fmt: skip
        for name, (part, dtype, sizes) in shapes.items():
            fits = part.dtype == dtype and part.shape == sizes
            require(fits, f"{self.path}: places.{name} is {shown(part)}; {WHOLE}")
        numbers = torch.cat([of, pair.flatten(), past[:, 1]])
        fits = 0 < len(of) <= held - first and 0 <= int(numbers.min()) <= int(numbers.max()) < len(pose)
        sure = bool((noise > 0).all()) and not odds.isnan().any() and bool((steps >= 0).all())
        require(fits and sure, f"{self.path}: places do not fit together; {WHOLE}")
        return PlaceGraph(first, of, pose, fixed.bool(), past, Edges(pair, offset, noise, odds, steps))
