"""DeepMind Lab's mazes and textures in ViZDoom, a real engine with its own momentum: `gtmsm/Doom-v0`.

>>> env = gymnasium.make("gtmsm/Doom-v0", split="test")
>>> env.close()
>>> env = gymnasium.make("gtmsm/Doom-v0", continuous=True)  # an action is how much to turn and to drive
>>> env.close()
"""

import importlib
import math
import os
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from gtmsm.config import require, require_choice, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.doom_maze import MAP, UNIT, MapFile, Maze, draw_maze
from gtmsm.worlds.lab import import_labmaze
from gtmsm.worlds.maze_explorer import Explorer
from gtmsm.worlds.physics import ACTIONS, KEYS

TICS = 4
"""Of the engine, in a step."""
TURN_STEPS = 41
"""Steps of a full turn, as in our own rooms."""
PUSH = 25
"""What the engine calls walking: a quarter of a cell in a step, once it has its speed."""
START = 14
"""Tics before the first action; the engine loses actions at the very beginning."""
HIDDEN = ("hud", "crosshair", "weapon", "decals", "particles", "effects_sprites", "messages", "corpses")
SPLITS = ("train", "test", "validation")
"""In this order: the number of a part is in the seed of its mazes."""
WIDTH, HEIGHT = 256, 192
"""Pixels of the engine: 8x6 of them are averaged to one of 32x32."""

Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
Info: TypeAlias = dict[str, Any]


class DoomEnv(gymnasium.Env[np.ndarray, Any]):
    """Walk through a maze with rooms, objects and momentum; nothing is rewarded, and an episode never ends by itself.

    `info["pose"]` (also `state`) is x, y in cells and the heading in radians, counter-clockwise; `place` is the maze;
    `goal` is what is seen from somewhere else in it, which planners of others look for, and `goal_state` its pose. The
    engine rounds: 41 turns are 359.5 degrees, and it drives in steps of a twenty-fifth.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}

    def __init__(
        self,
        cells: int = 11,
        rooms: int = 4,
        pixels: int = 32,
        places: int = 0,
        world_seed: int = 0,
        split: str = "train",
        continuous: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Walk in mazes of `cells` by `cells` cells, different ones in each split.

        There are `places` of them; 0: the maze of an episode is that of its seed. With `continuous` an action is how
        much to turn to the left and how much to drive ahead, from -1 to 1 each.
        """
        require_whole("cells", cells, 7, 63)
        require(cells % 2 == 1, f"cells is {cells}; give an odd number, as the mazes need")
        for name, value, least, most in (
            ("rooms", rooms, 1, 30),
            ("pixels", pixels, 1, HEIGHT),
            ("places", places, 0, 2**31),
        ):
            require_whole(name, value, least, most)
        require_choice("split", split, SPLITS)
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        _vizdoom(), import_labmaze("gtmsm/Doom-v0")  # before anything is written
        self.render_mode, self.pixels, self.places, self.continuous = render_mode, pixels, places, continuous
        self._size, self._world = (cells, rooms), (world_seed, SPLITS.index(split))
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(len(ACTIONS))
        if continuous:
            self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_names = ("turn", "drive") if continuous else ACTIONS
        self.observation_space = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        with tempfile.TemporaryDirectory(prefix="gtmsm-doom-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "maps.wad"
            self._file = MapFile(path, cells)
            self._file.write(self._draw(0).with_agent(self._draw(0).in_rooms[0], 0))
            self._game = _start(path)  # which keeps the file open: nothing is left, however this ends
        self.place = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Picture, Info]:
        """Draw a maze; the agent stands in one of its rooms."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.places or 2**31))
        self.place = drawn if self.places or seed is None else seed
        self.maze = maze = self._draw(self.place)
        self._enter(maze)
        self._goal: Info = {"goal": self._observation(), "goal_state": self._pose()}
        self._enter(maze)
        self._explorer = Explorer(maze)
        return self._observation(), self._info()

    def _enter(self, maze: Maze) -> None:
        """Put the agent somewhere into one of the rooms."""
        cell = maze.in_rooms[int(self.np_random.integers(len(maze.in_rooms)))]
        self._file.write(maze.with_agent(cell, int(self.np_random.integers(360))))
        self._game.set_doom_map(MAP)
        self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.new_episode()

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, Info]:
        """Four tics of an action; momentum is the engine's own."""
        if not self.action_space.contains(action):
            expected = "two float32 from -1 to 1" if self.continuous else f"0 to {len(ACTIONS) - 1}"
            raise InputError(f"action is {action!r}; expected {expected}: {', '.join(self.action_names)}")
        if self.continuous:
            turned, ahead, left = float(action[0]), float(action[1]), 0.0
        else:
            ahead, left, turned = KEYS[ACTIONS[int(action)]]
        # Each tic, with pushes in whole numbers; its turns and strafes are clockwise and to the right.
        self._game.make_action([round(PUSH * ahead), -PUSH * left, -360 / TURN_STEPS / TICS * turned], TICS)
        return self._observation(), 0.0, False, False, self._info()

    def explore(self, rng: np.random.Generator) -> Any:
        """An action of an agent that knows the maze: it walks between a few goals and looks around there."""
        choose = self._explorer.drive if self.continuous else self._explorer.action
        return choose(self._pose(), rng)

    def render(self) -> Picture | None:
        """What the agent sees, larger."""
        return None if self.render_mode is None else self._screen()

    def close(self) -> None:
        """End the engine."""
        self._game.close()
        self._file.close()

    def _draw(self, place: int) -> Maze:
        return draw_maze(*self._size, np.random.default_rng([*self._world, place]))

    def _screen(self) -> Picture:
        state = self._game.get_state()
        if state is None:
            raise RuntimeError("the engine shows nothing; was the environment reset?")
        return state.screen_buffer

    def _observation(self) -> Picture:
        screen, side = Image.fromarray(self._screen()), self.pixels
        if WIDTH % side == 0 and HEIGHT % side == 0:
            return np.array(screen.reduce((WIDTH // side, HEIGHT // side)))
        return np.array(screen.resize((side, side), Image.Resampling.BOX))

    def _pose(self) -> Float32[np.ndarray, "3"]:
        names = _vizdoom().GameVariable
        x, y, angle = map(self._game.get_game_variable, (names.POSITION_X, names.POSITION_Y, names.ANGLE))
        return np.array([x / UNIT, y / UNIT, math.radians(angle)], np.float32)

    def _info(self) -> Info:
        pose = self._pose()
        goal = {name: value.copy() for name, value in self._goal.items()}
        return {"pose": pose, "state": pose.copy(), "place": self.place} | goal


def _vizdoom() -> Any:
    try:
        return importlib.import_module("vizdoom")
    except ImportError as problem:
        raise InputError(f"gtmsm/Doom-v0 needs ViZDoom ({problem}); run: pip install vizdoom") from None


def _start(maps: Path) -> Any:
    """The engine with these maps, without a window and with nothing on its picture but the place."""
    doom = _vizdoom()
    game = doom.DoomGame()
    game.set_doom_scenario_path(str(maps))
    game.set_doom_map(MAP)
    set_view_and_keys(game)
    game.set_episode_timeout(0)
    game.set_episode_start_time(START)
    game.set_doom_skill(1)
    game.init()
    return game


def set_view_and_keys(game: Any) -> None:
    """What a game of ViZDoom shows and takes: a bare view of the maze, and how far to go ahead, aside and around."""
    doom = _vizdoom()
    game.set_doom_config_path(os.devnull)  # neither read nor left anywhere
    game.set_screen_resolution(getattr(doom.ScreenResolution, f"RES_{WIDTH}X{HEIGHT}"))
    game.set_screen_format(doom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    for what in HIDDEN:
        getattr(game, f"set_render_{what}")(False)
    keys = ("MOVE_FORWARD_BACKWARD_DELTA", "MOVE_LEFT_RIGHT_DELTA", "TURN_LEFT_RIGHT_DELTA")
    game.set_available_buttons([getattr(doom.Button, key) for key in keys])
    game.add_game_args("+movebob 0 +stillbob 0")  # the camera keeps its height while walking
