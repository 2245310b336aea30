"""Exact nearest neighbours of a memory that grows, for GPUs: a few grids, and a search of all of them in one launch."""

from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.search.grid_search import Grids, grid_search, make_grid
from gtmsm.model.long_memory.rows import Rows


class GridIndex:
    """Older entries in grids; the newest, up to `buffer` of them, one by one.

    Grids grow as the trees of `TreeIndex` do: when the buffer is full it becomes a grid, together with all grids that
    are not `ratio` times as large as what it has become. Who asks waits for nothing but that, and never for the device:
    how many entries there are the host knows by itself.
    """

    def __init__(self, rows: Rows, buffer: int, ratio: int) -> None:
        self._rows, self._buffer, self._ratio = rows, buffer, ratio
        self._covered = 0  # entries in grids
        self._grids = Grids.of((), rows.device)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(grid.nbytes for grid in self._grids.grids)

    @property
    def sizes(self) -> list[int]:
        """Entries in each grid, and in the buffer."""
        self._catch_up()
        return [len(grid.entry) for grid in self._grids.grids] + [len(self._rows) - self._covered]

    def search(self, query: Float[Tensor, "m P"], k: int) -> tuple[Int[Tensor, "m K"], Float[Tensor, "m K"]]:
        """Of each query the k nearest entries and their squared distances in float64.

        Nearest first, and of those equally far the earlier: what sorting all distances in float64 would give.
        """
        self._catch_up()
        places = self._rows.span("place", 0, len(self._rows))
        return grid_search(query, places, self._grids.where, self._covered, k)

    def _catch_up(self) -> None:
        """Take in what was written since somebody last searched."""
        end = len(self._rows)
        if end - self._covered < self._buffer:
            return
        grids = list(self._grids.grids)
        while grids and len(grids[-1].entry) < self._ratio * (end - self._covered):
            self._covered = grids.pop().first
        self._grids = Grids(tuple(grids), self._grids.where)  # the old ones go before the new one comes
        grids.append(make_grid(self._rows.span("place", self._covered, end), self._covered))
        self._grids, self._covered = Grids.of(grids, self._rows.device), end
