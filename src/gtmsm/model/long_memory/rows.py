"""Tables that grow in blocks: nothing is copied when they grow, and little capacity is unused.

On a GPU there is one block, which is copied when it grows: copies are fast there, and a look-up in several blocks would
synchronise with the device. Single rows are queued on the host until the next read.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

FEW = 64
"""Number of rows up to which taking them one by one is faster."""

LARGEST = 1e150
"""Largest coordinate of a place, whose square is still finite in float64."""

WAITING = 256
"""Capacity of the queue of single rows."""


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU; the pages of a large one are allocated when written to, and all returned when freed.

    Hundreds of trees are built and freed while a memory grows: on the heap they would leave holes of their size.
    """
    size = prod(shape) * dtype.itemsize
    if size < 2**20 or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def is_far(device: torch.device) -> bool:
    """Whether the host cannot write to tensors of this device."""
    return device.type != "cpu"


class Rows:
    """Named columns (`place`, `mean`, ...), to which rows can be appended.

    One thread at a time may append or send rows. Meanwhile others may read the rows below any length that they have
    seen: rows are counted only after they were written, and never change.
    """

    def __init__(self, like: dict[str, Tensor]) -> None:
        with torch.inference_mode(False):  # new tensors: a slice of `like` would keep all of it alive
            self._like = {name: column.new_empty(0, *column.shape[1:]) for name, column in like.items()}
        self.width = len(like)
        """Number of columns."""
        self.device = next(iter(like.values())).device
        self.sizes = like["place"].shape[-1], like["mean"].shape[-1]
        """Numbers in a place and in a code."""
        self.limit = min(LARGEST, *(torch.finfo(like[name].dtype).max for name in ("place", "mean", "log_var")))
        """The largest number that places and codes may hold."""
        self._length = self._capacity = self._first = 0
        self._starts: list[int] = []
        self._blocks: list[dict[str, Tensor]] = []
        self._open: dict[str, np.ndarray] = {}  # the last block as arrays, for single rows
        self._far = is_far(self.device)
        self.waiting, self._queue = 0, dict[str, Tensor]()
        """Number of single rows that are not on the GPU yet; `send` them before reading."""

    def __len__(self) -> int:
        return self._length

    def snapshot(self, end: int, without: Collection[str] = ()) -> "Rows":
        """The first `end` rows, shared, without some columns; rows appended to the snapshot begin a new block."""
        other = object.__new__(Rows)
        other.__dict__ = dict(self.__dict__)
        other._blocks = self._blocks[: bisect_left(self._starts, end)]
        other._starts = self._starts[: len(other._blocks)]
        if without or self._far:
            other._like = {name: like for name, like in self._like.items() if name not in without}
            other._blocks = [{name: block[name] for name in other._like} for block in other._blocks]
        other.width, other._length, other._capacity = len(other._like), end, end
        other.waiting, other._open, other._queue = 0, {}, {}
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with torch.inference_mode(False):  # a copy made in inference mode could not be written to outside of it
            self._blocks = [
                {name: column.clone() if column.is_inference() else column for name, column in block.items()}
                for block in self._blocks
            ]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._like)

    @property
    def nbytes(self) -> int:
        """Bytes held, unused capacity and the queue included."""
        return sum(column.nbytes for block in (*self._blocks, self._queue) for column in block.values())

    def like(self, name: str) -> Tensor:
        """An empty tensor like this column."""
        return self._like[name]

    def append(self, rows: dict[str, Tensor]) -> None:
        """Append rows; readers see all of them or none."""
        self.send()
        try:
            self._store(rows)
            self._length += len(rows["place"])
        except BaseException:  # interrupted: begin a new block next time
            self._capacity = self._length
            raise

    def append_one(self, place: object, mean: object, log_var: object) -> None:
        """Append one row of these three columns, from anything that NumPy can assign."""
        if self._far:
            self._open_queue()
        elif self._length == self._capacity:
            self._add_block(1)
        at, block = self._length - self._first, self._open
        block["place"][at] = place
        block["mean"][at] = mean
        block["log_var"][at] = log_var
        if self._far:
            self.waiting += 1  # first: a reader that sees the row must see that it waits
        self._length += 1

    def _open_queue(self) -> None:
        """Ensure capacity for a row in the queue, whose rows are sent together."""
        if self.waiting == WAITING:
            self.send()
        if not self.waiting:
            # A new queue each time, in pinned memory: the GPU may still be reading the last one.
            self._queue = {
                name: torch.empty(WAITING, *like.shape[1:], dtype=like.dtype, pin_memory=self.device.type == "cuda")
                for name, like in self._like.items()
            }
            self._open = {name: column.numpy() for name, column in self._queue.items()}
            self._first = self._length

    def send(self) -> None:
        """Send the queued rows, without waiting for the device."""
        if self.waiting:
            self._store({name: column[: self.waiting] for name, column in self._queue.items()})
            self.waiting = 0

    def _store(self, rows: dict[str, Tensor]) -> None:
        """Write rows after those that are in blocks."""
        first = self._length - self.waiting
        end = first + len(rows["place"])
        if end > self._capacity:
            self._add_block(end - self._capacity)
        for name in self._like:
            done = 0
            for part in self._parts(name, first, end):
                part.copy_(rows[name][done : done + len(part)], non_blocking=True)
                done += len(part)

    def _add_block(self, wanted: int) -> None:
        """Add capacity for the rows wanted, at least for 64 and for a 16th of the rows so far."""
        size = max(wanted, self._length // 16, 64)
        if self._far:
            self._enlarge(self._capacity + size)
            return
        with torch.inference_mode(False):  # the first write may be in inference mode, later ones not
            block = {name: allocate((size, *like.shape[1:]), like.dtype) for name, like in self._like.items()}
        self._open = {name: block[name].numpy() for name in ("place", "mean", "log_var")}
        used = bisect_left(self._starts, self._capacity)  # all blocks, unless a write was interrupted
        self._blocks[used:], self._starts[used:] = [block], [self._capacity]
        self._first, self._capacity = self._capacity, self._capacity + size

    def _enlarge(self, capacity: int) -> None:
        """Enlarge the only block, column by column: only one column exists twice at a time."""
        if not self._blocks:
            self._blocks, self._starts = [dict(self._like)], [0]
        (block,), stored = self._blocks, self._length - self.waiting
        with torch.inference_mode(False):
            for name, column in list(block.items()):
                larger = torch.empty(capacity, *column.shape[1:], dtype=column.dtype, device=column.device)
                larger[:stored] = column[:stored]
                block[name] = larger
        self._capacity = capacity

    def span(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` of a column; copied if they are in several blocks."""
        parts = self._parts(name, first, end)
        return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else self._like[name]

    def nearest(self, name: str, query: Tensor, k: int, end: int) -> Tensor:
        """The k of the first `end` rows nearest to each query in this column; all are compared, block by block."""
        found, first = [], 0
        for part in self._parts(name, 0, end):
            far = torch.cdist(query, part, compute_mode="donot_use_mm_for_euclid_dist")
            near, row = far.topk(min(k, len(part)), dim=-1, largest=False)
            found.append((near, row + first))
            first += len(part)
        far, row = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
        return row.gather(-1, far.topk(k, dim=-1, largest=False).indices)

    def doubles(self, name: str, first: int, end: int) -> np.ndarray:
        """Rows `first` to `end` of a column in float64, without another copy; on a CPU only."""
        whole, done = allocate((end - first, *self._like[name].shape[1:]), torch.float64).numpy(), 0
        for part in self._parts(name, first, end):
            whole[done : done + len(part)] = part.numpy()
            done += len(part)
        return whole

    def _parts(self, name: str, first: int, end: int) -> list[Tensor]:
        """Rows `first` to `end`, block by block."""
        if end <= first:
            return []
        begin, stop = bisect_right(self._starts, first) - 1, bisect_left(self._starts, end)
        starts, blocks = self._starts[begin:stop], self._blocks[begin:stop]
        # `data` has its own version counter: else autograd would take the next row for a change of rows that it saved.
        return [
            block[name].data[max(first - start, 0) : until - start]
            for block, start, until in zip(blocks, starts, [*starts[1:], end], strict=True)
        ]

    def _one_by_one(self, names: Sequence[str], wanted: list[int]) -> list[Tensor]:
        """A few rows of some columns, one after the other."""
        if not wanted:
            return [self._like[name] for name in names]
        of = [bisect_right(self._starts, index) - 1 for index in wanted]
        found = [(self._blocks[i], index - self._starts[i]) for i, index in zip(of, wanted, strict=True)]
        return [torch.stack([block[name][row] for block, row in found]) for name in names]

    def at(self, names: Sequence[str], index: Tensor) -> list[Tensor]:
        """Rows `index`, in any shape, of some columns."""
        wanted, blocks = index.flatten(), self._blocks
        if len(blocks) <= 1:
            # Indices on a GPU were not checked: they must not reach unused capacity after the rows.
            columns = [blocks[0][name][: self._length] if self._far else blocks[0][name] for name in names]
            return [column.index_select(0, wanted).unflatten(0, index.shape) for column in columns]
        if len(wanted) <= FEW:  # all that follows is on a CPU: a GPU has one block
            return [rows.unflatten(0, index.shape) for rows in self._one_by_one(names, wanted.tolist())]
        starts = torch.tensor(self._starts)
        of = torch.searchsorted(starts, wanted, right=True) - 1
        order = of.argsort(stable=True)  # rows of a block together: one look-up in each block
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
