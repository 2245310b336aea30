"""Exact nearest neighbours of a memory that grows: k-d trees on a CPU, grids on a GPU."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.kernels.search.grid_search import grid_search
from gtmsm.model.long_memory.grid import Grid, make_grid, table_of
from gtmsm.model.long_memory.rows import Rows, is_far
from gtmsm.model.long_memory.tree import Tree

SPARE = 4
"""Number of neighbours searched beyond those asked for, to see whether the last one is tied with others."""
NEWEST_CODES = 512
"""Size of the buffer of codes."""
WIDE = 32
"""Size of codes beyond which a tree is no faster than comparing all of them."""
AT_ONCE = 2**22
"""Number of pairs of query and candidate that are compared at once."""
SLACK = 1 + 1e-9
"""Factor of bounds, which exceeds any rounding error."""
TINY = 1e-150
"""Added to bounds, in case a bound is 0; its square is above 0."""

AnyIndex = TypeVar("AnyIndex", bound="Index")


class State(NamedTuple):
    """All that a search reads; a search that has begun keeps it while the index grows."""

    parts: tuple[Any, ...]
    """Trees or grids of consecutive entries, which never change."""
    covered: int
    """Number of entries in parts."""
    beside: Any
    """A buffer of the newest entries, or a table of the parts."""


class Index(ABC):
    """The logarithmic method (Bentley & Saxe, 1980) with few, large steps.

    The newest entries, fewer than `buffer`, are searched one by one. A full buffer becomes a new part, together with
    all parts that are less than `ratio` times as large as it. So sizes fall by `ratio` from part to part: 10^7 entries
    are at most three parts, and an entry moves about ratio / 2 times for each of them. The most expensive step builds
    one part of everything; for k-d trees, this takes seconds at 10^7. Searches do this work, writes do not. Meanwhile
    searches in other threads wait for it; entries can be written.
    """

    def __init__(self, rows: Rows, buffer: int, ratio: int, parts: tuple[Any, ...] = (), column: str = "place") -> None:
        self.rows, self._buffer, self._ratio, self._column = rows, buffer, ratio, column
        self._building = Lock()
        self._state = self._state_of(parts)
        self._by_code: TreeIndex | None = None
        self.first: Any = None
        """The first entry, cached once it was asked for; it never changes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has grids at other addresses, and a lock of its own."""
        return type(self), (self.rows, self._buffer, self._ratio, self._state.parts, self._column)

    def snapshot(self: AnyIndex, end: int, without: Collection[str] = ()) -> AnyIndex:
        """An index of `Rows.snapshot`, which shares the parts."""
        (state, end), codes = self._caught_up(end), self._by_code
        of_codes, end = (None, end) if codes is None else codes._caught_up(end)
        other = type(self)(self.rows.snapshot(end, without), self._buffer, self._ratio, state.parts, self._column)
        if of_codes is not None:
            other._by_code = TreeIndex(other.rows, NEWEST_CODES, self._ratio, of_codes.parts, "mean")
        return other

    def look_alike(self, code: Float[Tensor, "m Z"], k: int, end: int) -> tuple[Int64[Tensor, "m K"], int]:
        """The k of `end` entries whose codes are nearest to each of these; and `end`, or more if more were searched."""
        codes = self.by_code()
        if codes is None:
            return self.rows.nearest("mean", code, k, end), end
        _, end = codes._caught_up(end)
        return torch.from_numpy(codes.search(code.double().numpy(), k, end)[0]), end

    def by_code(self) -> "TreeIndex | None":
        """An index of the codes of these entries, which snapshots share; None on a GPU, and for codes above `WIDE`."""
        if self._by_code is None and not is_far(self.rows.device) and self.rows.sizes[1] <= WIDE:
            with self._building:
                self._by_code = self._by_code or TreeIndex(self.rows, NEWEST_CODES, self._ratio, column="mean")
        return self._by_code

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        codes = 0 if self._by_code is None else self._by_code.nbytes
        return codes + self._state.beside.nbytes + sum(part.nbytes for part in self._state.parts)

    @property
    def sizes(self) -> list[int]:
        """Number of entries in each part, and in the buffer."""
        state, end = self._caught_up(len(self.rows))
        return [*map(len, state.parts), end - state.covered]

    def _caught_up(self, end: int) -> tuple[State, int]:
        """A state for the first `end` entries, or for more if another thread has already covered more; and how many."""
        while end - (state := self._state).covered >= self._buffer:
            del state  # or else parts could not be freed
            with self._building:
                if end - self._state.covered >= self._buffer:
                    self._take_in(end)
        return state, max(end, state.covered)

    def _take_in(self, end: int) -> None:
        """Make a part of the buffer and of the parts that it replaces."""
        parts, covered = list(self._state.parts), self._state.covered
        while parts and len(parts[-1]) < self._ratio * (end - covered):
            covered = parts.pop().first
        self._state = self._state_of(tuple(parts))  # the others are freed before the new part is built
        self._state = self._state_of((*parts, self._build(covered, end)))

    def _state_of(self, parts: tuple[Any, ...]) -> State:
        """A state with these parts and an empty buffer."""
        covered = parts[-1].first + len(parts[-1]) if parts else 0
        return State(parts, covered, self._beside(parts, covered))

    @abstractmethod
    def _beside(self, parts: tuple[Any, ...], covered: int) -> Any:
        """What a search needs besides these parts."""

    @abstractmethod
    def _build(self, first: int, end: int) -> Any:
        """A part of the entries from `first` to `end`."""


class Buffer:
    """The newest entries of a column, from `first` on, axis by axis in float64."""

    def __init__(self, column: str, first: int, axes: int, size: int) -> None:
        self._column, self._first, self._held, self._keys = column, first, 0, np.empty((axes, size))
        self.nbytes = self._keys.nbytes

    def up_to(self, end: int, rows: Rows) -> np.ndarray:
        """The entries before `end`. Any thread that searches adds what is missing: all write the same."""
        held, wanted = self._held, end - self._first
        if held < wanted:
            self._keys[:, held:wanted] = rows.span(self._column, self._first + held, end).numpy().T
            self._held = wanted
        return self._keys[:, :wanted]


class TreeIndex(Index):
    """Older entries in k-d trees, the newest in a buffer."""

    @property
    def _latest(self) -> bool:
        """Whether the later of equally near entries is taken."""
        return self._column == "mean"

    def search(self, query: np.ndarray, k: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The k of `end` entries nearest to each row of `query`, and their squared distances in float64.

        Of entries equally near, the earlier come first; with codes the later, whose poses have been corrected more.
        """
        state, end = self._caught_up(end)
        recent = state.beside.up_to(end, self.rows)
        candidates = (k + SPARE) * (k if any(tree.crowds for tree in state.parts) else 8)
        portion = max(1, AT_ONCE // max(recent.shape[1], candidates))
        if len(query) <= portion:
            return self._search(query, k, state, recent)
        found = [self._search(query[i : i + portion], k, state, recent) for i in range(0, len(query), portion)]
        return np.concatenate([index for index, _ in found]), np.concatenate([far2 for _, far2 in found])

    def _build(self, first: int, end: int) -> Tree:
        return Tree(first, self.rows.doubles(self._column, first, end))

    def _beside(self, parts: tuple[Tree, ...], covered: int) -> Buffer:
        return Buffer(self._column, covered, self.rows.like(self._column).shape[-1], self._buffer)

    def _search(self, query: np.ndarray, k: int, state: State, recent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`search` for a few queries."""
        wide = k + SPARE
        while True:
            bound = np.full(len(query), np.inf)  # no entry farther away than this is among the k nearest
            indices, squares, limits = [], [], []
            for tree in state.parts:
                index, far2, far = tree.nearest(query, wide, k, bound.max(initial=0) * SLACK + TINY, self._latest)
                indices.append(index)
                squares.append(far2)
                limits.append(far[:, -1])
                if k <= far.shape[1]:
                    bound = np.minimum(bound, far[:, k - 1])
            if recent.shape[1]:
                index, far2, limit = self._nearest_recent(query, wide, bound, recent)
                indices.append(index + state.covered)
                squares.append(far2)
                limits.append(limit)
            index, far2 = np.concatenate(indices, 1), np.concatenate(squares, 1)
            best = np.lexsort((-index if self._latest else index, far2), axis=1)[:, :k]
            row = np.arange(len(query))[:, None]
            index, far2 = index[row, best], far2[row, best]
            reach = np.sqrt(far2[:, -1]) * SLACK
            if all((limit > reach).all() for limit in limits):
                return index, far2
            wide *= 2  # some part may have left out entries as far as the last one

    def _nearest_recent(
        self, query: np.ndarray, wide: int, bound: np.ndarray, recent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nearest entries of the buffer, from 0 on; squared distances; and the distance below which none is missing."""
        if len(query) == 1:  # the usual query of a single agent: the same sums in fewer calls
            step = recent - query.T
            step *= step
            far2 = step.sum(0)[None]
        else:
            far2 = recent[0] - query[:, :1]
            far2 *= far2
            for axis in range(1, len(recent)):
                step = recent[axis] - query[:, axis : axis + 1]
                step *= step
                far2 += step
        near = np.flatnonzero((far2 <= ((bound * SLACK + TINY) ** 2)[:, None]).any(0))
        far2, index, limit = far2[:, near], near[None], np.full(len(query), np.inf)
        if len(near) > wide:
            order = np.lexsort((np.broadcast_to(-near if self._latest else near, far2.shape), far2), axis=1)
            index, sorted2 = near[order[:, :wide]], np.take_along_axis(far2, order, 1)
            far2, left = sorted2[:, :wide], sorted2[:, wide:]
            # Entries that are left out and as far as the last one kept come after it in the order.
            limit = np.sqrt(np.where(left > far2[:, -1:], left, np.inf).min(1))
        return np.broadcast_to(index, far2.shape), far2, limit


class GridIndex(Index):
    """Older entries in grids, the newest in the rows alone; a search never synchronises with the device."""

    def search(
        self, query: Float[Tensor, "m P"], k: int, end: int
    ) -> tuple[Int64[Tensor, "m K"], Float[Tensor, "m K"]]:
        """The k of `end` entries nearest to each query, as by a stable sort, and squared distances in float64."""
        state, end = self._caught_up(end)
        return grid_search(query, self.rows.span("place", 0, end), state.beside, state.covered, k)

    def _build(self, first: int, end: int) -> Grid:
        return make_grid(self.rows.span("place", first, end), first)

    def _beside(self, parts: tuple[Grid, ...], covered: int) -> Tensor:
        return table_of(parts, self.rows.device)
