"""Solid rectangles at random places of a grid, and walks that they block."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gtmsm.tensors import prefix_scan

Cells: TypeAlias = Int64[Tensor, "n time 2"]
Corner: TypeAlias = Int64[Tensor, "n tries 2"]
Solid: TypeAlias = Bool[Tensor, "n cells cells"]
"""Where no agent can go."""


def most_rectangles(cells: int) -> int:
    """How many a grid could ever hold: single cells, every other row and column."""
    return ((cells + 1) // 2) ** 2


def draw_rectangles(
    keep_free: Int64[Tensor, "n 2"], cells: int, count: int, longest: int, generator: torch.Generator
) -> Solid:
    """`count` rectangles for each of `n` grids, sides uniform in 1 to `longest` < `cells`, none on the cell kept free.

    They touch neither sides nor corners of each other, so there is a way around each: no free cell is cut off.
    """
    n, device = len(keep_free), keep_free.device
    axis = torch.arange(cells, device=device)
    agent = torch.arange(n, device=device)
    solid = torch.zeros(n, cells, cells, dtype=torch.bool, device=device)
    near = torch.zeros_like(solid)
    for _ in range(count):
        # Eight places are tried for each rectangle; one that fits nowhere is left out.
        chance = torch.rand(2, n, 8, 2, generator=generator, device=generator.device).to(device)
        side = 1 + (chance[0] * longest).long()
        first = (chance[1] * (cells - side + 1)).long()
        last = first + side - 1
        tried = _boxes(axis, first, last)
        on_start = ((first <= keep_free[:, None]) & (keep_free[:, None] <= last)).all(-1)
        fits = ~((tried & near[:, None]).any((-2, -1)) | on_start)
        chosen = fits.byte().argmax(1)
        is_placed = fits.any(1)[:, None, None]
        solid = solid | (tried[agent, chosen] & is_placed)
        near = near | (_boxes(axis, first - 1, last + 1)[agent, chosen] & is_placed)
    return solid


def _boxes(axis: Int64[Tensor, "cells"], first: Corner, last: Corner) -> Bool[Tensor, "n tries cells cells"]:
    """The cells from a first row and column to a last, as masks."""
    inside = (axis >= first[..., None]) & (axis <= last[..., None])
    return inside[:, :, 0, :, None] & inside[:, :, 1, None, :]


def blocked_walk(
    start: Int64[Tensor, "n 2"], steps: Cells, solid: Bool[Tensor, "n rows columns"], cells_at_once: int = 1 << 22
) -> Cells:
    """The position after every step: a step into a solid cell, or off the grid, leaves the walker where it is.

    A step is a table of where each cell leads, and tables compose: `cells_at_once` entries of them at a time.

    >>> solid = torch.tensor([[[False, False, True]]])
    >>> blocked_walk(torch.tensor([[0, 0]]), torch.tensor([[[0, 1], [0, 1], [0, -1]]]), solid)[..., 1].tolist()
    [[1, 1, 0]]
    """
    columns = solid.shape[2]
    cell = start[:, :1] * columns + start[:, 1:]
    cells = []
    for stretch in steps.split(max(1, cells_at_once // solid.numel()), 1):
        (tables,) = prefix_scan(_then, [_tables(stretch, solid)])
        cells.append(tables.gather(2, cell[:, None].expand(-1, stretch.shape[1], 1))[..., 0])
        cell = cells[-1][:, -1:]
    walked = torch.cat(cells, 1)
    return torch.stack([walked // columns, walked % columns], -1)


def _tables(steps: Cells, solid: Bool[Tensor, "n rows columns"]) -> Int64[Tensor, "n time cells"]:
    """Which cell each cell leads to, at every step; cells are counted row by row."""
    rows, columns = solid.shape[1:]
    here = torch.arange(rows * columns, device=steps.device)
    row = (here // columns + steps[..., :1]).clamp(0, rows - 1)
    column = (here % columns + steps[..., 1:]).clamp(0, columns - 1)
    aim = row * columns + column
    is_solid = solid.flatten(1)[:, None].expand(aim.shape).gather(2, aim)
    return torch.where(is_solid, here, aim)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """Two tables, one after the other, as one."""
    return [later[0].gather(2, earlier[0])]
