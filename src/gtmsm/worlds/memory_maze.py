"""Memory Maze (Pasukonis et al. 2022), a maze on MuJoCo in which turning has momentum, too: `gtmsm/MemoryMaze-v0`.

It is slow, some 180 steps a second of a core and two seconds for a new maze: right for evaluation.

>>> env = gymnasium.make("gtmsm/MemoryMaze-v0", size=11)
"""

import importlib
import importlib.util
import logging
import math
import os
import sys
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.doom_maze import Maze
from gtmsm.worlds.maze_explorer import Explorer
from gtmsm.worlds.physics import ACTIONS

SIZES = (9, 11, 13, 15)
NAMES = ("nothing", "forward", "turn left", "turn right", "forward and turn left", "forward and turn right")
INSTALL = 'pip install memory-maze "mujoco<4"; apt install libegl1 libgl1 libgl1-mesa-dri'
FREQUENCY = 8.0
"""Steps a second: a full turn takes about 39 of them, nearly as in our own rooms. The published task has 4 a second."""


class MemoryMazeEnv(gymnasium.Env[np.ndarray, Any]):
    """Walk through a maze with coloured targets.

    `info["pose"]` is x, y in cells and the heading in radians, counter-clockwise; `info["place"]` is the maze.
    Nothing is rewarded unless `rewards` asks for it: then touching the target whose colour is asked for is worth 1, and
    another colour is asked for; `info["asked"]` is that colour, RGB in [0, 1]. The published `frequency` is 4.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FREQUENCY}
    action_names = NAMES

    def __init__(
        self,
        size: int = 9,
        pixels: int = 32,
        render_mode: str | None = None,
        frequency: int | float = FREQUENCY,
        rewards: bool = False,
    ) -> None:
        """Walk in mazes of `size` by `size` cells; the maze of an episode is that of its seed."""
        require(size in SIZES, f"size is {size}; expected one of {', '.join(map(str, SIZES))}")
        require_whole("pixels", pixels, 8, 256)
        require(1 <= frequency <= 20, f"frequency is {frequency}; give 1 to 20 steps a second")
        self._new = getattr(_tasks(), f"memory_maze_{size}x{size}")
        self.pixels, self.render_mode, self.frequency, self.rewards = pixels, render_mode, frequency, rewards
        self._env: Any = None
        self.action_space = gymnasium.spaces.Discrete(len(NAMES))
        self.observation_space = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new maze."""
        super().reset(seed=seed)
        self.close()
        self.place = int(self.np_random.integers(2**31)) if seed is None else seed
        self._env = self._new(
            seed=self.place, camera_resolution=self.pixels, control_freq=self.frequency, target_color_in_image=False,
            global_observables=True,
        )  # fmt: skip
        for target in self._env.task._targets:
            # Whether one is touched is looked up 150 times a step, contact by contact: three quarters of its time.
            # Where nothing is rewarded a touched target looks as before.
            target._update_activation = partial(_touched, target) if self.rewards else lambda physics: None
        seen = self._see(self._env.reset())
        rows = self._seen["maze_layout"]
        free = frozenset((i, j) for j, row in enumerate(rows) for i, is_free in enumerate(row) if is_free)
        self._explorer = Explorer(Maze(free, tuple(sorted(free))))
        return seen

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the engine's clock."""
        known = f"action is {action!r}; expected 0 to {len(NAMES) - 1}: {', '.join(NAMES)}"
        require(bool(self.action_space.contains(action)), known)
        require(self._env is not None, "call reset first")
        now = self._env.step(int(action))
        frame, info = self._see(now)
        return frame, float(now.reward or 0.0), False, bool(now.last()), info

    def explore(self, rng: np.random.Generator) -> int:
        """An action of an agent that knows the maze: it walks between a few goals and looks around there."""
        name = ACTIONS[self._explorer.action(self._pose(), rng)]
        return NAMES.index(name) if name in NAMES else 0

    def render(self) -> np.ndarray | None:
        """What the agent sees."""
        return None if self.render_mode is None else self._seen["image"]

    def close(self) -> None:
        """End the engine."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _see(self, now: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._seen: dict[str, np.ndarray] = now.observation
        return self._seen["image"], {"pose": self._pose(), "place": self.place, "asked": self._seen["target_color"]}

    def _pose(self) -> np.ndarray:
        (x, y), (cos, sin) = self._seen["agent_pos"], self._seen["agent_dir"]
        return np.array([x, y, math.atan2(sin, cos)], np.float32)


def _touched(target: Any, physics: Any) -> None:
    """What the engine does where a target is touched, which vanishes then, but for all contacts at once."""
    if not target._activated and (physics.data.ptr.contact.geom == target._geom_id).any():
        target._activated = True
        physics.bind(target._material).rgba[-1] = 0


def _tasks() -> Any:
    """The package's mazes; its own start imports `gym`, which nobody has any more, so it is left out."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    with suppress(ImportError):  # after Mesa's LLVM, Triton's cannot be loaded any more: the process would crash
        importlib.import_module("triton")
    logging.getLogger("absl").setLevel(logging.ERROR)  # else a line for every maze: its ball has no free joint
    found = importlib.util.find_spec("memory_maze")
    try:
        if found is not None and "memory_maze" not in sys.modules:
            package = sys.modules["memory_maze"] = ModuleType("memory_maze")
            package.__path__ = list(found.submodule_search_locations or ())
            package.__spec__ = found  # else it is not found a second time
        return importlib.import_module("memory_maze.tasks")
    except Exception as problem:  # MuJoCo raises whatever its GL library does
        raise InputError(f"gtmsm/MemoryMaze-v0 cannot be made ({problem}); run: {INSTALL}") from None
