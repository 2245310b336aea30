"""A world model used live by one agent, one frame and one action at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import is_whole, require, require_whole
from gtmsm.errors import InputError, shown
from gtmsm.explore.loops import OPEN, OpenSteps
from gtmsm.explore.saved import Saved
from gtmsm.explore.trail import Trail
from gtmsm.model.checks import require_clips, require_here, require_memory
from gtmsm.model.dream import Dream
from gtmsm.model.following import Observed
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.model.place_graph import PlaceGraph
from gtmsm.model.planning import Goal, Obstacles, Plan, PlanConfig, Walked, find_goal, typical
from gtmsm.tensors import Actions, Belief, Gaussian, Poses, States

Frame: TypeAlias = np.ndarray | Tensor
"""A picture as cameras give it (`height width channel`, uint8), or as the model takes it (`channel height width` in
[0, 1])."""
Action: TypeAlias = int | Sequence[float] | np.ndarray | Tensor
"""A number, or a vector."""


class Explorer:
    """Memorises, recognises and imagines while an agent walks; the cost of a step does not grow with the walk.

    explorer = Explorer(model)
    explorer.step(frame)                      # the first frame
    explorer.step(frame, action)              # the frame after an action
    explorer.imagine([[0, 0, 2]]).frames      # what three actions would show
    explorer.save("walk.safetensors")         # Explorer.load goes on from there
    """

    memory: Memory
    """The memory: a `LongMemory`, unless the model reads memory by the KL distance."""
    here: Belief
    """The pose estimate of the agent."""
    lost: bool
    """Whether the pose on the map is still unknown. Nothing is memorised until it is known."""

    def __init__(
        self, model: WorldModel, memory: Memory | None = None, here: Belief | None = None, closure: int | None = None
    ) -> None:
        """Continue with a copy of `memory`, from `here`; for an unknown start give `model.anywhere(1)`.

        `closure`: steps between loop closures, 0 for never, None for the value in the settings of landmarks.
        """
        by_name = 'give a world model, as WorldModel.load("obstacles-free") returns'
        require(isinstance(model, WorldModel), f"model is {shown(model)}; {by_name}")
        self.model, self.closure = model, _every(model, closure)
        self.memory = _own(model, memory)
        self.here = Belief(model.motion.start(1)) if here is None else here
        require_here(model, self.here)
        poses = len(self.here.mean)
        require(poses == 1, f"here holds {poses} poses, and an explorer is 1 agent; give one, as here[:1] is")
        self.here = self.here.detached()
        self.lost = model.landmarks is not None and model.landmarks.is_lost(model.landmarks.as_variance(self.here))
        require(not self.lost or len(self) > 0, "here is anywhere, but there is no memory to find it in; leave it out")
        self._trail = Trail(model.motion.start(1), self._action(None))
        self._unplaced: list[tuple[Tensor, Tensor]] = []
        self._settled = self.memory.snapshot()
        self._open: OpenSteps | None = None
        self._fresh: list[Observed] = []  # steps not yet appended to `_open`
        self._since_closure = 0
        self._places: PlaceGraph | None = None  # of the whole walk, if it returns to equal views
        self._moved = 0  # number of entries when settled entries were last moved

    def __len__(self) -> int:
        """Number of views memorised."""
        return len(self.memory)

    @property
    def path(self) -> States:
        """The pose after each step, corrected by all later loop closures; a guess for steps made while lost."""
        return self._trail.states.clone()

    def _went(self, where: States, actions: Actions | None = None) -> None:
        """Append actions to the path; these are its latest states, and may replace earlier ones."""
        self.__dict__.pop("obstacles", None)  # cached for the path before
        self._trail.went(where, actions)

    @torch.no_grad()
    def step(self, frame: Frame, action: Action | None = None) -> Belief:
        """Memorise the frame that `action` led to; return the new pose estimate. None: no action, or first frame.

        A step that is refused or interrupted leaves the explorer as it was.
        """
        x, a = self._frame(frame)[None, None], self._action(action)[None, None]
        with self._whole():
            if self.lost:
                self._find_out(x, a)
            else:
                self._take_in(self.model.observe(x, a, self.memory, self.here, closure=0), a)
        if self.closure and self._since_closure >= self.closure:
            self.close_loops()
        return self.here

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Make a step whole or not at all."""
        memory, trail = self.memory.snapshot(), self._trail.mark(len(self._unplaced))
        before = self.here, self.lost, self._unplaced, self._fresh, self._since_closure
        try:
            yield
        except BaseException:  # also Ctrl-C
            self.here, self.lost, self._unplaced, self._fresh, self._since_closure = before
            self.memory = memory
            self._trail.restore(trail)
            self.__dict__.pop("obstacles", None)
            raise

    def _find_out(self, x: Tensor, a: Tensor) -> None:
        """Localise the last views together; once they are recognised, the walk on this map begins with them."""
        assert self.model.landmarks is not None
        require_clips(self.model, x, a, "step")  # before they are put together with those of earlier steps
        unplaced = [*self._unplaced, (x, a)][-self.model.landmarks.looks :]
        frames, actions = (torch.cat(parts, 1) for parts in zip(*unplaced, strict=True))
        seen = self.model.observe(frames, actions, self.memory, self.model.anywhere(1), closure=0)
        here = seen.walk[:, -1]
        if self.model.landmarks.is_placed(self.model.landmarks.as_variance(here)):
            self.lost, self._unplaced = False, []
            self._trail.guessed -= len(unplaced) - 1  # poses appended while lost, which are replaced now
            self._take_in(seen, a)
        else:
            self.here, self._unplaced = here, unplaced
            self._went(here.mean[:, None], a)
            self._trail.guessed += 1

    def _take_in(self, seen: Observed, actions: Actions) -> None:
        """Memorise what was observed after these actions."""
        self.memory = self.memory.write(seen.entries) if len(self) else _own(self.model, seen.entries)
        self.here = self._placed(seen.walk[:, -1])
        self._went(seen.walk.mean, actions)
        if self.closure:
            self._fresh = [*self._fresh, seen]
            self._since_closure += len(seen.entries)

    def _placed(self, here: Belief) -> Belief:
        """A pose estimate whose covariance is below that of an unknown start, however long the walk is."""
        landmarks = self.model.landmarks
        if landmarks is None or not landmarks.is_lost(variance := landmarks.as_variance(here)):
            return here
        less = variance.minimum(0.99 * landmarks.ignorance(1, variance))
        return Belief(here.mean, landmarks.as_covariance(less, here.mean))

    @torch.no_grad()
    def _correct(self, pose: Float[Tensor, "1 D"]) -> None:
        """Move the agent and the entry of its last step to another pose; loop closures would undo this."""
        assert not (self.closure or self.lost) and len(self)
        self.here = Belief(self.model.motion.settle(self.here.mean, pose))
        columns = self.memory.columns
        columns["place"] = torch.cat([columns["place"][:, :-1], self.model.motion.place(self.here.mean)[:, None]], 1)
        moved = Memory.of_columns(columns, self.memory.weights)
        self.memory = LongMemory.of(moved) if isinstance(self.memory, LongMemory) else moved
        self._went(self.here.mean[:, None])

    @torch.no_grad()
    def close_loops(self) -> None:
        """Correct the last poses by the places recognised since; called automatically after every `closure` steps."""
        steps = self._gathered()
        if steps is None:
            return
        assert isinstance(self.memory, LongMemory) and isinstance(self._settled, LongMemory)
        steps = steps.without(len(self._settled) - steps.first)  # an interrupted closure may have settled some
        tail, self._places = self.memory.since(steps.first), steps.mapped(self.model, self.memory, self._places)
        if self._places is not None and self._places.is_map:
            pose = self._places.poses.to(steps.state)[None]
            self._move_settled(self._places.first, pose[:, : -len(steps)])
            closed = steps.at(pose[:, -len(steps) :])
        else:
            closed, variance = steps.closed(self.model, self.memory)
            if variance is not None:
                tail = replace(tail, variance=variance)
                covariance = self.model.require_landmarks("close loops").as_covariance(variance, closed.state)
                self.here = self._placed(Belief(self.here.mean, covariance[:, -1]))
        self._went(closed.state)
        self.here = Belief(closed.state[:, -1], self.here.covariance)
        moved = replace(tail, place=Belief(self.model.motion.place(closed.state), tail.place.covariance)).columns
        old = max(0, len(closed) + self.closure - OPEN)
        if old:
            self._settled.write(Memory.of_columns({name: x[:, :old] for name, x in moved.items()}, tail.weights))
        rest = Memory.of_columns({name: x[:, old:] for name, x in moved.items()}, tail.weights)
        self.memory = self._settled.index_codes().snapshot().write(rest)
        self._open, self._since_closure = closed.without(old), 0

    def _move_settled(self, first: int, pose: Poses) -> None:
        """Move settled entries, from number `first` on, to these poses if their own differ much.

        This takes time proportional to the walk, so it is done only after the walk has grown by a sixteenth.
        """
        assert self.model.landmarks is not None
        begin = self._trail.states.shape[1] - len(self) + first
        where = self._trail.states[:, begin : begin + pose.shape[1]]
        far2 = self.model.motion.space.squared_lengths(pose - where[..., : pose.shape[-1]])[0]
        far = bool((far2 > (0.1 * self.model.landmarks.settings.tolerance) ** 2).any())
        if not far or 16 * len(self) < 17 * self._moved:
            return
        self._trail.correct(begin, pose)
        columns = self._settled.columns
        columns["place"] = torch.cat([columns["place"][:, :first], self.model.motion.place(where)], 1)
        self._settled = LongMemory.of(Memory.of_columns(columns, self._settled.weights))
        self._moved = len(self)

    def _gathered(self) -> OpenSteps | None:
        """The steps that can still be corrected."""
        if self._fresh:
            first = len(self) - sum(len(seen.entries) for seen in self._fresh)
            steps = OpenSteps.of(self.model, first, self._fresh)
            self._open, self._fresh = steps if self._open is None else self._open.then(steps), []
        return self._open

    @torch.no_grad()
    def imagine(
        self,
        plans: Tensor | Sequence[Sequence[Action] | np.ndarray | Tensor],
        generator: torch.Generator | None = None,
        bumps: bool = True,
    ) -> Dream:
        """Imagine what each plan, a sequence of actions, would show from here.

        Steps into known obstacles are not made. With `bumps=False` they are; then only walls that the motion learned
        stop the agent and, with `--model.bumps`, views at which steps are expected to fail.
        """
        if not isinstance(plans, Tensor) or (plans.dim() == 2 and not plans.is_floating_point()):
            lengths = {_length(plan) for plan in plans} if _length(plans) else {0}
            fits = len(lengths) == 1 and 0 not in lengths
            require(fits, f"plans is {shown(plans)}; give a list of plans of one length, as [[0, 1], [2, 2]]")
            plans = torch.stack([self._actions(plan) for plan in plans])
        memory, obstacles = self._memorised(), self.obstacles if bumps else None
        return self.model.imagine(memory, self.here, plans, generator, obstacles)

    @torch.no_grad()
    def localise(self, frame: Frame) -> PoseMixture:
        """Where a picture was seen, as a mixture of poses."""
        return self.model.localise(self._memorised(), self._frame(frame)[None, None])

    def plan(
        self,
        goal: Frame,
        settings: PlanConfig | None = None,
        before: Plan | None = None,
        generator: torch.Generator | None = None,
        choices: Sequence[Action] | np.ndarray | Tensor | None = None,
    ) -> Plan:
        """Plan actions that lead from here to a goal, a picture or a pose; known obstacles are avoided.

        `choices`: actions to choose from. None: all if actions were numbers, otherwise some of the past actions.
        """
        goal, memory, walked = self._goal(goal), self._memorised(), self.walked
        some = typical(walked.actions)
        if choices is not None:
            require(_length(choices) > 0, f"choices is {shown(choices)}; give actions to choose from, as [0, 1]")
            some = self._actions(choices)
        return self.model.plan(memory, self.here, goal, walked, settings, some, before, generator)

    @torch.no_grad()
    def find(self, goal: Frame) -> Goal:
        """Find the pose of a goal: a pose is taken as it is, a picture is looked up."""
        return find_goal(self.model, self._memorised().snapshot(), self._goal(goal))

    @property
    def walked(self) -> Walked:
        """The steps made since the pose has been known, except the first: state before, action and state after each."""
        return self._trail.walked

    @cached_property
    def obstacles(self) -> Obstacles | None:
        """The obstacles that the agent bumped into on its own walk, as known now; None if there are none."""
        with torch.inference_mode(False), torch.no_grad():
            return Obstacles.of(self.model.motion, self._memorised(), self.walked) if len(self) else None

    def _memorised(self) -> Memory:
        """The memory, which must not be empty."""
        require(len(self) > 0, "nothing is memorised yet; call step with what is seen first")
        return self.memory

    def _goal(self, goal: Frame) -> Tensor:
        """A pose, or a picture in the format of the model."""
        wanted = f"goal is {shown(goal)}; give a picture, or a pose of {self.model.motion.pose_size} numbers"
        pose = getattr(goal, "ndim", None) == 1 or (isinstance(goal, list | tuple) and not any(map(_length, goal)))
        require(pose or isinstance(goal, np.ndarray | Tensor), wanted)
        return self._numbers(goal, wanted) if pose else self._frame(goal)

    def fork(self) -> "Explorer":
        """An independent copy: what one of the two memorises from now on, the other does not."""
        other = Explorer(self.model, self.memory, self.here, self.closure)
        other._settled, other._open, other._since_closure = (
            self._settled.snapshot(), self._gathered(), self._since_closure,
        )  # fmt: skip
        other.lost, other._unplaced = self.lost, self._unplaced
        other._places, other._moved = self._places, self._moved
        other._trail = self._trail.copy()
        return other

    def part(self, first: int, last: int, here: Belief | None = None) -> "Explorer":
        """One that remembers only the views from number `first` to `last` - 1 and the steps to them; at `here`."""
        columns = {name: column[:, first:last] for name, column in self.memory.snapshot().columns.items()}
        other = Explorer(self.model, Memory.of_columns(columns, self.memory.weights), here or self.here, self.closure)
        steps = self._trail.states.shape[1] - len(self)  # below 0 if the first views are not of its own walk
        own = slice(max(0, steps + first), max(0, steps + last))
        other._trail.went(self._trail.states[:, own], self._trail.actions[:, own])
        return other

    def save(self, path: str | Path) -> None:
        """Save memory, pose estimate and path as one safetensors file; written whole or not at all."""
        unplaced = [torch.cat(parts, 1) for parts in zip(*self._unplaced, strict=True)]
        memory, steps = self.memory if len(self) else None, self._gathered()
        lost = (unplaced[0], unplaced[1]) if unplaced else None
        closing = self.closure, self._since_closure, self._moved
        saved = Saved(memory, self.here, self._trail, *closing, steps, self._places, lost)
        saved.write(path, self.model)

    @classmethod
    def load(cls, path: str | Path, model: WorldModel) -> "Explorer":
        """Load a saved explorer; `model` must have the weights with which it was saved."""
        saved = Saved.read(path, model)
        explorer = cls(model, saved.memory, saved.here, saved.closure)
        explorer._trail = saved.trail
        if saved.unplaced is not None:
            explorer.lost = True
            explorer._unplaced = [*zip(*(part.split(1, 1) for part in saved.unplaced), strict=True)]
        elif len(explorer) and saved.trail.states.shape[1]:  # an older file may hold a variance as large as if lost
            explorer.lost, explorer.here = False, explorer._placed(explorer.here)
        if saved.open is not None:
            assert saved.memory is not None
            settled = {name: column[:, : saved.open.first] for name, column in saved.memory.columns.items()}
            explorer._settled = LongMemory.of(Memory.of_columns(settled, saved.memory.weights))
            explorer._open, explorer._since_closure = saved.open, saved.since_closure
            explorer._places, explorer._moved = saved.places, saved.moved
        return explorer

    def _frame(self, frame: Frame) -> Float[Tensor, "channel height width"]:
        """A frame in the format of the model."""
        if isinstance(frame, np.ndarray):
            fits = frame.dtype == np.uint8 and frame.ndim == 3
            require(fits, f"frame is {shown(frame)}; give uint8 of shape (height, width, channel)")
            (tall, wide), (_, height, width) = frame.shape[:2], self.model.frame_shape
            scale = f"scale it by gtmsm.episodes.pictures.resized(frame, {height}, {width}), as gtmsm record does"
            fits = (tall, wide) == (height, width)
            require(fits, f"the frame has {tall}x{wide} pixels, and this model sees {height}x{width}; {scale}")
            return torch.from_numpy(frame).permute(2, 0, 1).to(self._like) / 255
        require(isinstance(frame, Tensor), f"frame is {shown(frame)}; give an array or a tensor")
        return frame.to(self._like)

    def _action(self, action: Action | None) -> Float[Tensor, " A"]:
        """An action as a vector: one-hot if it is a number."""
        size, like = self.model.action_size, self._like
        if action is None:
            return like.new_zeros(size)
        if isinstance(action, np.ndarray | Tensor) and action.ndim == 0:
            action = action.item()  # type: ignore[assignment]
        if is_whole(action):
            require(0 <= int(action) < size, f"action is {action}; give 0 to {size - 1}")  # type: ignore[arg-type]
            return torch.nn.functional.one_hot(torch.tensor(int(action)), size).to(like)  # type: ignore[arg-type]
        wanted = f"action is {shown(action)}; give a number from 0 to {size - 1}, or a vector of {size} numbers"
        require(_length(action) == size, wanted)
        return self._numbers(action, wanted)

    def _actions(self, actions: Sequence[Action] | np.ndarray | Tensor) -> Float[Tensor, "n A"]:
        """Actions as vectors."""
        return torch.stack([self._action(action) for action in actions])

    def _numbers(self, numbers: Any, wanted: str) -> Tensor:
        """A list of numbers as a tensor of the model's device and precision; `wanted`: what to say of anything else."""
        try:
            given = torch.as_tensor(numbers)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise InputError(wanted) from problem
        require(given.dim() == 1 and not given.is_complex(), wanted)
        return given.detach().to(self._like)

    @property
    def _like(self) -> Tensor:
        """A tensor of the model's device and precision."""
        return self.model.motion.start(1)


def _length(things: object) -> int:
    """Number of things in a list, an array or a tensor; 0 for anything else."""
    listed = isinstance(things, Sequence | np.ndarray | Tensor) and not isinstance(things, str)
    return len(things) if listed and getattr(things, "ndim", 1) else 0  # type: ignore[arg-type]


def _own(model: WorldModel, memory: Memory | None) -> Memory:
    """A copy of this memory that no other explorer writes to."""
    if memory is not None:
        require_memory(model, memory)
        require(
            memory.batch == 1, f"got {memory.batch} memories, and an explorer is 1 agent; give one, as memory[:1] is"
        )
    if isinstance(memory, LongMemory):
        return memory.snapshot()
    if model.settings.recall.distance == "kl":  # a long memory is searched by the means of places alone
        nothing, size = model.motion.start(1)[:, :0], model.place_size
        codes = nothing.new_zeros(1, 0, model.settings.vae.code_size)
        place = Belief(nothing.new_zeros(1, 0, size), nothing.new_zeros(1, 0, size, size))
        return memory.detached() if memory else Memory(place, Gaussian(codes, codes))
    return LongMemory() if memory is None else LongMemory.of(memory)


def _every(model: WorldModel, closure: int | None) -> int:
    """Number of steps between loop closures; 0 for never."""
    if model.landmarks is None or model.landmarks.settings.form != "bayes":
        require(not closure, f"closure is {closure}, but loops are closed by landmarks of form bayes; leave it out")
        return 0
    if closure is None:
        return model.landmarks.settings.closure
    require_whole("closure", closure, least=0, most=OPEN // 2)
    return closure
