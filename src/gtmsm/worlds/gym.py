"""The worlds as Gymnasium environments.

>>> import gymnasium
>>> env = gymnasium.make("gtmsm.worlds.gym:gtmsm/ImageWalk-v0", images="builtin")
>>> env = gymnasium.make("gtmsm.worlds.gym:gtmsm/Rooms-v0", plan="rooms", pixels=64)
"""

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gtmsm.config import require, require_choice
from gtmsm.worlds.floor_map import FloorMap
from gtmsm.worlds.floorplan import Plan
from gtmsm.worlds.image_map import draw_windows
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig, Start
from gtmsm.worlds.images import load_images
from gtmsm.worlds.physics import IDLE
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms, seeds_of
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import SlipConfig, Slipping
from gtmsm.worlds.textures import Source

SPLITS = ("train", "validation", "test")
PLANNED = 100
"""Steps that an explorer of rooms plans at once."""
PICTURE = 512
"""Side of a rendered picture in screen pixels, or a little less: image pixels stay square and sharp."""


Picture: TypeAlias = UInt8[np.ndarray, "side side 3"]
Info: TypeAlias = dict[str, Any]


class _WorldEnv(gymnasium.Env[np.ndarray, int | np.int64]):
    """One agent of a world, whose actions may slip; the observation is what it sees, and nothing is rewarded.

    `info` has what recorders and planners of others look for: `pose` (also as `state`), `place`, and a `goal` to walk
    to, drawn for each episode: what is seen from there, and its pose as `goal_state`.
    """

    _goal: Info

    def _inhabit(self, world: ImageWalk | Rooms, slips: SlipConfig, render_mode: str | None, renders: str) -> None:
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        require_choice("renders", renders, ("map", "view"))
        self._slipping, self.render_mode, self._renders = Slipping(world, slips), render_mode, renders
        self.action_names = world.action_names
        self.action_space = gymnasium.spaces.Discrete(len(world.action_names))
        self.observation_space = gymnasium.spaces.Box(0, 255, (*world.frame_shape[1:], 3), np.uint8)

    def step(self, action: int | np.int64) -> tuple[Picture, float, bool, bool, Info]:
        """One step of the world; an episode never ends by itself, Gymnasium cuts it after 512 steps."""
        names = self._slipping.action_names
        is_known = gymnasium.spaces.Discrete(len(names)).contains(action)
        require(is_known, f"action is {action!r}; expected 0 to {len(names) - 1}: {', '.join(names)}")
        self._slipping.step(torch.tensor([int(action)]))
        return self._observation(), 0.0, False, False, self._info()

    def _observation(self) -> Picture:
        """What the agent sees, height first and channels last."""
        return _picture(self._slipping.look()[0])

    def render(self) -> Picture | None:
        """The place from above with the agent in it, or what the agent sees."""
        if self.render_mode is None:
            return None
        return self._from_above() if self._renders == "map" else self._observation()

    def _info(self) -> Info:
        """Where the agent really is, and where it might go."""
        pose = self._slipping.pose[0].numpy().copy()
        return {"pose": pose, "state": pose.copy()} | {name: value.copy() for name, value in self._goal.items()}

    @abstractmethod
    def _from_above(self) -> Picture:
        """The whole place with the agent in it."""


class ImageWalkEnv(_WorldEnv):
    """Walk on an image; the observation is the crop under the agent, and nothing is rewarded."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(
        self,
        images: str | Path = "builtin",
        size: int = 32,
        crop: int = 8,
        stride: int = 3,
        start: Start = "centre",
        split: str = "train",
        render_mode: str | None = None,
        obstacles: int = 0,
        obstacle_side: int = 3,
        slip: float = 0.0,
        renders: str = "map",
    ) -> None:
        """Walk on the training, validation or test images of a source that `load_images` reads.

        Each episode may have solid rectangles in the way, and an action goes wrong with probability `slip` (App. D).
        """
        require_choice("split", split, SPLITS)
        self.config = ImageWalkConfig(
            size=size, crop=crop, stride=stride, start=start, obstacles=obstacles, obstacle_side=obstacle_side
        )
        slips = SlipConfig(probability=slip)
        self.images = getattr(load_images(images, size), split)
        self.world = ImageWalk(self.images, self.config)
        self._inhabit(self.world, slips, render_mode, renders)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Picture, Info]:
        """Draw an image, a cell where the start is random, and obstacles."""
        super().reset(seed=seed)
        cells = self.config.cells
        image = self.np_random.integers(len(self.images), size=1)
        cell = np.full((1, 2), cells // 2)
        if self.config.start == "random":
            cell = self.np_random.integers(cells, size=(1, 2))
        # A generator of its own for obstacles and slips: the same seed gives the same images and cells without them.
        other = self.np_random.spawn(1)[0]
        chance = torch.Generator().manual_seed(int(other.integers(1 << 62)))
        start = torch.from_numpy(cell)
        solid = self.world.draw_obstacles(start, chance)
        free = np.argwhere(~self.world.solid[0].numpy() if solid is None else ~solid[0].numpy())
        goal = torch.from_numpy(other.choice(free)[None])
        self.world.place(torch.from_numpy(image), goal, solid)
        self._goal = {"goal": self._observation(), "goal_state": self.world.pose[0].numpy().copy()}
        self.world.place(torch.from_numpy(image), start, solid)
        self._slipping.slip_by(chance)
        return self._observation(), self._info()

    def _from_above(self) -> Picture:
        """The whole image with the agent's window as a yellow square (fig. 2a), and solid cells hatched."""
        zoom = max(1, PICTURE // self.config.size)
        framed = draw_windows(self.world.picture()[0], self.world.cell, self.config, zoom, self.world.solid[0])[0]
        return _picture(framed)

    def _info(self) -> Info:
        """Where the agent really is, and whether an obstacle was in the way of its last action."""
        image, blocked = int(self.world.image[0]), bool(self.world.blocked.any())
        cell = self.world.cell[0].numpy().copy()
        return super()._info() | {"cell": cell, "image": image, "place": image, "blocked": blocked}


class RoomsEnv(_WorldEnv):
    """Walk through rooms or a maze; the observation is what lies ahead, and nothing is rewarded."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self,
        plan: Plan = "room",
        textures: Source = "auto",
        objects: int = 4,
        pixels: int = 32,
        places: int = 64,
        world_seed: int = 0,
        split: str = "train",
        render_mode: str | None = None,
        slip: float = 0.0,
        renders: str = "map",
    ) -> None:
        """Walk in `places` places, different ones in each split; an action goes wrong with probability `slip`."""
        require_choice("split", split, SPLITS)
        slips = SlipConfig(probability=slip)
        self.config = RoomsConfig(plan=plan, textures=textures, objects=objects, pixels=pixels)
        seed = getattr(seeds_of(world_seed), split)
        self.world = draw_rooms(self.config, places, seed)
        self._inhabit(self.world, slips, render_mode, renders)
        self.path: list[Float[Tensor, "3"]] = []
        self._plan: list[int] = []
        self._map: FloorMap | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Picture, Info]:
        """Draw a place, a spot and a heading."""
        super().reset(seed=seed)
        self._slipping.reset(1, torch.Generator().manual_seed(int(self.np_random.integers(1 << 62))))
        self.path, self._map, self._plan = [self.world.pose[0]], None, []
        other, place = self.np_random.spawn(1)[0], self.world.where
        spots = self.world.plans.spots[place[0]]
        goal = torch.cat([spots[other.integers(len(spots))], torch.tensor([2 * math.pi * other.random()])]).float()
        self._goal = {"goal": _picture(self.world.see(place, goal[None])[0] / 255), "goal_state": goal.numpy()}
        return self._observation(), self._info()

    def step(self, action: int | np.int64) -> tuple[Picture, float, bool, bool, Info]:
        """Four ticks of an action, remembered for `render`."""
        outcome = super().step(action)
        self.path.append(self.world.pose[0])
        return outcome

    def explore(self, rng: np.random.Generator) -> int:
        """An action of an agent that knows the place: it walks from object to object, around obstacles."""
        if not self._plan:
            chance = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
            ahead: list[int] = ScavengerWalker()(self.world, PLANNED, chance)[0].tolist()
            self._plan = ahead[: ahead.index(IDLE)] if IDLE in ahead else ahead  # doing nothing is no action here
            self._plan = self._plan or [int(rng.integers(len(self.action_names)))]
        return self._plan.pop(0)

    def _from_above(self) -> Picture:
        """The place from above, the path of this episode and the agent."""
        if self._map is None:
            self._map = self.world.map(int(self.world.where[0]), PICTURE)
        return self._map.path(torch.stack(self.path)).agent(self.path[-1]).pixels()

    def _info(self) -> Info:
        """Where the agent really is."""
        return super()._info() | {"place": int(self.world.where[0])}


def _picture(frame: Float[Tensor, "3 height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """A frame from 0 to 1 as bytes, height first and channels last."""
    return (frame * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
