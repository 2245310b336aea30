"""Distinct entries on a GPU in two launches: every memory counts its own, then all write into one list."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.search.distinct import Distinct

PORTION = 32
"""Retrievals compared with all entries at once."""


@triton.jit
def _count(index, place, counts, N, M, ENTRIES: tl.constexpr, PORTION: tl.constexpr):  # pragma: no cover - on the GPU
    memory = tl.program_id(0)
    entry = tl.arange(0, ENTRIES)
    hits = tl.zeros([ENTRIES], tl.int32)
    for begin in range(0, M, PORTION):
        at = begin + tl.arange(0, PORTION)
        wanted = tl.load(index + memory * M + at, at < M, -1)
        hits += tl.sum((wanted[:, None] == entry[None, :]).to(tl.int32), 0)
    is_there = (hits > 0).to(tl.int32)
    before = tl.cumsum(is_there, 0) - is_there
    # The place of an entry within its memory; -1 where nothing points to it.
    tl.store(place + memory * N + entry, tl.where(hits > 0, before, -1), entry < N)
    tl.store(counts + memory, tl.sum(is_there, 0))


@triton.jit
def _write(
    index, place, counts, entries, row, fits, count, N, QUERIES, K, BATCH, ROOM, PITCH,
    ENTRIES: tl.constexpr, BATCHES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    memory = tl.program_id(0)
    other = tl.arange(0, BATCHES)
    each = tl.load(counts + other, other < BATCH, 0)
    first = tl.sum(tl.where(other < memory, each, 0), 0)
    entry = tl.arange(0, ENTRIES)
    mine = tl.load(place + memory * N + entry, entry < N, -1)
    tl.store(entries + first + mine, memory.to(tl.int64) * PITCH + entry, (mine >= 0) & (first + mine < ROOM))
    if memory == 0:
        total = tl.sum(each, 0)
        tl.store(count, total.to(tl.int64))
        for begin in range(total, ROOM, 1024):  # where there is room left, any entry will do
            at = begin + tl.arange(0, 1024)
            tl.store(entries + at, tl.zeros([1024], tl.int64), at < ROOM)
    k = tl.arange(0, COLUMNS)[None, :]
    for begin in range(0, QUERIES, ROWS):
        query = begin + tl.arange(0, ROWS)
        asked = (query < QUERIES)[:, None] & (k < K)
        at = (memory * QUERIES + query)[:, None] * K + k
        wanted = tl.load(index + at, asked, 0)
        there = first + tl.load(place + memory * N + wanted, asked, 0)
        found = there < ROOM
        tl.store(row + at, tl.where(found, there, 0).to(tl.int64), asked)
        missed = tl.sum((asked & (there >= ROOM)).to(tl.int32), 1)
        tl.store(fits + memory * QUERIES + query, missed == 0, query < QUERIES)


def distinct(index: Tensor, n: int, room: int, pitch: int) -> Distinct:
    """`distinct_by_parts` for CUDA tensors and a room that is known."""
    index = index.contiguous()
    batch, queries, k = index.shape
    place = index.new_empty(batch, n, dtype=torch.int32)
    counts = index.new_empty(batch, dtype=torch.int32)
    entries, row, count = index.new_empty(room), torch.empty_like(index), index.new_empty(())
    fits = index.new_empty(batch, queries, dtype=torch.bool)
    wide, columns = triton.next_power_of_2(n), triton.next_power_of_2(k)
    _count[(batch,)](index, place, counts, n, queries * k, ENTRIES=wide, PORTION=PORTION, num_warps=8)
    _write[(batch,)](
        index, place, counts, entries, row, fits, count, n, queries, k, batch, room, pitch,
        ENTRIES=wide, BATCHES=triton.next_power_of_2(batch), ROWS=max(1, 512 // columns), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return Distinct(entries, row, fits, count)
