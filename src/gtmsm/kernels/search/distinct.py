"""Which entries were retrieved at all: each of them once, in a list of a length that is known beforehand."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose

MOST_PAIRS = 2**17
"""Retrievals times entries of one memory that a GPU program compares."""


class Distinct(NamedTuple):
    """The entries of all memories of a batch that anything points to."""

    entry: Int64[Tensor, "room"]
    """Entry i of memory b is number b pitch + i; in order, then 0 where there is room left."""
    row: Int64[Tensor, "batch time K"]
    """Where in that list each retrieved entry is; 0 where it found no room."""
    fits: Bool[Tensor, "batch time"]
    """Whether all that a query retrieves found some."""
    needed: Int64[Tensor, ""]
    """How many there are, whether they fit or not."""


def distinct_by_parts(
    index: Int64[Tensor, "batch time K"], n: int, room: int | None = None, pitch: int | None = None
) -> Distinct:
    """The readable twin. Without `room` the list is as long as it must be, for which a device has to be waited for.

    `pitch` is how far apart memories lie, n unless they are stretches of something longer.
    """
    batch = len(index)
    first = n * torch.arange(batch, device=index.device).view(-1, 1, 1)
    number = index + first
    is_there = torch.zeros(batch * n, dtype=torch.bool, device=index.device).index_fill(0, number.flatten(), True)
    place = is_there.cumsum(0) - 1
    count = is_there.sum()
    if room is None:
        room = int(count)
    entry = torch.zeros(room + 1, dtype=torch.int64, device=index.device)
    # Whatever finds no room goes into one place behind the others, which is cut off.
    goes_to = torch.where(is_there & (place < room), place, room)
    far = n if pitch is None else pitch
    every = torch.arange(n, device=index.device) + far * torch.arange(batch, device=index.device)[:, None]
    entry = entry.scatter(0, goes_to, every.flatten())[:room]
    row = place[number]
    fits = row < room
    return Distinct(entry, torch.where(fits, row, 0), fits.all(-1), count)


def distinct(
    index: Int64[Tensor, "batch time K"], n: int, room: int | None = None, pitch: int | None = None
) -> Distinct:
    """`distinct_by_parts`, by the fastest twin for where the tensors are."""
    small = index.numel() > 0 and index[0].numel() * n <= MOST_PAIRS
    if room and choose(index, triton=small) == "triton":
        from gtmsm.kernels.search import distinct_triton

        return distinct_triton.distinct(index, n, room, n if pitch is None else pitch)
    return distinct_by_parts(index, n, room, pitch)
