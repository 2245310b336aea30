"""DeepMind Lab's mazes and textures as ViZDoom reads them: text (UDMF) in a file (PWAD) that is written anew in place.

The engine reads the table of a file once and a map whenever it is entered. So the file has one map of a fixed length,
padded with blanks, and another place is another text at the same offset: no limit to how many, and milliseconds each.
"""

import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from gtmsm.worlds.lab import import_labmaze

UNIT = 128
"""Side of a cell of the maze, and height of its walls, in units of the engine."""
THINGS = (2028, 30, 31, 32, 33, 34, 35, 37, 43, 47, 48, 54)
"""Objects that neither move nor can be picked up: a place looks the same when it is seen again."""
MAP = "R00000"
LONGEST = 1000
"""Bytes of text for each cell of a maze."""

Cell: TypeAlias = tuple[int, int]
Look: TypeAlias = dict[str, str]
Names: TypeAlias = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Maze:
    """A maze with rooms, objects, and colours of its own for each room; cells are numbered to the right and up."""

    free: frozenset[Cell]
    """Cells to walk in."""
    in_rooms: tuple[Cell, ...]
    """Those of rooms, without objects; all of them where there is no room."""
    objects: tuple[Cell, ...] = ()
    """An object stands in the middle of each."""
    text: str = ""
    """As the engine reads it, without the agent."""

    def with_agent(self, cell: Cell, degrees: int) -> str:
        """The text of the maze and of where the agent starts."""
        return f"{self.text}\n{_thing(cell, 1, degrees)}"


def draw_maze(cells: int, rooms: int, rng: np.random.Generator) -> Maze:
    """A maze of `cells` by `cells` cells."""
    labmaze = import_labmaze("gtmsm/Doom-v0")
    maze = labmaze.RandomMaze(
        height=cells, width=cells, max_rooms=rooms, room_min_size=3, room_max_size=5, spawns_per_room=1,
        objects_per_room=2, random_seed=int(rng.integers(1, 2**31)),
    )  # fmt: skip
    inside, room = (str(layer).splitlines() for layer in (maze.entity_layer, maze.variations_layer))
    _, styles = _textures()
    style = styles[sorted(styles)[int(rng.integers(len(styles)))]]
    colours = {
        letter: {kind: known[int(rng.integers(len(known)))] for kind, known in style.items()}
        for letter in sorted(set("".join(room)))
    }
    free = {(i, -j): letter for j, row in enumerate(inside) for i, letter in enumerate(row) if letter != "*"}
    looks = [colours[room[-j][i]] for i, j in free]
    lines = ['namespace = "zdoom";', *_sides({cell: number for number, cell in enumerate(free)}, looks)]
    for look in looks:
        both = f'texturefloor = "{look["floor"]}"; textureceiling = "{look["floor"]}";'
        lines.append(f"sector {{ heightceiling = {UNIT}; {both} lightlevel = 220; }}")
    objects = tuple(cell for cell, letter in free.items() if letter == "G")
    lines += [_thing(cell, THINGS[int(rng.integers(len(THINGS)))]) for cell in objects]
    bare = [cell for cell in free if cell not in objects]
    in_rooms = [(i, j) for i, j in bare if room[-j][i] != "."] or bare or list(free)
    return Maze(frozenset(free), tuple(in_rooms), objects, "\n".join(lines))


class MapFile:
    """The file that the engine reads, with all textures and one map."""

    def __init__(self, path: Path, cells: int) -> None:
        pictures, _ = _textures()
        self._length = LONGEST * cells * cells
        lumps = [("TX_START", b""), *pictures, ("TX_END", b""), (MAP, b""), ("TEXTMAP", b""), ("ENDMAP", b"")]
        lengths = [self._length if name == "TEXTMAP" else len(content) for name, content in lumps]
        offsets = np.cumsum([12, *lengths]).tolist()
        self._offset = offsets[-3]
        self._file = path.open("w+b")
        self._file.write(struct.pack("<4sii", b"PWAD", len(lumps), offsets[-1]))
        self._file.writelines(content for _, content in lumps)
        self._file.seek(offsets[-1])
        for offset, length, (name, _) in zip(offsets, lengths, lumps, strict=False):
            self._file.write(struct.pack("<ii8s", offset, length, name.encode()))

    def write(self, text: str) -> None:
        """The map that is entered next."""
        assert len(text) <= self._length, f"a map of {len(text)} bytes"
        self._file.seek(self._offset)
        self._file.write(text.encode().ljust(self._length))
        self._file.flush()

    def close(self) -> None:
        """Nothing is written any more."""
        self._file.close()


@lru_cache(maxsize=1)
def _textures() -> tuple[list[tuple[str, bytes]], Names]:
    """Lab's textures as PNG, and the names of walls and floors by style."""
    assets = import_labmaze("gtmsm/Doom-v0").assets
    pictures: list[tuple[str, bytes]] = []
    names: Names = {}
    for style in assets.MAZE_STYLES:
        for kind, colours in (("wall", assets.WALL_TEXTURES[style]), ("floor", assets.FLOOR_TEXTURES[style])):
            for colour in colours:
                packed, side = io.BytesIO(), 128 if kind == "wall" else 64
                with Image.open(os.path.join(assets.ROOT_DIR, style, f"{kind}_{colour}_d.png")) as picture:
                    small = (
                        picture.convert("RGBA")
                        .convert("RGB")
                        .resize((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
                    )
                small.save(packed, "PNG")
                name = f"{kind[0].upper()}{len(pictures):03d}"
                pictures.append((name, packed.getvalue()))
                names.setdefault(style, {}).setdefault(kind, []).append(name)
    return pictures, names


def _thing(cell: Cell, kind: int, degrees: int = 0) -> str:
    """Something in the middle of a cell; 1 is the agent."""
    x, y = ((n + 0.5) * UNIT for n in cell)
    always = " ".join(f"skill{level} = true;" for level in range(1, 6)) + " single = true;"
    return f"thing {{ x = {x}; y = {y}; angle = {degrees}; type = {kind}; {always} }}"


def _sides(sector: dict[Cell, int], looks: list[Look]) -> Iterator[str]:
    """Corners and lines around each square; between two squares there is one line, through which one walks."""
    corners: dict[Cell, int] = {}
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
    yield from (f"vertex {{ x = {x * UNIT}; y = {y * UNIT}; }}" for x, y in corners)
    yield from (*sides, *lines)
