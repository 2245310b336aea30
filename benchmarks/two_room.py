"""stable-worldmodel's TwoRoom as an environment to record, and as a task: `known_tasks.py two-room`.

    cd benchmarks; gtmsm record two_room:TwoRoom-v0 --env-kwargs '{"crop": 128}' --out cropped

Its own engine, rooms and test of success. Two things are ours: eight directions in place of any, and the view. The full
view is all of its picture; the cropped view is the part around the agent, so that the rest must be remembered.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import torch

from gtmsm.episodes.pictures import resized

NAMES = ("right", "up and right", "up", "up and left", "left", "down and left", "down", "down and right")
MOVES = np.array([(1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1)], np.float32)
SIDE, STEP = 224, 5.0
"""Of the engine's picture and of a step, in pixels."""


def engine():
    """TwoRoom alone: all of stable-worldmodel asks for packages that nothing here needs."""
    if (found := importlib.util.find_spec("stable_worldmodel")) is None:
        raise SystemExit("TwoRoom needs stable-worldmodel; run: pip install --no-deps stable-worldmodel loguru")
    for name in ("stable_worldmodel", "stable_worldmodel.envs", "stable_worldmodel.envs.two_room"):
        if name not in sys.modules:  # packages whose own start is left out
            package = sys.modules[name] = ModuleType(name)
            folder = Path(found.origin).parent.joinpath(*name.split(".")[1:])
            package.__path__, package.__spec__ = [str(folder)], found
    sys.modules["stable_worldmodel"].utils = importlib.import_module("stable_worldmodel.utils")
    from stable_worldmodel.envs.two_room.env import TwoRoomEnv

    return TwoRoomEnv()


class TwoRoom(gymnasium.Env):
    """`info["pose"]` is where the agent is, in pixels; an episode goes on when the target is reached."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_names = NAMES

    def __init__(self, crop=0, pixels=32, render_mode=None):
        self.rooms, self.crop, self.pixels, self.render_mode = engine(), crop, pixels, render_mode
        self.action_space = gymnasium.spaces.Discrete(len(NAMES))
        self.observation_space = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rooms.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed, options=options)
        # It may put an agent closer to a wall than one may walk.
        self.rooms.agent_position = self.rooms._apply_collisions(self.rooms.agent_position, self.rooms.agent_position)
        self._way, self.place = [], seed
        return self._see()

    def step(self, action):
        _, _, reached, _, _ = self.rooms.step(MOVES[int(action)])
        frame, info = self._see()
        return frame, float(reached), False, False, info | {"reached": reached}

    def view(self, position, crop):
        """What an agent sees there."""
        return self.views(position, (crop,))[0]

    def views(self, position, crops):
        """The same, of several crops; 0: all of the picture."""
        whole = self.rooms._render_frame(agent_pos=torch.as_tensor(position)).permute(1, 2, 0).numpy()
        around = np.zeros((2 * SIDE, 2 * SIDE, 3), np.uint8)  # black, beyond the border
        around[SIDE // 2 : -SIDE // 2, SIDE // 2 : -SIDE // 2] = whole
        pictures = []
        for crop in crops:
            x, y = np.round(np.asarray(position)).astype(int) + SIDE // 2 - crop // 2
            pictures.append(resized(around[y : y + crop, x : x + crop] if crop else whole, self.pixels))
        return pictures

    def explore(self, rng):
        """To one random point after the other, through the door where it lies in the other room; it knows the rooms."""
        here = self.rooms.agent_position.numpy()
        while not self._way or np.abs(self._way[0] - here).max() <= STEP / 2:
            self._way = self._way[1:]
            if not self._way:
                self._way = self.way_to(np.array([rng.uniform(25, 95) + 104 * rng.integers(2), rng.uniform(25, 199)]))
        away = self._way[0] - here
        wanted = np.where(np.abs(away) > STEP / 2, np.sign(away), 0)
        return int(np.flatnonzero((wanted == MOVES).all(1))[0])

    def way_to(self, point):
        """By way of the door where it lies in the other room."""
        door = np.array([SIDE / 2, float(self.rooms.door_positions[0])])
        sides = np.sign(np.array([self.rooms.agent_position.numpy(), point])[:, 0] - door[0])
        through = [door + (side * 25, 0) for side in sides] if sides[0] != sides[1] else []
        return [*through, point]

    def _see(self):
        position = self.rooms.agent_position.numpy()
        frame = self.view(position, self.crop)
        return frame, {"pose": position.astype(np.float32), "place": self.place}

    def render(self):
        return None if self.render_mode is None else self.view(self.rooms.agent_position.numpy(), 0)


gymnasium.register("TwoRoom-v0", TwoRoom, max_episode_steps=10_000)
