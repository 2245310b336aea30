"""Exact nearest neighbours of a memory that grows, on a CPU: a few k-d trees of very different sizes."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

from gtmsm.model.long_memory.rows import Rows

LEAF = 32
"""Places in a leaf of a tree; more of them only where they are all the same place."""
SPARE = 4
"""Neighbours looked for beyond those asked for, to see whether the last of them is tied with others."""
AT_ONCE = 2**22
"""Pairs of query and candidate looked at together."""
SLACK = 1 + 1e-9
"""Bounds are kept by a little more than rounding could take away."""
MOVED = 2**16
"""Places that are moved together where some are left out."""
TINY = 1e-150
"""The same of a bound of 0; its square is a number still."""


class TreeIndex:
    """The logarithmic method (Bentley & Saxe, 1980) with few, large steps.

    The newest entries wait in a buffer, which is searched one by one. A full buffer becomes a tree, and swallows all
    trees that are less than `ratio` times as large as what it has become. So sizes fall by `ratio` from tree to tree:
    10^7 entries are at most three trees, and an entry moves about ratio / 2 times for each of them. The dearest
    insertion builds one tree of everything, in seconds at 10^7; it happens when somebody searches, not when somebody
    writes. Trees are built from the rows, so the old ones go before the new one comes.
    """

    def __init__(self, rows: Rows, buffer: int, ratio: int) -> None:
        self._rows, self._buffer, self._ratio = rows, buffer, ratio
        self._trees: list[_Tree] = []
        self._covered = self._held = 0  # entries in trees; entries after these, in the buffer
        self._recent = np.empty((rows.like("place").shape[-1], buffer))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._recent.nbytes + sum(tree.nbytes for tree in self._trees)

    @property
    def sizes(self) -> list[int]:
        """Entries in each tree, and in the buffer."""
        self._catch_up()
        return [len(tree) for tree in self._trees] + [self._held]

    def search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each row of `query`, in float64, the k nearest entries and their squared distances.

        Nearest first, and of those equally far the earlier: what sorting all distances in float64 would give.
        """
        self._catch_up()
        if len(query) == 1:
            return self._search_one(query, k)
        portion = max(1, AT_ONCE // max(self._held, (k + SPARE) * (k if any(t.crowds for t in self._trees) else 8)))
        if len(query) <= portion:
            return self._search(query, k)
        found = [self._search(query[i : i + portion], k) for i in range(0, len(query), portion)]
        return np.concatenate([index for index, _ in found]), np.concatenate([far2 for _, far2 in found])

    def _catch_up(self) -> None:
        """Take in what was written since somebody last searched."""
        end, first = len(self._rows), self._covered + self._held
        if first == end:
            return
        if end - self._covered < self._buffer:
            self._recent[:, self._held : end - self._covered] = self._rows.span("place", first, end).numpy().T
            self._held = end - self._covered
            return
        self._held = 0
        while self._trees and len(self._trees[-1]) < self._ratio * (end - self._covered):
            self._covered = self._trees.pop().first
        self._trees.append(_Tree(self._covered, self._rows.doubles("place", self._covered, end)))
        self._covered = end

    def _search_one(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """`_search` for one query, in plain numbers: for so few, arrays cost more than what is done with them."""
        point, wide = query[0].tolist(), k + SPARE
        while True:
            bound, limit = math.inf, math.inf
            found: list[tuple[float, int]] = []
            for tree in self._trees:
                far, rows = tree.query_one(query, wide, bound * SLACK + TINY)
                limit = min(limit, far[-1])
                if k <= len(far):
                    bound = min(bound, far[k - 1])
                reach = bound * SLACK + TINY
                near = [row for row, at in zip(rows, far, strict=True) if at <= reach and at < math.inf]
                found += tree.entries(near, point, k)
            if self._held:
                index, far2, recent_limit = self._nearest_recent(query, wide, np.array([bound]))
                limit = min(limit, float(recent_limit[0]))
                found += zip(far2[0].tolist(), index[0].tolist(), strict=True)
            found.sort()
            del found[k:]
            if limit > math.sqrt(found[-1][0]) * SLACK:
                return np.array([[index for _, index in found]]), np.array([[far2 for far2, _ in found]])
            wide *= 2

    def _search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        wide = k + SPARE
        while True:
            bound = np.full(len(query), np.inf)  # no entry farther away than this is among the k nearest
            indices, squares, limits = [], [], []
            for tree in self._trees:
                index, far2, far = tree.nearest(query, wide, k, bound.max(initial=0) * SLACK + TINY)
                indices.append(index)
                squares.append(far2)
                limits.append(far[:, -1])
                if k <= far.shape[1]:
                    bound = np.minimum(bound, far[:, k - 1])
            if self._held:
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
            wide *= 2  # somewhere entries as far as the last one may have been left out

    def _nearest_recent(
        self, query: np.ndarray, wide: int, bound: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nearest of the buffer, and the distance up to which none of it is missing."""
        far2 = self._recent[0, : self._held] - query[:, :1]
        far2 *= far2
        for axis in range(1, len(self._recent)):
            step = self._recent[axis, : self._held] - query[:, axis : axis + 1]
            step *= step
            far2 += step
        near = np.flatnonzero((far2 <= ((bound * SLACK + TINY) ** 2)[:, None]).any(0))
        far2, index, limit = far2[:, near], near[None], np.full(len(query), np.inf)
        if len(near) > wide:
            some = np.argpartition(far2, wide - 1, axis=1)[:, :wide]
            index, far2 = near[some], np.take_along_axis(far2, some, 1)
            limit = np.sqrt(far2.max(1))
        return np.broadcast_to(index + self._covered, far2.shape), far2, limit


class _Tree:
    """The entries from `first` on, as a k-d tree that never changes.

    A place where an agent stands still for hours is one point of the tree: a leaf would otherwise hold thousands of
    equal points, and every search that comes by would look at all of them.
    """

    def __init__(self, first: int, keys: np.ndarray) -> None:
        self.first, self._length = first, len(keys)
        self._kept: np.ndarray | None = None  # the entry of each point, where there are fewer points than entries
        self._crowd_starts = self._crowd_members = np.zeros(0, np.uint32)
        self._tree, self._keys, self._room = _build(keys), keys, keys.nbytes
        runs = _equal_runs(keys, self._tree.indices)
        if len(runs):
            self._gather_crowds(keys, runs)

    def _gather_crowds(self, keys: np.ndarray, runs: np.ndarray) -> None:
        """Of every run of equal places keep the earliest; they come last, to be told from the others."""
        order = self._tree.indices
        crowds = [np.sort(order[begin:end]) for begin, end in runs]
        del self._tree, order
        single = np.ones(self._length, bool)
        for crowd in crowds:
            single[crowd] = False
        first = [crowd[0] for crowd in crowds]
        kept = np.concatenate([np.flatnonzero(single), first])
        self._kept = kept.astype(np.uint32)
        self._crowd_starts = np.cumsum([0, *map(len, crowds)]).astype(np.uint32)
        self._crowd_members = np.concatenate(crowds).astype(np.uint32)
        del single, crowds
        shared, alone = keys[first], len(kept) - len(first)
        for i in range(0, alone, MOVED):  # in place: they only ever move to the front
            moved = kept[i : min(i + MOVED, alone)]
            keys[i : i + len(moved)] = keys[moved]
        keys[alone : len(kept)] = shared
        self._keys = keys[: len(kept)]
        if len(kept) < len(keys) / 2:
            self._keys = self._keys.copy()
            self._room = self._keys.nbytes
        del kept
        self._tree = _build(self._keys)

    def __len__(self) -> int:
        return self._length

    @property
    def crowds(self) -> int:
        """Places at which many entries are."""
        return max(0, len(self._crowd_starts) - 1)

    @property
    def nbytes(self) -> int:
        """Bytes held; a node is nine words of C++."""
        tree, kept = self._tree, 0 if self._kept is None else self._kept.nbytes
        crowds = self._crowd_starts.nbytes + self._crowd_members.nbytes
        return int(self._room + tree.indices.nbytes + 72 * tree.size + kept + crowds)

    def query_one(self, query: np.ndarray, wide: int, bound: float) -> tuple[list[float], list[int]]:
        """Distances and points nearest to one query; what is missing, or not below `bound`, is infinitely far."""
        far, point = self._tree.query(query[0], min(wide, len(self._keys) + 1), 0, 2.0, bound)
        return far.tolist(), point.tolist()

    def entries(self, points: list[int], query: list[float], k: int) -> list[tuple[float, int]]:
        """The entries at these points (of a crowd the first k), after their squared distances from `query`."""
        found = []
        for point in points:
            far2 = 0.0
            for key, asked in zip(self._keys[point].tolist(), query, strict=True):
                far2 += (key - asked) * (key - asked)
            if self._kept is None:
                found.append((far2, self.first + point))
            elif (crowd := point - len(self._keys) + self.crowds) < 0:
                found.append((far2, self.first + int(self._kept[point])))
            else:
                begin, end = int(self._crowd_starts[crowd]), int(self._crowd_starts[crowd + 1])
                members = self._crowd_members[begin : min(end, begin + k)]
                found += [(far2, self.first + member) for member in members.tolist()]
        return found

    def nearest(self, query: np.ndarray, wide: int, k: int, bound: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nearest `wide` points: their entries (of a crowd the first k), squared distances; distances by point.

        What is missing, or not below `bound`, is infinitely far.
        """
        keys = self._keys
        # One more than there are: its distance, infinite, says that none was left out.
        far, point = self._tree.query(query, min(wide, len(keys) + 1), 0, 2.0, bound)
        step = keys.take(point, 0, mode="clip") - query[:, None]
        far2 = (step * step).sum(-1)
        far2[far == np.inf] = np.inf
        if self._kept is None:
            return point + self.first, far2, far
        index = self._kept.take(point, mode="clip").astype(np.int64)
        which = point - (len(keys) - self.crowds)
        crowded = (which >= 0) & (far < np.inf)
        if crowded.any():
            which = np.where(crowded, which, 0)
            member = self._crowd_starts[which][..., None] + np.arange(k)
            there = crowded[..., None] & (member < self._crowd_starts[which + 1][..., None])
            there[..., 0] = True
            more = self._crowd_members.take(member, mode="clip").astype(np.int64)
            more[..., 0] = index
            far2 = np.where(there, far2[..., None], np.inf).reshape(len(query), -1)
            index = more.reshape(len(query), -1)
        return index + self.first, far2, far


def _build(keys: np.ndarray) -> "cKDTree":
    """Sliding midpoints and loose boxes: half the time of a balanced tree, and searched as fast."""
    from scipy.spatial import cKDTree  # here: it takes a fifth of a second, and whoever asks for help should not wait

    return cKDTree(keys, leafsize=LEAF, balanced_tree=False, compact_nodes=False)


def _equal_runs(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Where in the order of a tree's leaves the same place comes very often: from, to; none is much of the time.

    Equal places are never split, so more of them than a leaf holds are a leaf of their own, in one run.
    """
    probe = keys[order[::LEAF]]
    if not (probe[1:] == probe[:-1]).all(1).any():
        return np.zeros((0, 2), np.int64)
    other = np.zeros(len(order) - 1, bool)
    for axis in range(keys.shape[1]):
        column = keys[:, axis][order]
        other |= column[1:] != column[:-1]
    edge = np.concatenate([[0], np.flatnonzero(other) + 1, [len(order)]])
    del other, column
    often = np.flatnonzero(np.diff(edge) > LEAF)
    return np.stack([edge[often], edge[often + 1]], 1)
