"""The index of a long memory on a GPU: cells of an adaptive grid, in a hierarchy of bounding boxes.

A grid halves its entries along the axis of their largest spread, and the halves again, until a cell holds a few dozen.
Cells are small wherever entries are dense, and no cell is empty. `grid_search` searches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from gtmsm.kernels.search import grid_search as layout


@dataclass(frozen=True)
class Grid:
    """Consecutive entries of a memory, in the order of their cells."""

    keys: Float[Tensor, "P n"]
    """Axis by axis; the entries of a cell are contiguous."""
    entry: Int32[Tensor, "n"]
    """The entry of the memory that each key belongs to."""
    walls: Float[Tensor, "nodes corners boxes"]
    """For each node of `FAN` boxes, their lowest coordinates, then their highest; from the outermost level inwards."""
    earliest: Int32[Tensor, "nodes boxes"]
    """The first entry in each box."""
    first: int
    """The first entry of the grid."""
    halvings: int
    """There are 2^halvings cells; cell i begins with row i n / 2^halvings."""
    nodes: tuple[int, ...]
    """The first node of each level."""

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.entry)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for held in (self.keys, self.entry, self.walls, self.earliest))


def table_of(grids: Sequence[Grid], device: torch.device) -> Int64[Tensor, "grids words"]:
    """Addresses and sizes of grids, for a kernel; copied to the device without synchronising with it."""
    rows = [
        [grid.keys.data_ptr(), grid.entry.data_ptr(), grid.walls.data_ptr(), grid.earliest.data_ptr()]
        + [len(grid), grid.halvings, len(grid.nodes), *grid.nodes, *[0] * (layout.LEVELS - len(grid.nodes))]
        for grid in grids
    ]
    table = torch.tensor(rows, dtype=torch.int64, pin_memory=device.type == "cuda").view(len(rows), 7 + layout.LEVELS)
    return table.to(device, non_blocking=True)


@torch.no_grad()
def make_grid(keys: Float[Tensor, "n P"], first: int = 0) -> Grid:
    """A grid of the entries from `first` on, made without synchronising with the device."""
    halvings = max(0, (len(keys) - 1) // layout.CELL).bit_length()
    order = _halved(keys, halvings)
    keys, entry = keys[order], (first + order).int()
    walls, earliest, nodes = _boxes_in_boxes(keys, entry, halvings)
    return Grid(keys.T.contiguous(), entry, walls, earliest, first, halvings, nodes)


def _halved(keys: Float[Tensor, "n P"], halvings: int) -> Int64[Tensor, "n"]:
    """The order of entries by cells, by halving along the axis of their largest spread, recursively."""
    n = len(keys)
    row = order = torch.arange(n, device=keys.device)
    for level in range(halvings):
        members = keys[_members(n, level, keys.device)]
        low, high = members.amin(1), members.amax(1)
        widest = (high.double() - low.double()).argmax(1, keepdim=True)
        part = ((row + 1 << level) - 1) // n
        along = keys.gather(1, widest[part])[:, 0].double() - low.gather(1, widest)[part, 0]
        # The bits of a non-negative float, read as an integer, sort like the float; -0.0 counts as 0. A stable sort
        # keeps equals in the order of entries: of equal entries, a search opens the first cell only.
        step = (part << 32 | along.float().abs().view(torch.int32)).sort(stable=True).indices
        keys, order = keys[step], order[step]
    return order


def _boxes_in_boxes(
    keys: Float[Tensor, "n P"], entry: Int32[Tensor, "n"], halvings: int
) -> tuple[Float[Tensor, "nodes corners boxes"], Int32[Tensor, "nodes boxes"], tuple[int, ...]]:
    """Bounding boxes of cells, then of boxes, up to one root node: `walls`, `earliest` and `nodes` of a `Grid`."""
    cells = _members(len(keys), halvings, keys.device)
    low, high, earliest = keys[cells].amin(1), keys[cells].amax(1), entry[cells].amin(1)
    levels = []
    while len(earliest) > layout.FAN:
        levels.append(_side_by_side(low, high, earliest))
        low, high = low.view(-1, layout.FAN, keys.shape[1]).amin(1), high.view(-1, layout.FAN, keys.shape[1]).amax(1)
        earliest = earliest.view(-1, layout.FAN).amin(1)
    spare = layout.FAN - len(earliest)
    low, high = (torch.cat([wall, wall.new_full((spare, keys.shape[1]), torch.inf)]) for wall in (low, high))
    levels.append(_side_by_side(low, high, torch.cat([earliest, earliest.new_full((spare,), layout.NEVER)])))
    levels.reverse()
    nodes = [0]
    for walls, _ in levels[:-1]:
        nodes.append(nodes[-1] + len(walls))
    walls, earliest = (torch.cat(parts) for parts in zip(*levels, strict=True))
    return walls, earliest, tuple(nodes)


def _members(n: int, halvings: int, device: torch.device) -> Int64[Tensor, "parts size"]:
    """Rows of each of 2^halvings parts; parts that are one shorter repeat their last row."""
    start = torch.arange((1 << halvings) + 1, device=device) * n >> halvings
    within = torch.arange(-(-n >> halvings), device=device)
    return torch.minimum(start[:-1, None] + within, start[1:, None] - 1)


def _side_by_side(
    low: Float[Tensor, "count P"], high: Float[Tensor, "count P"], earliest: Int32[Tensor, "count"]
) -> tuple[Float[Tensor, "nodes corners boxes"], Int32[Tensor, "nodes boxes"]]:
    """Boxes of one level, `FAN` per node."""
    corners = torch.cat([low, high], 1)
    return corners.view(-1, layout.FAN, corners.shape[1]).transpose(1, 2).contiguous(), earliest.view(-1, layout.FAN)
