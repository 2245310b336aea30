"""Several rooms, and mazes: places on a grid of cells, a unit wide each.

A grid holds a number for every cell: SOLID, CORRIDOR, or that of a room. Row 0 is the southernmost.
"""

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gtmsm.worlds.floorplan.regions import Grid, split_into_regions
from gtmsm.worlds.floorplan.shells import PADDING, Shells, stacked
from gtmsm.worlds.lab import import_labmaze
from gtmsm.worlds.textures import Textures

Corners: TypeAlias = tuple[Int[np.ndarray, "2"], Int[np.ndarray, "2"]]
"""The first cell of a room, and the cell after its last."""

SOLID, CORRIDOR = -1, 0

SLOT = 5
"""Rooms lie somewhere in slots of this many cells, two by two, with a cell between them."""
SLOTS = ((0, 0), (0, 1), (1, 1), (1, 0))
"""In a ring: any that follow each other there are neighbours."""
DOOR_WIDTH = 1.0
"""Doors and corridors are a cell wide."""

MAZE_CELLS = 11
"""Side of a maze, its outer walls included; labmaze wants it odd."""


def draw_several_rooms(count: int, textures: Textures, random: np.random.Generator) -> Shells:
    """Two to four rooms, joined by doors and short corridors."""
    return _as_shells([_several_rooms(random) for _ in range(count)], textures, random)


def draw_mazes(count: int, textures: Textures, random: np.random.Generator) -> Shells:
    """Mazes of Labyrinth's own generator."""
    labmaze = import_labmaze('plan "maze"')
    grids = []
    for seed in random.integers(1, 1 << 31, count):
        maze = labmaze.RandomMaze(
            height=MAZE_CELLS, width=MAZE_CELLS, max_rooms=4, random_seed=int(seed), has_doors=False
        )
        room = 1 + _codes(maze.variations_layer) - ord("A")
        is_solid = _codes(maze.entity_layer) == ord("*")
        grids.append(np.where(is_solid, SOLID, room.clip(min=CORRIDOR)))
    return _as_shells(grids, textures, random)


def _codes(layer: object) -> Grid:
    """The letters of one of labmaze's text layers, as numbers."""
    return np.array([[ord(letter) for letter in line] for line in str(layer).strip("\n").split("\n")])


def _several_rooms(random: np.random.Generator) -> Grid:
    """Rooms in neighbouring slots. Any two of them share a row or a column, where a straight corridor joins them."""
    grid = np.full((2 * SLOT + 3, 2 * SLOT + 3), SOLID)
    rooms, first = random.integers(2, 5), random.integers(4)
    places = []
    for number in range(rooms):
        slot = np.array(SLOTS[(first + number) % 4])
        size = random.integers(3, 6, 2)  # sides of 3 to 5 cells
        low = 1 + slot * (SLOT + 1) + random.integers(0, SLOT - size + 1)
        places.append((low, low + size))
        grid[low[0] : low[0] + size[0], low[1] : low[1] + size[1]] = number + 1
    # Half of the places with four rooms are a full circle, so that there are two ways to everywhere.
    ring = places + places[:1] if rooms == 4 and random.random() < 0.5 else places
    for here, there in pairwise(ring):
        _dig(grid, here, there, random)
    return grid


def _dig(grid: Grid, here: Corners, there: Corners, random: np.random.Generator) -> None:
    """A straight corridor between rooms that lie side by side, or one above the other."""
    shared_low, shared_high = np.maximum(here[0], there[0]), np.minimum(here[1], there[1])
    axis = int(shared_low[0] < shared_high[0])  # along which they are apart
    across = random.integers(shared_low[1 - axis], shared_high[1 - axis])
    between = slice(shared_high[axis], shared_low[axis])
    grid[(between, across) if axis == 0 else (across, between)] = CORRIDOR


# ---- from grids to shells


def _as_shells(grids: list[Grid], textures: Textures, random: np.random.Generator) -> Shells:
    """Draw textures for every grid, and fill up to the largest."""
    fields: dict[str, list[np.ndarray]] = {}
    for grid in grids:
        for name, value in (_surfaces(grid, textures, random) | _layout(grid)).items():
            fields.setdefault(name, []).append(value)
    return Shells(**{name: stacked(values, PADDING.get(name, 0.0)) for name, values in fields.items()})


def _surfaces(grid: Grid, textures: Textures, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Walls where free cells meet solid ones, and what is on the walls, the floor and the ceiling.

    Rooms have different textures, as far as they go; half of the rooms have a texture for every wall.
    """
    rooms = int(grid.max()) + 1  # corridors count as one
    alike = random.random((rooms, 1)) < 0.5
    own = random.choice(textures.walls.numpy(), (rooms, 4))
    shared = _different(textures.walls, rooms, random)[:, None]
    of_wall = np.where(alike, shared, own)  # facing north, east, south and west
    floor, ceiling = (_different(choices, rooms, random) for choices in (textures.floors, textures.ceilings))
    walls, wall_textures = [], []
    for turned, cells in ((False, grid), (True, grid.T)):
        for line in range(1, len(cells)):
            facing_up = np.where(cells[line - 1] == SOLID, cells[line], SOLID)
            facing_down = np.where(cells[line] == SOLID, cells[line - 1], SOLID)
            for room_of_edge, side in ((facing_up, int(turned)), (facing_down, 2 + int(turned))):
                for start, end in _runs(room_of_edge):
                    walls.append((line, start, line, end) if turned else (start, line, end, line))
                    wall_textures.append(of_wall[room_of_edge[start], side])
    indoors = grid.clip(min=CORRIDOR)
    return {
        "walls": np.array(walls, float),
        "wall_texture": np.array(wall_textures),
        "floor_texture": floor[indoors],
        "ceiling_texture": ceiling[indoors],
    }


def _different(choices: Int64[Tensor, "choices"], count: int, random: np.random.Generator) -> Int[np.ndarray, "count"]:
    """Without repeats while there are enough."""
    return np.resize(random.permutation(choices.numpy()), count)


def _runs(rooms: Int[np.ndarray, "cells"]) -> list[tuple[int, int]]:
    """Start and end of every stretch of the same room."""
    edges = [0, *(np.flatnonzero(np.diff(rooms)) + 1).tolist(), len(rooms)]
    return [(start, end) for start, end in pairwise(edges) if rooms[start] != SOLID]


def _layout(grid: Grid) -> dict[str, np.ndarray]:
    """Where rooms are, and how they are connected."""
    regions = split_into_regions(grid)
    is_room: Bool[np.ndarray, "regions"] = regions.kind > CORRIDOR
    sides: Float[np.ndarray, "regions 2"] = regions.bounds[:, 2:] - regions.bounds[:, :2]
    width = np.array(np.sqrt(sides.prod(1)[is_room]).mean())
    ways = {"bounds": regions.bounds, "region": regions.of_cell, "doors": regions.doors, "doorway": regions.doorway}
    return ways | {"corner": np.zeros(2), "width": width, "is_room": is_room}
