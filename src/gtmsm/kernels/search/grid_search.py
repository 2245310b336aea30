"""The nearest of very many entries, exactly: cells of an uneven grid, boxes round them, boxes round these boxes.

A grid halves its entries along the axis in which they are spread most, halves the halves, and so on, until a cell holds
a few dozen. However entries lie, scattered, in clusters or all in one place, cells are as small as they can be, and no
cell is empty. A search goes from the whole to the nearest box to the nearest cell, and leaves out every box whose
nearest wall is farther than what it has found. Distances are in float64, and of entries equally far the earlier is the
nearer: walls are rounded as distances are, so that nothing is left out that a sort of all distances would find.
`grid_search_by_sorting` is the readable twin, `grid_search` picks the fastest one for the device.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose

CELL = 64
"""Entries of a cell at most; at least half as many, unless there are fewer."""
FAN = 64
"""Boxes in a box: a power of two, so that halves of halves fill them."""
LEVELS = 4
"""Boxes in boxes in boxes, at most: enough for 10^9 entries."""
MOST_AXES = 8
"""Of a place on a GPU: loops over them are unrolled."""
MOST_NEIGHBOURS = 32
"""On a GPU: one warp keeps them in registers."""
AT_ONCE = 2**23
"""Pairs of query and entry that the readable twin looks at together."""
NEVER = 2**31 - 1
"""Later than any entry."""

Found = tuple[Int64[Tensor, "m K"], Float[Tensor, "m K"]]


class Grid(NamedTuple):
    """Consecutive entries of a memory, in the order of their cells."""

    keys: Float[Tensor, "P n"]
    """An axis after the other: neighbours in a cell are read together."""
    entry: Int32[Tensor, "n"]
    """Which entry of the memory each of them is."""
    walls: Float[Tensor, "nodes corners boxes"]
    """For `FAN` boxes beside each other: their lowest coordinates, then their highest; from the outermost level on."""
    earliest: Int32[Tensor, "nodes boxes"]
    """The first entry in each box."""
    first: int
    """The first of all."""
    halvings: int
    """There are 2^halvings cells; cell i begins with row i n / 2^halvings."""
    nodes: tuple[int, ...]
    """Which node each level begins with."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for held in (self.keys, self.entry, self.walls, self.earliest))


class Grids(NamedTuple):
    """All that was put into grids of some memory, the largest first."""

    grids: tuple[Grid, ...]
    where: Int64[Tensor, "grids words"]
    """The same for a kernel: addresses and sizes."""

    @staticmethod
    def of(grids: Sequence[Grid], device: torch.device) -> "Grids":
        """Tell the device where they are: it is waited for."""
        rows = [
            [grid.keys.data_ptr(), grid.entry.data_ptr(), grid.walls.data_ptr(), grid.earliest.data_ptr()]
            + [len(grid.entry), grid.halvings, len(grid.nodes), *grid.nodes, *[0] * (LEVELS - len(grid.nodes))]
            for grid in grids
        ]
        return Grids(tuple(grids), torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), 7 + LEVELS))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies lie elsewhere: `where` is found anew."""
        return Grids.of, (self.grids, self.where.device)


@torch.no_grad()
def make_grid(keys: Float[Tensor, "n P"], first: int = 0) -> Grid:
    """A grid of the entries from `first` on; nothing is waited for."""
    halvings = max(0, (len(keys) - 1) // CELL).bit_length()
    order = _halved(keys, halvings)
    keys, entry = keys[order], (first + order).int()
    walls, earliest, nodes = _boxes_in_boxes(keys, entry, halvings)
    return Grid(keys.T.contiguous(), entry, walls, earliest, first, halvings, nodes)


def _halved(keys: Float[Tensor, "n P"], halvings: int) -> Int64[Tensor, "n"]:
    """The order of cells: entries halved along the axis in which they are spread most, and the halves again."""
    n = len(keys)
    row = order = torch.arange(n, device=keys.device)
    for level in range(halvings):
        members = keys[_members(n, level, keys.device)]
        low, high = members.amin(1), members.amax(1)
        widest = (high.double() - low.double()).argmax(1, keepdim=True)
        part = ((row + 1 << level) - 1) // n
        along = keys.gather(1, widest[part])[:, 0].double() - low.gather(1, widest)[part, 0]
        # Bits of what is not negative have its order; -0.0 counts as 0. A stable sort leaves equals in the order of
        # entries, so that of an agent that stands still the first cell is enough.
        step = (part << 32 | along.float().abs().view(torch.int32)).sort(stable=True).indices
        keys, order = keys[step], order[step]
    return order


def _boxes_in_boxes(
    keys: Float[Tensor, "n P"], entry: Int32[Tensor, "n"], halvings: int
) -> tuple[Float[Tensor, "nodes corners boxes"], Int32[Tensor, "nodes boxes"], tuple[int, ...]]:
    """Boxes round cells, and round boxes until one node holds them all: `walls`, `earliest` and `nodes` of a `Grid`."""
    cells = _members(len(keys), halvings, keys.device)
    low, high, earliest = keys[cells].amin(1), keys[cells].amax(1), entry[cells].amin(1)
    levels = []
    while len(earliest) > FAN:
        levels.append(_side_by_side(low, high, earliest))
        low, high = low.view(-1, FAN, keys.shape[1]).amin(1), high.view(-1, FAN, keys.shape[1]).amax(1)
        earliest = earliest.view(-1, FAN).amin(1)
    spare = FAN - len(earliest)
    low, high = (torch.cat([wall, wall.new_full((spare, keys.shape[1]), torch.inf)]) for wall in (low, high))
    levels.append(_side_by_side(low, high, torch.cat([earliest, earliest.new_full((spare,), NEVER)])))
    levels.reverse()
    nodes = [0]
    for walls, _ in levels[:-1]:
        nodes.append(nodes[-1] + len(walls))
    walls, earliest = (torch.cat(parts) for parts in zip(*levels, strict=True))
    return walls, earliest, tuple(nodes)


def _members(n: int, halvings: int, device: torch.device) -> Int64[Tensor, "parts size"]:
    """Rows of each of 2^halvings parts; of those that are one shorter the last row twice."""
    start = torch.arange((1 << halvings) + 1, device=device) * n >> halvings
    within = torch.arange(-(-n >> halvings), device=device)
    return torch.minimum(start[:-1, None] + within, start[1:, None] - 1)


def _side_by_side(
    low: Float[Tensor, "count P"], high: Float[Tensor, "count P"], earliest: Int32[Tensor, "count"]
) -> tuple[Float[Tensor, "nodes corners boxes"], Int32[Tensor, "nodes boxes"]]:
    """Boxes of one level, `FAN` of them to a node."""
    corners = torch.cat([low, high], 1)
    return corners.view(-1, FAN, corners.shape[1]).transpose(1, 2).contiguous(), earliest.view(-1, FAN)


def grid_search_by_sorting(query: Float[Tensor, "m P"], grids: Grids, recent: Float[Tensor, "r P"], k: int) -> Found:
    """The readable twin: every distance, and a stable sort."""
    known = [grid.keys.T[grid.entry.argsort()] for grid in grids.grids]
    places = torch.cat([*known, recent]).double()
    index, far2 = [], []
    for some in query.double().split(max(1, AT_ONCE // max(1, len(places)))):
        each = torch.zeros(len(some), len(places), dtype=torch.float64, device=query.device)
        for axis in range(places.shape[1]):
            each += (places[:, axis] - some[:, axis, None]).square()
        sorted_ = each.sort(dim=1, stable=True)
        index.append(sorted_.indices[:, :k])
        far2.append(sorted_.values[:, :k])
    return torch.cat(index), torch.cat(far2)


@torch.no_grad()
def grid_search(query: Float[Tensor, "m P"], grids: Grids, recent: Float[Tensor, "r P"], k: int) -> Found:
    """Of each query the k nearest entries and their squared distances in float64, by the fastest twin.

    `recent` are the entries after those in grids: they are looked at one by one. There are at least k of all together.
    """
    m, axes = query.shape
    if not m:
        return query.new_empty(0, k, dtype=torch.int64), query.new_empty(0, k, dtype=torch.float64)
    known = all(x.dtype in (torch.float32, torch.float64) for x in (query, recent))
    fits = known and 0 < axes <= MOST_AXES and k <= MOST_NEIGHBOURS
    if choose(query, triton=fits) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.search import grid_search_triton

        return grid_search_triton.search(query, grids, recent, k)
    return grid_search_by_sorting(query, grids, recent, k)
