"""DeepMind Lab's mazes and textures in ViZDoom, a real engine with its own momentum: `gtmsm/Doom-v0`.

Maps are written as text (UDMF) into a file that the engine loads once, so that another place takes milliseconds.

>>> env = gymnasium.make("gtmsm/Doom-v0", places=100, split="test")
"""

import importlib
import io
import math
import os
import struct
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError, did_you_mean
from gtmsm.worlds.lab import import_labmaze
from gtmsm.worlds.physics import ACTIONS, KEYS

CELL = 128
"""Side of a cell of the maze, and height of its walls, in units of the engine."""
THINGS = (2028, 30, 31, 32, 33, 34, 35, 37, 43, 47, 48, 54)
"""Objects that neither move nor can be picked up: a place looks the same when it is seen again."""
TICS = 4
"""Of the engine, in a step."""
TURN_STEPS = 41
"""Steps of a full turn, as in our own rooms."""
START = 14
"""Tics before the first action; the engine loses actions at the very beginning."""
STARTS = 8
"""Spots and headings to start from in each maze: as many maps, since the engine knows one start a map."""
HIDDEN = ("hud", "crosshair", "weapon", "decals", "particles", "effects_sprites", "messages", "corpses")

Lump: TypeAlias = tuple[str, bytes]
Names: TypeAlias = dict[str, list[tuple[str, str]]]
Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
Info: TypeAlias = dict[str, Any]


class DoomEnv(gymnasium.Env[np.ndarray, int | np.int64]):
    """Walk through a maze with rooms, objects and momentum; nothing is rewarded, and an episode never ends by itself.

    `info["pose"]` is x, y in cells and the heading in radians, counter-clockwise; `info["place"]` is the maze. The
    engine rounds turns: 41 of them are 360.35 degrees.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}
    action_names = ACTIONS

    def __init__(
        self,
        cells: int = 11,
        rooms: int = 4,
        pixels: int = 32,
        places: int = 256,
        world_seed: int = 0,
        split: str = "train",
        render_mode: str | None = None,
    ) -> None:
        """Walk in `places` mazes of `cells` by `cells` cells, different ones in each split."""
        require_whole("cells", cells, 7, 63)
        require(cells % 2 == 1, f"cells is {cells}; give an odd number, as the mazes need")
        for name, value, most in (("rooms", rooms, 30), ("pixels", pixels, 120), ("places", places, 10_000)):
            require_whole(name, value, 1, most)
        for name, given, known in (("render_mode", render_mode, (None, "rgb_array")), ("split", split, SPLITS)):
            require(given in known, f'{name} is "{given}"; {did_you_mean(str(given), map(str, known))}')
        self.render_mode, self.pixels, self.places = render_mode, pixels, places
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.observation_space = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        _vizdoom(), import_labmaze("gtmsm/Doom-v0")  # before anything is written
        self._folder = tempfile.TemporaryDirectory(prefix="gtmsm-doom-", ignore_cleanup_errors=True)
        maps = Path(self._folder.name) / "maps.wad"
        write_mazes(maps, cells, rooms, places, [world_seed, SPLITS.index(split)])
        self._game = _start(maps)
        self.place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        """Draw a maze; the agent stands in one of its rooms."""
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.places))
        self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.set_doom_map(_name(self.place * STARTS + int(self.np_random.integers(STARTS))))
        self._game.new_episode()
        return self._observation(), self._info()

    def step(self, action: int | np.int64) -> tuple[Picture, float, bool, bool, Info]:
        """Four tics of an action; momentum is the engine's own."""
        known = f"action is {action!r}; expected 0 to {len(ACTIONS) - 1}: {', '.join(ACTIONS)}"
        require(bool(self.action_space.contains(action)), known)
        ahead, left, turned = KEYS[ACTIONS[int(action)]]
        turn = -360 / TURN_STEPS / TICS * turned  # each tic, clockwise
        self._game.make_action([ahead > 0, ahead < 0, left > 0, left < 0, turn], TICS)
        return self._observation(), 0.0, False, False, self._info()

    def render(self) -> Picture | None:
        """What the agent sees, larger."""
        return None if self.render_mode is None else np.asarray(self._screen())

    def close(self) -> None:
        """End the engine."""
        self._game.close()
        self._folder.cleanup()

    def _screen(self) -> Image.Image:
        state = self._game.get_state()
        if state is None:
            raise RuntimeError("the engine shows nothing; was the environment reset?")
        return Image.fromarray(state.screen_buffer)

    def _observation(self) -> Picture:
        screen = self._screen()
        return np.asarray(screen.resize((self.pixels, self.pixels), Image.Resampling.BOX))

    def _info(self) -> Info:
        doom = _vizdoom()
        names = (doom.GameVariable.POSITION_X, doom.GameVariable.POSITION_Y, doom.GameVariable.ANGLE)
        x, y, angle = (self._game.get_game_variable(name) for name in names)
        return {"pose": np.array([x / CELL, y / CELL, math.radians(angle)], np.float32), "place": self.place}


SPLITS = ("train", "test")


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
    game.set_doom_config_path(str(maps.with_name("doom.ini")))
    game.set_doom_map(_name(0))
    game.set_screen_resolution(doom.ScreenResolution.RES_256X192)  # 8x6 of its pixels are averaged to one of 32x32
    game.set_screen_format(doom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    for what in HIDDEN:
        getattr(game, f"set_render_{what}")(False)
    keys = ("MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_LEFT", "MOVE_RIGHT", "TURN_LEFT_RIGHT_DELTA")
    game.set_available_buttons([getattr(doom.Button, key) for key in keys])
    game.set_episode_timeout(0)
    game.set_episode_start_time(START)
    game.set_doom_skill(1)
    game.add_game_args("+movebob 0 +stillbob 0")  # the camera keeps its height while walking
    game.init()
    return game


# ---- maps


def write_mazes(path: Path, cells: int, rooms: int, places: int, seed: list[int]) -> None:
    """A file of mazes and of the textures of their walls and floors, as the engine reads it."""
    labmaze = import_labmaze("gtmsm/Doom-v0")
    pictures, names = _textures(labmaze)
    lumps: list[Lump] = [("TX_START", b""), *pictures, ("TX_END", b"")]
    for place, numbers in enumerate(np.random.SeedSequence(seed).spawn(places)):
        for start, text in enumerate(_maps(labmaze, cells, rooms, np.random.default_rng(numbers), names)):
            lumps += [(_name(place * STARTS + start), b""), ("TEXTMAP", text.encode()), ("ENDMAP", b"")]
    offsets = np.cumsum([12, *(len(content) for _, content in lumps)]).tolist()
    with path.open("wb") as file:
        file.write(struct.pack("<4sii", b"PWAD", len(lumps), offsets[-1]))
        file.writelines(content for _, content in lumps)
        for offset, (name, content) in zip(offsets, lumps, strict=False):
            file.write(struct.pack("<ii8s", offset, len(content), name.encode()))


def _name(place: int) -> str:
    return f"R{place:05d}"


@lru_cache(maxsize=1)
def _textures(labmaze: Any) -> tuple[list[Lump], Names]:
    """Lab's textures as PNG, and the names of walls and floors by style."""
    assets = labmaze.assets
    pictures: list[Lump] = []
    names: Names = {}
    for style in assets.MAZE_STYLES:
        for kind, colours in (("wall", assets.WALL_TEXTURES[style]), ("floor", assets.FLOOR_TEXTURES[style])):
            for colour in colours:
                packed, side = io.BytesIO(), 128 if kind == "wall" else 64
                with Image.open(os.path.join(assets.ROOT_DIR, style, f"{kind}_{colour}_d.png")) as picture:
                    picture.convert("RGBA").convert("RGB").resize((side, side), Image.Resampling.LANCZOS).save(
                        packed, "PNG"
                    )
                name = f"{kind[0].upper()}{len(pictures):03d}"
                pictures.append((name, packed.getvalue()))
                names.setdefault(style, []).append((kind, name))
    return pictures, names


def _maps(labmaze: Any, cells: int, rooms: int, rng: np.random.Generator, names: Names) -> Iterator[str]:
    """A maze with each of its starts: floor in each free cell, walls around, colours of its own for each room."""
    maze = labmaze.RandomMaze(
        height=cells, width=cells, max_rooms=rooms, room_min_size=3, room_max_size=5, spawns_per_room=1,
        objects_per_room=2, random_seed=int(rng.integers(1, 2**31)),
    )  # fmt: skip
    inside, room = (str(layer).splitlines() for layer in (maze.entity_layer, maze.variations_layer))
    style = names[sorted(names)[int(rng.integers(len(names)))]]
    by_kind = {kind: [name for what, name in style if what == kind] for kind in ("wall", "floor")}
    colours = {
        letter: {kind: known[int(rng.integers(len(known)))] for kind, known in by_kind.items()}
        for letter in sorted(set("".join(room)))
    }
    free = {(i, -j): letter for j, row in enumerate(inside) for i, letter in enumerate(row) if letter != "*"}
    sector = {cell: number for number, cell in enumerate(free)}
    looks = [colours[room[-j][i]] for i, j in free]
    lines = ['namespace = "zdoom";', *_sides(sector, looks)]
    for look in looks:
        both = f'texturefloor = "{look["floor"]}"; textureceiling = "{look["floor"]}";'
        lines.append(f"sector {{ heightceiling = {CELL}; {both} lightlevel = 220; }}")
    for cell in (cell for cell, letter in free.items() if letter == "G"):
        lines.append(_thing(cell, THINGS[int(rng.integers(len(THINGS)))]))
    maze_alone = "\n".join(lines)
    in_rooms = [cell for cell, letter in free.items() if letter != "G" and room[-cell[1]][cell[0]] != "."] or list(free)
    for _ in range(STARTS):
        start = in_rooms[int(rng.integers(len(in_rooms)))]
        yield f"{maze_alone}\n{_thing(start, 1, int(rng.integers(360)))}"


def _thing(cell: tuple[int, int], kind: int, angle: int = 0) -> str:
    """Something in the middle of a cell; 1 is the agent."""
    x, y = ((n + 0.5) * CELL for n in cell)
    always = " ".join(f"skill{level} = true;" for level in range(1, 6)) + " single = true;"
    return f"thing {{ x = {x}; y = {y}; angle = {angle}; type = {kind}; {always} }}"


def _sides(sector: dict[tuple[int, int], int], looks: list[dict[str, str]]) -> Iterator[str]:
    """Corners and lines around each square; between two squares there is one line, through which one walks."""
    corners: dict[tuple[int, int], int] = {}
    sides: list[str] = []
    lines: list[str] = []
    for (i, j), number in sector.items():
        # Clockwise, so that the square is on the right of each line; and the square on the other side.
        around = [(i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j)]
        others = [(i - 1, j), (i, j + 1), (i + 1, j), (i, j - 1)]
        for one, two, other in zip(around, around[1:] + around[:1], others, strict=True):
            ends = [corners.setdefault(corner, len(corners)) for corner in (one, two)]
            line = f"v1 = {ends[0]}; v2 = {ends[1]}; sidefront = {len(sides)};"
            if other not in sector:
                sides.append(f'sidedef {{ sector = {number}; texturemiddle = "{looks[number]["wall"]}"; }}')
                lines.append(f"linedef {{ {line} blocking = true; }}")
            elif number < sector[other]:
                sides += [f"sidedef {{ sector = {number}; }}", f"sidedef {{ sector = {sector[other]}; }}"]
                lines.append(f"linedef {{ {line} sideback = {len(sides) - 1}; twosided = true; }}")
    yield from (f"vertex {{ x = {x * CELL}; y = {y * CELL}; }}" for x, y in corners)
    yield from (*sides, *lines)
