"""What both indices of a long memory share: how parts of very different sizes follow a memory that grows."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from gtmsm.kernels.search.grid_search import Grid
from gtmsm.model.long_memory.rows import Rows
from gtmsm.model.long_memory.tree import Tree

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
