"""A k-d tree of consecutive entries of a long memory."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

LEAF = 32
"""Maximum number of places in a leaf of a tree, unless they are equal."""
MOVED = 2**16
"""Number of keys that are copied at a time when some are removed."""


class Tree:
    """An immutable k-d tree of the entries from `first` on.

    Very many entries at the same place, a crowd, are one point of the tree. Otherwise they would be one leaf, and each
    search that reaches it would compare all of them.
    """

    def __init__(self, first: int, keys: np.ndarray) -> None:
        self.first, self._length = first, len(keys)
        self._kept: np.ndarray | None = None  # the entry of each point, where there are fewer points than entries
        self._crowd_starts = self._crowd_members = np.zeros(0, np.uint32)
        self._tree, self._keys, self._key_bytes = _build(keys), keys, keys.nbytes
        runs = _equal_runs(keys, self._tree.indices)
        if len(runs):
            self._gather_crowds(keys, runs)

    def _gather_crowds(self, keys: np.ndarray, runs: np.ndarray) -> None:
        """Keep the earliest entry of each run of equal places, after all other points."""
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
        for i in range(0, alone, MOVED):  # in place: keys only move to the front
            moved = kept[i : min(i + MOVED, alone)]
            keys[i : i + len(moved)] = keys[moved]
        keys[alone : len(kept)] = shared
        self._keys = keys[: len(kept)]
        if len(kept) < len(keys) / 2:
            self._keys = self._keys.copy()
            self._key_bytes = self._keys.nbytes
        del kept
        self._tree = _build(self._keys)

    def __len__(self) -> int:
        return self._length

    @property
    def crowds(self) -> int:
        """Number of places with very many entries."""
        return max(0, len(self._crowd_starts) - 1)

    @property
    def nbytes(self) -> int:
        """Bytes held; a node is nine words of C++."""
        tree, kept = self._tree, 0 if self._kept is None else self._kept.nbytes
        crowds = self._crowd_starts.nbytes + self._crowd_members.nbytes
        return int(self._key_bytes + tree.indices.nbytes + 72 * tree.size + kept + crowds)

    def nearest(
        self, query: np.ndarray, wide: int, k: int, bound: float, latest: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries at the nearest `wide` points, their squared distances, and the distances of the points.

        A crowd gives its first k entries or, with `latest`, its last k. Points that are missing, or not nearer than
        `bound`, are infinitely far.
        """
        keys = self._keys
        # Ask for up to one more than there are: its infinite distance says that none was left out.
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
            begin, end = (self._crowd_starts[which + i].astype(np.int64)[..., None] for i in (0, 1))
            member = (np.maximum(begin, end - k) if latest else begin) + np.arange(k)
            there = crowded[..., None] & (member < end)
            there[..., 0] = True
            more = self._crowd_members.take(member, mode="clip").astype(np.int64)
            more[..., 0] = np.where(crowded, more[..., 0], index)
            far2 = np.where(there, far2[..., None], np.inf).reshape(len(query), -1)
            index = more.reshape(len(query), -1)
        return index + self.first, far2, far


def _build(keys: np.ndarray) -> "cKDTree":
    """A tree with sliding midpoints and loose boxes: built in half the time of a balanced one, and searched as fast."""
    from scipy.spatial import cKDTree  # imported late: it takes a fifth of a second

    return cKDTree(keys, leafsize=LEAF, balanced_tree=False, compact_nodes=False)


def _equal_runs(keys: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Begin and end of the runs of equal places, in the order of a tree's leaves, that are longer than a leaf.

    A tree never splits equal places: more of them than a leaf holds are a leaf of their own, in one run.
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
