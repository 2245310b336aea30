"""Worlds for one agent whose state is a value, so that a walk can continue from any earlier state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.worlds.doom import DoomEnv
from gtmsm.worlds.floor_map import OUTSIDE
from gtmsm.worlds.image_map import hatched
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.physics import IDLE, Body
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

State = TypeVar("State")
Frame: TypeAlias = UInt8[np.ndarray, "height width 3"]
Picture: TypeAlias = UInt8[np.ndarray, "height width channels"]
"""With three channels, or four if parts are transparent."""
Pose: TypeAlias = Float[np.ndarray, "D"]

MAP = 512
"""Side of the picture of a map in pixels, or a little less."""
AHEAD = 64
"""Number of steps that a walker chooses at once, unless it can choose one at a time."""


class Walkable(ABC, Generic[State]):
    """A place with one agent, whose state is an argument of the methods."""

    unit = "wall heights"
    """Unit of positions."""
    rewinds = True
    """Whether it can continue from any state, or only from the latest one."""
    view = 0.0
    """Side of a frame as a fraction of the map's side, if frames are parts of the map; otherwise 0."""
    action_names: tuple[str, ...]

    @abstractmethod
    def begin(self) -> State:
        """The first state."""

    @abstractmethod
    def step(self, state: State, action: int) -> State:
        """The state after an action; -1: no key is pressed."""

    def enter(self, state: State) -> None:
        """Set the world to this state, from which a walker then chooses."""

    @abstractmethod
    def look(self, state: State) -> Frame:
        """The frame that is seen."""

    @abstractmethod
    def pose(self, state: State) -> Pose:
        """Row and column, or x, y and heading."""

    @abstractmethod
    def at(self, pose: Pose) -> State | None:
        """The state of an agent at rest at this pose; None if no agent can be put there."""

    @abstractmethod
    def explore(self, state: State, generator: torch.Generator) -> Iterator[int]:
        """Actions of an agent that explores, from this state on."""

    @abstractmethod
    def picture(self) -> Picture:
        """The map."""

    @abstractmethod
    def on_map(self, position: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Positions as fractions of the map's side, to the right and down."""

    @abstractmethod
    def from_map(self, shares: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """The position at a point of the map."""

    def close(self) -> None:
        """Release resources."""


class OnImage(Walkable[Tensor]):
    """An image walk; a state is a cell."""

    unit = "cells"

    def __init__(self, world: ImageWalk, walker: Walker, generator: torch.Generator) -> None:
        world.reset(1, generator)
        self.world, self._walker, self.action_names = world, walker, world.action_names
        self.view = world.config.crop / world.config.size

    def begin(self) -> Tensor:
        """The first cell, mostly the centre."""
        return self.world.cell

    def enter(self, state: Tensor) -> None:
        """Put the agent into this cell."""
        self.world.cell = state

    def step(self, state: Tensor, action: int) -> Tensor:
        """Move by one cell, unless something is in the way."""
        self.world.cell = state
        self.world.step(torch.tensor([self.world.rest if action == IDLE else action]))
        return self.world.cell

    def look(self, state: Tensor) -> Frame:
        """The crop at the agent's cell."""
        self.world.cell = state
        return as_frame(self.world.look()[0])

    def pose(self, state: Tensor) -> Pose:
        """Row and column."""
        return state[0].double().numpy()

    def at(self, pose: Pose) -> Tensor | None:
        """The nearest cell, unless it is solid."""
        cell = torch.from_numpy(pose).round().long().clamp(0, self.world.config.cells - 1)
        return None if bool(self.world.solid[0, cell[0], cell[1]]) else cell[None]

    def explore(self, state: Tensor, generator: torch.Generator) -> Iterator[int]:
        """Random actions, each held for a while."""
        return _in_portions(self._walker, self.world, generator)

    def picture(self) -> Picture:
        """The image, solid cells hatched."""
        zoom = max(1, MAP // self.world.config.size)
        large = self.world.picture()[0].repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
        return as_frame(hatched(large, self.world.config, zoom, self.world.solid[0]))

    def on_map(self, position: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """The centre of the crop that is seen from a cell."""
        settings = self.world.config
        middle = settings.margin + settings.stride * position + settings.crop / 2
        return middle[:, ::-1] / settings.size

    def from_map(self, shares: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """The cell at a point of the map, as fractional numbers."""
        settings = self.world.config
        cell = (shares[::-1] * settings.size - settings.crop / 2 - settings.margin) / settings.stride
        return cell.clip(0, settings.cells - 1)


class InRooms(Walkable[Body]):
    """A room, some rooms or a maze; a state is a body with its momentum."""

    def __init__(self, world: Rooms, walker: Walker, generator: torch.Generator) -> None:
        world.reset(1, generator)
        self.world, self._walker, self.action_names = world, walker, world.action_names
        self._map = world.map(int(world.where[0]), MAP)

    def begin(self) -> Body:
        """At rest on a free spot."""
        return self.world.body

    def enter(self, state: Body) -> None:
        """Set the body of the agent."""
        self.world.body = state

    def step(self, state: Body, action: int) -> Body:
        """Apply an action for four ticks."""
        self.world.body = state
        self.world.step(torch.tensor([action]))
        return self.world.body

    def look(self, state: Body) -> Frame:
        """The view ahead."""
        return self.world.see(self.world.where, state.pose)[0].permute(1, 2, 0).contiguous().numpy()

    def pose(self, state: Body) -> Pose:
        """x, y and heading."""
        return state.pose[0].double().numpy()

    def at(self, pose: Pose) -> Body | None:
        """A body at rest, unless something solid is there."""
        body = Body.at_rest(torch.from_numpy(pose)[None].float())
        free = self.world.obstacles.clearance(body.position[:, None])[0, 0] > 0
        return body if bool(free) else None

    def explore(self, state: Body, generator: torch.Generator) -> Iterator[int]:
        """Walk from object to object, or turn on the spot."""
        self.world.body = state
        if isinstance(self._walker, ScavengerWalker):
            return (int(action) for action in self._walker.steps(self.world, generator))
        return _in_portions(self._walker, self.world, generator)

    def picture(self) -> Picture:
        """The place from above; what is outside is transparent."""
        pixels = self._map.pixels()
        inside = (pixels != np.array(OUTSIDE)).any(-1, keepdims=True)
        return np.concatenate([pixels, np.uint8(255) * inside], -1)

    def on_map(self, position: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Positions as fractions of the map's side; north is up."""
        right, up = ((position - self._map.corner) * self._map.scale / self._map.image.width).T
        return np.stack([right, 1 - up], 1)

    def from_map(self, shares: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """x and y."""
        up = np.array([shares[0], 1 - shares[1]])
        return up * self._map.image.width / self._map.scale + self._map.corner


class InDoom(Walkable[int]):
    """A maze in ViZDoom; a state is the number of a step, since its engine cannot go back."""

    rewinds = False

    def __init__(self, seed: int) -> None:
        self.env = DoomEnv(split="test")
        self.action_names = self.env.action_names
        self._frame, info = self.env.reset(seed=seed)
        self._pose, self._steps = info["pose"], 0
        self._rng = np.random.default_rng(seed)

    def begin(self) -> int:
        """The first step."""
        return 0

    def step(self, state: int, action: int) -> int:
        """Apply an action for four tics of the engine, which has no action for pressing no key."""
        self._require_latest(state)
        if action != IDLE:
            self._frame, _, _, _, info = self.env.step(action)
            self._pose = info["pose"]
        self._steps += 1
        return self._steps

    def look(self, state: int) -> Frame:
        """The view ahead."""
        self._require_latest(state)
        return self._frame

    def pose(self, state: int) -> Pose:
        """x, y and heading."""
        self._require_latest(state)
        return self._pose.astype(np.float64)

    def at(self, pose: Pose) -> int | None:
        """None: the engine's agent can only walk."""
        return None

    def explore(self, state: int, generator: torch.Generator) -> Iterator[int]:
        """Walk between a few goals."""
        while True:
            yield int(self.env.explore(self._rng))

    def picture(self) -> Picture:
        """Free cells and walls."""
        low, side = self._extent
        sheet = np.full((side, side, 3), (38, 38, 46), np.uint8)
        for i, j in self.env.maze.free:
            sheet[side - 1 - (j - low[1]), i - low[0]] = (214, 208, 196)
        for i, j in self.env.maze.objects:
            sheet[side - 1 - (j - low[1]), i - low[0]] = (150, 170, 140)
        zoom = max(1, MAP // side)
        return sheet.repeat(zoom, 0).repeat(zoom, 1)

    def on_map(self, position: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Positions as fractions of the map's side; north is up."""
        low, side = self._extent
        right, up = ((position - low) / side).T
        return np.stack([right, 1 - up], 1)

    def from_map(self, shares: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
        """x and y, in cells."""
        low, side = self._extent
        return np.array([shares[0], 1 - shares[1]]) * side + low

    @property
    def _extent(self) -> tuple[np.ndarray, int]:
        """The first cell of a square around the maze, walls included, and its side."""
        cells = np.array(list(self.env.maze.free))
        return cells.min(0) - 1, int(np.ptp(cells, axis=0).max()) + 3

    def _require_latest(self, state: int) -> None:
        require(state == self._steps, "Doom's engine cannot go back; walk on from the last step, or begin anew")

    def close(self) -> None:
        """Close the engine."""
        self.env.close()


def as_frame(picture: Float[Tensor, "3 height width"]) -> Frame:
    """A picture as bytes, channels last."""
    return (255 * picture).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()


def _in_portions(walker: Walker, world: World, generator: torch.Generator) -> Iterator[int]:
    """Actions of a walker that does not depend on its pose, `AHEAD` steps at a time."""
    while True:
        yield from walker(world, AHEAD, generator)[0].tolist()


AnyWalkable: TypeAlias = Walkable[Any]
