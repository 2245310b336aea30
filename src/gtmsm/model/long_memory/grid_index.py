"""Exact nearest neighbours of a memory that grows, in plain tensor operations: cells of a grid, for GPUs."""

from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.long_memory.rows import Rows

PER_CELL = 8
"""Entries in a cell that is not empty, about."""
RADII = {1: (1, 2, 4, 8, 16, 32, 64), 2: (1, 2, 4, 8, 16), 3: (1, 2, 4)}
"""Cells around that of a query that are searched, then more of them, by dimensions; then all of memory."""
FINEST = 2**20
"""Cells along an axis at most: three such numbers fit into one."""
AT_ONCE = 2**23
"""Pairs of query and candidate looked at together."""
FRESH = 16
"""The grid is made anew when it lacks a 16th of what it holds."""


class GridIndex:
    """Entries sorted by the cell they lie in; what came since is searched one by one.

    The first three coordinates make the grid, all of them the distance. A search ends when the k-th best of a box of
    cells is nearer than the walls of the box: everything outside is farther. Queries whose box grows too large, far
    from all entries or in the void between clusters, are compared with everything: slower, as exact.
    """

    def __init__(self, rows: Rows, buffer: int) -> None:
        self._rows, self._buffer = rows, buffer
        place = rows.like("place")
        self._axes = min(place.shape[-1], 3)
        self._keys, self._entry = place, torch.zeros(0, dtype=torch.int32, device=place.device)
        self._cell = self._start = torch.zeros(0, dtype=torch.int64, device=place.device)
        self._low = self._size = place.new_zeros(self._axes, dtype=torch.float64)
        self._width = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for held in (self._keys, self._entry, self._cell, self._start))

    @torch.no_grad()
    def search(self, query: Float[Tensor, "m P"], k: int) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
        """Of each query the k nearest entries and their squared distances in float64.

        Nearest first, and of those equally far the earlier: what sorting all distances in float64 would give.
        """
        self._catch_up()
        query, held = query.double(), len(self._entry)
        old = self._nearest_sorted(query, min(k, held))
        later = self._rows.span("place", held, len(self._rows))
        new = _nearest_of_all(later, query, min(k, len(later)))
        return _lowest(torch.cat([old[0], new[0] + held], 1), torch.cat([old[1], new[1]], 1), k)

    def _catch_up(self) -> None:
        """Sort all entries anew if too many are not."""
        held = len(self._entry)
        if len(self._rows) - held > max(self._buffer, held // FRESH):
            self._entry, self._keys = self._entry[:0], self._keys[:0]  # the old grid goes before the new one comes
            self._sort(self._rows.span("place", 0, len(self._rows)))

    def _sort(self, keys: Float[Tensor, "n P"]) -> None:
        """Cells so large that those with anything in them hold a few entries each, however entries lie."""
        gridded = keys[:, : self._axes]
        self._low = gridded.amin(0).double()
        extent = gridded.amax(0).double() - self._low
        spread = extent[extent > 0]
        axes, finest = max(1, len(spread)), max(extent.max().item() / FINEST, 1e-30)
        width = (spread.prod().item() * PER_CELL / len(keys)) ** (1 / axes) if len(spread) else 1.0
        for _ in range(4):
            self._width = max(width, finest)
            cell, order = self._cell_number(gridded, extent).sort()
            self._cell, count = cell.unique_consecutive(return_counts=True)
            crowd = len(keys) / len(self._cell)
            if PER_CELL / 2 <= crowd <= PER_CELL * 2:
                break
            width = self._width * (PER_CELL / crowd) ** (1 / axes)
        self._start = torch.cat([count.new_zeros(1), count.cumsum(0)])
        self._entry, self._keys = order.int(), keys[order]

    def _cell_number(self, gridded: Float[Tensor, "n D"], extent: Float[Tensor, "D"]) -> Int[Tensor, "n"]:
        """Cells in the order in which they are sorted: those along the last axis follow one another."""
        self._size = (extent / self._width).floor() + 1
        number = torch.zeros(len(gridded), dtype=torch.int64, device=gridded.device)
        for axis in range(self._axes):
            along = ((gridded[:, axis].double() - self._low[axis]) / self._width).floor().long()
            number = number * self._size[axis].long() + along
        return number

    def _nearest_sorted(self, query: Float[Tensor, "m P"], k: int) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
        """Boxes of cells, larger and larger, for those queries that need them."""
        index = torch.zeros(len(query), k, dtype=torch.int64, device=query.device)
        far2 = query.new_zeros(len(query), k)
        asking = torch.arange(len(query), device=query.device)
        for radius in RADII[self._axes] if k else ():
            if not len(asking):
                break
            if (2 * radius + 1) ** self._axes > 4 * len(self._cell):
                break  # there are hardly as many cells
            done = torch.zeros(len(asking), dtype=torch.bool, device=query.device)
            ranges = (2 * radius + 1) ** (self._axes - 1)
            for some in torch.arange(len(asking), device=query.device).split(max(1, AT_ONCE // ranges)):
                asked = query[asking[some]]
                first, count, wall = self._box(asked, radius)
                enough = (count.sum(1) >= k).nonzero()[:, 0]
                for part in _of_similar_size(count[enough].sum(1)):
                    part = enough[part]
                    found, at = self._nearest_in(asked[part], first[part], count[part], k)
                    index[asking[some[part]]], far2[asking[some[part]]] = found, at
                    done[some[part]] = at[:, -1].sqrt() <= wall[part]
            asking = asking[~done]
        if len(asking) and k:
            # In the order of the rows, so that of entries equally far the earlier is still the first.
            found, at = _nearest_of_all(self._keys, query[asking], k, self._entry)
            index[asking], far2[asking] = found, at
        return index, far2

    def _box(
        self, query: Float[Tensor, "m P"], radius: int
    ) -> tuple[Int[Tensor, "m ranges"], Int[Tensor, "m ranges"], Float[Tensor, "m"]]:
        """The cells around each query, as ranges of sorted entries: first and count; and how far the walls are."""
        at = ((query[:, : self._axes] - self._low) / self._width).clamp(-FINEST, 2 * FINEST)
        cell = at.floor()
        below, above = cell - radius, cell + radius
        inf = torch.full_like(at, torch.inf)
        wall = torch.minimum(
            torch.where(below > 0, at - below, inf), torch.where(above < self._size - 1, above + 1 - at, inf)
        ).amin(1)
        low, high = below[:, -1:].clamp_min(0), torch.minimum(above[:, -1:], self._size[-1] - 1)
        steps = list(product(range(-radius, radius + 1), repeat=self._axes - 1))
        around = query.new_tensor(steps).view(len(steps), self._axes - 1)
        inside = (low <= high).expand(-1, len(steps))
        number = torch.zeros(inside.shape, dtype=torch.int64, device=query.device)
        for axis in range(self._axes - 1):
            along = cell[:, axis, None] + around[:, axis]
            inside = inside & (along >= 0) & (along < self._size[axis])
            number = number * self._size[axis].long() + along.long()
        number = number * self._size[-1].long()
        first = self._start[torch.searchsorted(self._cell, number + low.long())]
        end = self._start[torch.searchsorted(self._cell, number + high.long(), right=True)]
        # A millionth of a cell is far more than rounding can have moved an entry across a wall.
        return first, torch.where(inside, end - first, 0), (wall - 1e-6) * self._width

    def _nearest_in(
        self,
        query: Float[Tensor, "m P"],
        first: Int[Tensor, "m ranges"],
        count: Int[Tensor, "m ranges"],
        k: int,
    ) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
        """The k nearest of the entries in these ranges."""
        until = count.cumsum(1)
        total = until[:, -1:]
        nth = torch.arange(int(total.max()), device=query.device).expand(len(query), -1).contiguous()
        which = torch.searchsorted(until, nth, right=True).clamp_max(count.shape[1] - 1)
        row = (nth - (until - count).gather(1, which) + first.gather(1, which)).clamp_max(len(self._entry) - 1)
        far2 = _distance2(self._keys[row], query[:, None]).masked_fill(nth >= total, torch.inf)
        return _lowest(self._entry[row].long(), far2, k)


def _of_similar_size(count: Int[Tensor, "m"]) -> list[Int[Tensor, "part"]]:
    """Queries in portions that are not too many, so that few of them wait for one with many candidates."""
    sizes, order = count.sort(descending=True)
    parts, done, ordered = [], 0, sizes.tolist()
    while done < len(ordered):
        some = max(1, AT_ONCE // max(1, ordered[done]))
        parts.append(order[done : done + some])
        done += some
    return parts


def _nearest_of_all(
    keys: Float[Tensor, "n P"], query: Float[Tensor, "m P"], k: int, entry: Int[Tensor, "n"] | None = None
) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
    """The k nearest keys, by looking at all of them; `entry` names them where they are not in order."""
    if not k:
        return query.new_zeros(len(query), 0, dtype=torch.int64), query.new_zeros(len(query), 0)
    name = torch.arange(len(keys), device=keys.device) if entry is None else entry.long()
    found = [
        _lowest(name.expand(len(some), -1), _distance2(keys, some[:, None]), k)
        for some in query.split(max(1, AT_ONCE // len(keys)))
    ]
    return torch.cat([index for index, _ in found]), torch.cat([far2 for _, far2 in found])


def _distance2(keys: Float[Tensor, "*#pairs P"], query: Float[Tensor, "*#pairs P"]) -> Float[Tensor, "*pairs"]:
    """In float64, by subtraction, coordinate by coordinate in their order: the same on every device."""
    far2 = (keys[..., 0] - query[..., 0]).square()  # a key of float32 becomes float64 before it is subtracted
    for axis in range(1, keys.shape[-1]):
        far2 += (keys[..., axis] - query[..., axis]).square()
    return far2


def _lowest(
    index: Int[Tensor, "m n"], far2: Float[Tensor, "m n"], k: int
) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
    """The k nearest, nearest first; of those equally far the lower index."""
    last = far2.topk(k, dim=1, largest=False).values[:, -1:]
    # All that are nearer than the last, and of those as far as it is, the first ones.
    turn = torch.where(far2 < last, -1, torch.where(far2 == last, index, torch.iinfo(torch.int64).max))
    chosen = turn.topk(k, dim=1, largest=False).indices
    index, far2 = index.gather(1, chosen), far2.gather(1, chosen)
    for by in ("index", "far2"):
        order = (index if by == "index" else far2).argsort(dim=1, stable=True)
        index, far2 = index.gather(1, order), far2.gather(1, order)
    return index, far2
