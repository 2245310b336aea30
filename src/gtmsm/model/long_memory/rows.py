"""Tables that grow together: in blocks, so that nothing is copied to make room and little room is wasted.

On a GPU there is one block, which is copied to make room: that takes it no time, and rows of many blocks could not be
looked up without waiting for it to say which. Single rows wait on the host until somebody reads.
"""

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALLEST = 64
"""Rows of the first blocks."""
WASTE = 16
"""A new block holds a 16th of what there is: no more than that is ever room for nothing."""

FEW = 64
"""Rows that are sooner taken one by one."""

WAITING = 256
"""Single rows that wait at most."""

LARGE = 2**20
"""Bytes from which a table gets pages of its own."""


def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU; a large one takes no page before it is written to, and gives all back at its end.

    Trees come and go by the hundred while a memory grows: on the heap they would leave holes as large as themselves.
    """
    size = prod(shape) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def is_far(device: torch.device) -> bool:
    """Whether the host cannot write there by itself."""
    return device.type != "cpu"


def _settled(column: Tensor, first: int, end: int) -> Tensor:
    """Rows that are never written to again, and free of the count of changes of those that are.

    A graph keeps what was handed out, and would otherwise take the next row for a change of all before it.
    """
    return column.data[first:end]


class Rows:
    """Columns of rows by name (`place`, `mean`, ...), which only ever get more."""

    def __init__(self, like: dict[str, Tensor]) -> None:
        with torch.inference_mode(False):  # new ones: a part of what was given would hold on to all of it
            self._like = {name: column.new_empty(0, *column.shape[1:]) for name, column in like.items()}
        self.device = next(iter(like.values())).device
        self._length = self._capacity = self._first = 0
        self._starts: list[int] = []
        self._blocks: list[dict[str, Tensor]] = []
        self._open: dict[str, np.ndarray] = {}  # the last block, for writers who cannot wait for a tensor
        self._far = is_far(self.device)
        self._waiting, self._queue = 0, dict[str, Tensor]()  # single rows on their way to a GPU

    def __len__(self) -> int:
        return self._length + self._waiting

    def __getstate__(self) -> dict[str, Any]:
        """Without the queue and what is open: copies of these would no longer belong to the rows."""
        self._send()
        return self.__dict__ | {"_open": {}, "_queue": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with torch.inference_mode(False):  # who copies may be merely looking: nobody else could write to that
            self._blocks = [
                {name: column.clone() if column.is_inference() else column for name, column in block.items()}
                for block in self._blocks
            ]
        self._open_last()

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self._like)

    @property
    def width(self) -> int:
        """How many columns there are."""
        return len(self._like)

    @property
    def nbytes(self) -> int:
        """Bytes held, empty room and the queue included."""
        return sum(column.nbytes for block in (*self._blocks, self._queue) for column in block.values())

    def like(self, name: str) -> Tensor:
        """A column of this kind without rows."""
        return self._like[name]

    def drop(self, name: str) -> None:
        """Forget a column."""
        for held in (self._like, *self._blocks):
            del held[name]

    def append(self, rows: dict[str, Tensor]) -> None:
        """More rows, after those there are."""
        self._send()
        count, done = len(rows["place"]), 0
        while done < count:
            if self._length == self._capacity:
                self._add_block(count - done)
            at = self._length - self._first
            some = min(count - done, self._capacity - self._length)
            for name, column in self._blocks[-1].items():
                column[at : at + some].copy_(rows[name][done : done + some], non_blocking=True)
            done += some
            self._length += some

    def append_one(self, place: object, mean: object, log_var: object) -> None:
        """One more row of these three columns, from anything that NumPy can write."""
        if self._far:
            self._wait_in_line(place, mean, log_var)
            return
        if self._length == self._capacity:
            self._add_block(1)
        at, block = self._length - self._first, self._open
        block["place"][at] = place
        block["mean"][at] = mean
        block["log_var"][at] = log_var
        self._length += 1

    def _wait_in_line(self, *row: object) -> None:
        """A row that is sent together with others, later."""
        if self._waiting == WAITING:
            self._send()
        if not self._waiting:
            # A new one each time, in memory that a GPU reads by itself: the last one may still be on its way.
            self._queue = {
                name: torch.empty(WAITING, *like.shape[1:], dtype=like.dtype, pin_memory=self.device.type == "cuda")
                for name, like in self._like.items()
            }
            self._open = {name: column.numpy() for name, column in self._queue.items()}
        for name, value in zip(("place", "mean", "log_var"), row, strict=True):
            self._open[name][self._waiting] = value
        self._waiting += 1

    def _send(self) -> None:
        """Off with the rows that wait; nobody waits for them to arrive."""
        if self._waiting:
            rows = {name: column[: self._waiting] for name, column in self._queue.items()}
            self._waiting = 0
            self.append(rows)

    def _add_block(self, wanted: int) -> None:
        """Room for as many rows as are wanted, and for some more."""
        size = max(wanted, self._length // WASTE, SMALLEST)
        if self._far:
            self._enlarge(self._length + size)
            return
        with torch.inference_mode(False):  # whoever writes first may be merely looking, and the next may not
            block = {name: room((size, *like.shape[1:]), like.dtype) for name, like in self._like.items()}
        self._blocks.append(block)
        self._starts.append(self._length)
        self._first, self._capacity = self._length, self._length + size
        self._open_last()

    def _open_last(self) -> None:
        """Let single rows into the last block, where the host can write there."""
        if self._blocks and not self._far:
            self._open = {name: self._blocks[-1][name].numpy() for name in ("place", "mean", "log_var")}

    def _enlarge(self, capacity: int) -> None:
        """The one block, larger: column by column, so that only one of them is there twice."""
        if not self._blocks:
            self._blocks, self._starts = [dict(self._like)], [0]
        (block,) = self._blocks
        with torch.inference_mode(False):
            for name, column in list(block.items()):
                block[name] = torch.empty(capacity, *column.shape[1:], dtype=column.dtype, device=column.device)
                block[name][: self._length] = column[: self._length]
        self._capacity = capacity

    def span(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` of a column: a copy, unless they lie within a block."""
        parts = self._parts(name, first, end)
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else self._like[name]

    def whole(self, name: str) -> Tensor | None:
        """All rows of a column, not copied, where they lie in one piece: on a GPU."""
        self._send()
        return _settled(self._blocks[0][name], 0, self._length) if self._far and self._blocks else None

    def doubles(self, name: str, first: int, end: int) -> np.ndarray:
        """Rows `first` to `end` of a column in float64, with nothing else copied on the way; on a CPU only."""
        whole, done = room((end - first, *self._like[name].shape[1:]), torch.float64).numpy(), 0
        for part in self._parts(name, first, end):
            whole[done : done + len(part)] = part.numpy()
            done += len(part)
        return whole

    def _parts(self, name: str, first: int, end: int) -> list[Tensor]:
        """Rows `first` to `end` as they lie in blocks."""
        self._send()
        if end <= first:
            return []
        begin, stop = bisect_right(self._starts, first) - 1, bisect_right(self._starts, end - 1)
        return [
            _settled(self._blocks[i][name], max(first - self._starts[i], 0), end - self._starts[i])
            for i in range(begin, stop)
        ]

    def _one_by_one(self, name: str, wanted: list[int]) -> Tensor:
        """A few rows, without asking every block."""
        of = [bisect_right(self._starts, index) - 1 for index in wanted]
        rows = [self._blocks[i][name][index - self._starts[i]] for i, index in zip(of, wanted, strict=True)]
        return torch.stack(rows) if rows else self._like[name]

    def at(self, names: Sequence[str], index: Tensor) -> list[Tensor]:
        """Rows `index`, in any shape, of some columns."""
        self._send()
        wanted = index.flatten()
        if len(self._blocks) <= 1:
            block = self._blocks[0] if self._blocks else self._like
            return [block[name].index_select(0, wanted).unflatten(0, index.shape) for name in names]
        if len(wanted) <= FEW:  # on a CPU, as all that follows: on a GPU there is one block
            return [self._one_by_one(name, wanted.tolist()).unflatten(0, index.shape) for name in names]
        starts = torch.tensor(self._starts)
        of = torch.searchsorted(starts, wanted, right=True) - 1
        order = of.argsort(stable=True)  # rows of one block together: each block is asked once
        within = (wanted - starts[of])[order]
        parts = [
            (i, rows) for i, rows in enumerate(within.split(of.bincount(minlength=len(starts)).tolist())) if len(rows)
        ]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        found = []
        for name in names:
            taken = [self._blocks[i][name].index_select(0, rows) for i, rows in parts] or [self._like[name]]
            found.append(torch.cat(taken).index_select(0, back).unflatten(0, index.shape))
        return found
