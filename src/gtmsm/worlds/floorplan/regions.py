"""A grid of cells split into convex regions, and the doors on the way from each to every other."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

Grid: TypeAlias = Int[np.ndarray, "rows columns"]


@dataclass(frozen=True)
class Regions:
    """Rectangles of cells of the same kind, joined by doors a cell wide."""

    of_cell: Grid
    """-1 where a cell is solid."""
    kind: Int[np.ndarray, "regions"]
    """The number that all cells of a region hold."""
    bounds: Float[np.ndarray, "regions 4"]
    """West, south, east and north."""
    doors: Float[np.ndarray, "doors 2"]
    doorway: Float[np.ndarray, "regions regions 4"]
    """From a region to another: the centre (x, y) of the cell before the next door, then of the one behind it."""


def split_into_regions(grid: Grid) -> Regions:
    """Cut all cells that are not negative into rectangles, greedily, and find the ways between them."""
    of_cell = np.full(grid.shape, -1)
    kinds: list[int] = []
    bounds: list[tuple[int, int, int, int]] = []
    for row, column in np.argwhere(grid >= 0).tolist():
        if of_cell[row, column] < 0:
            height, width = _largest(grid, of_cell, row, column)
            of_cell[row : row + height, column : column + width] = len(kinds)
            kinds.append(grid[row, column])
            bounds.append((column, row, column + width, row + height))
    borders = np.array(bounds, float)
    return Regions(of_cell, np.array(kinds), borders, *_ways(of_cell, borders))


def _largest(grid: Grid, of_cell: Grid, row: int, column: int) -> tuple[int, int]:
    """Height and width of a large rectangle of cells of the same kind and no region yet, north-east of a cell."""
    free = (grid[row:, column:] == grid[row, column]) & (of_cell[row:, column:] < 0)
    wide, tall = _run(free[0]), _run(free[:, 0])
    wide_first = (_run(free[:, :wide].all(1)), wide)
    tall_first = (tall, _run(free[:tall].all(0)))
    return max(wide_first, tall_first, key=lambda size: size[0] * size[1])


def _run(free: np.ndarray) -> int:
    """How many are free before the first that is not."""
    return len(free) if free.all() else int(free.argmin())


def _ways(
    of_cell: Grid, bounds: Float[np.ndarray, "regions 4"]
) -> tuple[Float[np.ndarray, "doors 2"], Float[np.ndarray, "regions regions 4"]]:
    """Doors in the middle of what two regions share, and shortest ways by Floyd and Warshall."""
    shared: dict[tuple[int, int], list[tuple[float, float, float, float]]] = {}
    for step in ((0, 1), (1, 0)):
        for row, column in np.argwhere(of_cell[: len(of_cell) - step[0], : of_cell.shape[1] - step[1]] >= 0).tolist():
            here, there = of_cell[row, column], of_cell[row + step[0], column + step[1]]
            if there >= 0 and there != here:
                before = (column + 0.5, row + 0.5)
                behind = (before[0] + step[1], before[1] + step[0])
                shared.setdefault((int(here), int(there)), []).append((*before, *behind))

    regions = len(bounds)
    middle = (bounds[:, :2] + bounds[:, 2:]) / 2
    distance = np.full((regions, regions), np.inf)
    np.fill_diagonal(distance, 0)
    doorway, doors = np.zeros((regions, regions, 4)), np.zeros((len(shared), 2))
    for number, ((here, there), cells) in enumerate(shared.items()):
        way = np.array(cells[len(cells) // 2])
        doors[number] = (way[:2] + way[2:]) / 2
        distance[here, there] = distance[there, here] = np.linalg.norm(middle[here] - middle[there])
        doorway[here, there], doorway[there, here] = way, way[[2, 3, 0, 1]]
    for between in range(regions):
        through = distance[:, between, None] + distance[None, between]
        shorter = through < distance
        distance = np.where(shorter, through, distance)
        doorway = np.where(shorter[..., None], doorway[:, between, None], doorway)
    return doors, doorway
