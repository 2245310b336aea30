"""A walk on a grid with solid cells: a step into a solid cell, or off the grid, leaves the walker where it is."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gtmsm.kernels.scans.prefix import prefix_scan

Cells: TypeAlias = Int64[Tensor, "n time 2"]


def blocked_walk(
    start: Int64[Tensor, "n 2"], steps: Cells, solid: Bool[Tensor, "n rows columns"], cells_at_once: int = 1 << 22
) -> Cells:
    """The position after every step. A step is a table of where each cell leads, and tables compose.

    Tables of `cells_at_once` entries are composed at once; longer walks are cut into stretches.

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
