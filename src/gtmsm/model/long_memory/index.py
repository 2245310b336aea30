"""Exact nearest neighbours of a memory that grows: k-d trees on a CPU, grids on a GPU."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.kernels.search.grid_search import Grid, grid_search, make_grid, table_of
from gtmsm.model.long_memory.rows import Rows
from gtmsm.model.long_memory.tree import Tree

SPARE = 4
"""Neighbours searched beyond those asked for, to see whether the last of them is tied with others."""
AT_ONCE = 2**22
"""Pairs of query and candidate compared together."""
SLACK = 1 + 1e-9
"""Bounds are multiplied by this, which is more than rounding could take away."""
TINY = 1e-150
"""Added to bounds, for a bound of 0; its square is above 0."""

P = TypeVar("P", Grid, Tree)
"""A part: an index of consecutive entries that never changes."""


class Index(ABC, Generic[P]):
    """The logarithmic method (Bentley & Saxe, 1980) with few, large steps.

    The newest entries, less than `buffer`, are searched one by one. A full buffer becomes a part, together with all
    parts that are less than `ratio` times as large as the new one. So sizes fall by `ratio` from part to part: 10^7
    entries are at most three parts, and an entry moves about ratio / 2 times for each of them. The most expensive step
    builds one part of everything, for k-d trees in seconds at 10^7. A search does this work, writing does not.
    """

    def __init__(self, rows: Rows, buffer: int, ratio: int) -> None:
        self._rows, self._buffer, self._ratio = rows, buffer, ratio
        self._parts: list[P] = []
        self._covered = 0
        """Number of entries in parts."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self._parts)

    @property
    def sizes(self) -> list[int]:
        """Number of entries in each part, and in the buffer."""
        self._catch_up()
        return [*map(len, self._parts), len(self._rows) - self._covered]

    def _catch_up(self) -> None:
        """Take in the entries written since the last search."""
        end = len(self._rows)
        if end - self._covered < self._buffer:
            return
        while self._parts and len(self._parts[-1]) < self._ratio * (end - self._covered):
            self._covered = self._parts.pop().first  # freed before the new part is built
        self._parts.append(self._build(self._covered, end))
        self._covered = end

    @abstractmethod
    def _build(self, first: int, end: int) -> P:
        """A part of the entries from `first` to `end`."""


class TreeIndex(Index[Tree]):
    """Older entries in k-d trees, the newest in a buffer."""

    def __init__(self, rows: Rows, buffer: int, ratio: int) -> None:
        super().__init__(rows, buffer, ratio)
        self._seen = 0  # entries in trees and in the buffer
        self._recent = np.empty((rows.like("place").shape[-1], buffer))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._recent.nbytes + super().nbytes

    def search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k entries nearest to each row of `query`, as by a stable sort, and their squared distances in float64."""
        self._catch_up()
        candidates = (k + SPARE) * (k if any(tree.crowds for tree in self._parts) else 8)
        portion = max(1, AT_ONCE // max(self._seen - self._covered, candidates))
        if len(query) <= portion:
            return self._search(query, k)
        found = [self._search(query[i : i + portion], k) for i in range(0, len(query), portion)]
        return np.concatenate([index for index, _ in found]), np.concatenate([far2 for _, far2 in found])

    def _build(self, first: int, end: int) -> Tree:
        return Tree(first, self._rows.doubles("place", first, end))

    def _catch_up(self) -> None:
        end = len(self._rows)
        if self._seen == end:
            return
        super()._catch_up()
        first = max(self._seen, self._covered)
        if first < end:
            inside = slice(first - self._covered, end - self._covered)
            self._recent[:, inside] = self._rows.span("place", first, end).numpy().T
        self._seen = end

    def _search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """`search` for a few queries."""
        wide = k + SPARE
        while True:
            bound = np.full(len(query), np.inf)  # no entry farther away than this is among the k nearest
            indices, squares, limits = [], [], []
            for tree in self._parts:
                index, far2, far = tree.nearest(query, wide, k, bound.max(initial=0) * SLACK + TINY)
                indices.append(index)
                squares.append(far2)
                limits.append(far[:, -1])
                if k <= far.shape[1]:
                    bound = np.minimum(bound, far[:, k - 1])
            if self._seen > self._covered:
                index, far2, limit = self._nearest_recent(query, wide, bound)
                indices.append(index)
                squares.append(far2)
                limits.append(limit)
            index, far2 = np.concatenate(indices, 1), np.concatenate(squares, 1)
            best = np.lexsort((index, far2), axis=1)[:, :k]
            row = np.arange(len(query))[:, None]
            index, far2 = index[row, best], far2[row, best]
            reach = np.sqrt(far2[:, -1]) * SLACK
            if all((limit > reach).all() for limit in limits):
                return index, far2
            wide *= 2  # some part may have left out entries as far as the last one

    def _nearest_recent(
        self, query: np.ndarray, wide: int, bound: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nearest of the buffer, and the distance up to which none of it is missing."""
        recent = self._recent[:, : self._seen - self._covered]
        far2 = recent[0] - query[:, :1]
        far2 *= far2
        for axis in range(1, len(recent)):
            step = recent[axis] - query[:, axis : axis + 1]
            step *= step
            far2 += step
        near = np.flatnonzero((far2 <= ((bound * SLACK + TINY) ** 2)[:, None]).any(0))
        far2, index, limit = far2[:, near], near[None], np.full(len(query), np.inf)
        if len(near) > wide:
            some = np.argpartition(far2, wide - 1, axis=1)[:, :wide]
            index, far2 = near[some], np.take_along_axis(far2, some, 1)
            limit = np.sqrt(far2.max(1))
        return np.broadcast_to(index + self._covered, far2.shape), far2, limit


class GridIndex(Index[Grid]):
    """Older entries in grids, the newest in a buffer; a search never waits for the device."""

    def __init__(self, rows: Rows, buffer: int, ratio: int) -> None:
        super().__init__(rows, buffer, ratio)
        self._table = table_of([], rows.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has grids at other addresses."""
        self.__dict__.update(state)
        self._table = table_of(self._parts, self._rows.device)

    def search(self, query: Float[Tensor, "m P"], k: int) -> tuple[Int64[Tensor, "m K"], Float[Tensor, "m K"]]:
        """The k entries nearest to each query, as by a stable sort, and their squared distances in float64."""
        self._catch_up()
        return grid_search(query, self._rows.span("place", 0, len(self._rows)), self._table, self._covered, k)

    def _build(self, first: int, end: int) -> Grid:
        grid = make_grid(self._rows.span("place", first, end), first)
        self._table = table_of([*self._parts, grid], self._rows.device)
        return grid
