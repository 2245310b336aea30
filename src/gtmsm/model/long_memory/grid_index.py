"""Exact nearest neighbours of a memory that grows, on a GPU: a few grids, and one launch that searches all of them."""

from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.kernels.search.grid_search import Grid, grid_search, make_grid, table_of
from gtmsm.model.long_memory.index import Index
from gtmsm.model.long_memory.rows import Rows


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
