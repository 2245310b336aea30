"""Nearest keys on a GPU: distances are computed and compared in registers, no matrix of them is stored.

A program of one warp holds a tile of queries by lanes. Each lane goes through its own part of the keys and keeps the
nearest of them in order. Then the lanes of a query are merged; if the keys of a query were split over several
programs, `_merge` merges their results.

The order is that of a stable sort, to the bit. A squared distance is never negative, so its bits compare as an integer
does; with the index in the lower half every entry is a different int64. Lanes past the last key hold NaN and an index
past the last: they come after all keys, and are never among the k <= n nearest.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# A tuple that grows in a loop that Triton unrolls has no Python type:
# mypy: disable-error-code="assignment,misc"

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast, no_gradients
from gtmsm.kernels.search.nearest_cpu import empty

WARPS = 2048
"""Number of warps that fills a large GPU: with fewer queries, more lanes share the keys of a query."""
LONG = 2048
"""Number of keys from which a loaded key serves several queries, and several programs share the keys of a query."""
MERGED = 512
"""Number of results that one program merges."""


@triton.jit
def _load_keys(pointer, stride, P: tl.constexpr, there):  # pragma: no cover - runs on the GPU
    """One key per lane, axis by axis."""
    axes = ()
    for p in tl.static_range(P):
        axes += (tl.load(pointer + p * stride, there, float("nan")),)
    return axes


@triton.jit
def _distance_bits(query, key, P: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Squared distances as integers of the same order; any NaN is the largest."""
    difference = query[0] - key[0]
    distance2 = difference * difference
    for p in tl.static_range(1, P):
        difference = query[p] - key[p]
        distance2 += difference * difference
    bits = distance2.to(tl.uint32, bitcast=True)
    return tl.where(bits > 0x7F800000, 0x7F800001, bits).to(tl.int32)


@triton.jit
def _insert(bits, index, near, which, DEPTH: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Each lane's list with one more entry, in order; equals stay in the order of their insertion."""
    kept_near, kept_which = (), ()
    for j in tl.static_range(DEPTH):
        nearer = bits < near[j]
        if j == 0:
            moved_near, moved_which = bits, index
        else:  # the entry before moves down, distance and index together: equals keep their order
            ahead = bits < near[j - 1]
            moved_near, moved_which = tl.where(ahead, near[j - 1], bits), tl.where(ahead, which[j - 1], index)
        kept_near += (tl.where(nearer, moved_near, near[j]),)
        kept_which += (tl.where(nearer, moved_which, which[j]),)
    return kept_near, kept_which


@triton.jit
def _search(
    keys, queries, out, n, m, portion, blocks,
    key_batch, key_row, key_axis, query_batch, query_row, query_axis,
    P: tl.constexpr, K: tl.constexpr, DEPTH: tl.constexpr, QUERIES: tl.constexpr, LANES: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    split, splits = tl.program_id(1), tl.num_programs(1)
    row = block * QUERIES + tl.arange(0, QUERIES)[:, None]
    asked = row < m
    at = queries + batch * query_batch + row.to(tl.int64) * query_row
    query = ()
    for p in tl.static_range(P):
        query += (tl.load(at + p * query_axis, asked, 0.0),)
    near, which = (), ()
    for _ in tl.static_range(DEPTH):
        near += (tl.full([QUERIES, LANES], 0x7FFFFFFF, tl.int32),)
        which += (tl.full([QUERIES, LANES], 0x7FFFFFFF, tl.int32),)

    first = split * portion
    index = first + tl.arange(0, LANES)[None, :]
    at = keys + batch * key_batch + index.to(tl.int64) * key_row
    step, axis = LANES * tl.cast(key_row, tl.int64), tl.cast(key_axis, tl.int64)
    key = _load_keys(at, axis, P, index < n)
    for _ in range(first, tl.minimum(first + portion, n), LANES):
        at += step
        upcoming = _load_keys(at, axis, P, index + LANES < n)  # a round ahead, to hide its latency
        near, which = _insert(_distance_bits(query, key, P), index, near, which, DEPTH)
        key = upcoming
        index += LANES

    lists = ()
    for j in tl.static_range(DEPTH):
        lists += ((near[j].to(tl.int64) << 32) | which[j].to(tl.int64),)
    to = out + ((batch * m + row.to(tl.int64)) * splits + split) * K
    for k in tl.static_range(K):
        nearest = tl.min(lists[0], 1)[:, None]
        tl.store(to + k, nearest & 0x7FFFFFFF if LAST else nearest, asked)
        taken = lists[0] == nearest
        shorter = ()
        for j in tl.static_range(DEPTH):
            if j + 1 < DEPTH:
                shorter += (tl.where(taken, lists[j + 1], lists[j]),)
            else:
                shorter += (tl.where(taken, 0x7FFFFFFFFFFFFFFF, lists[j]),)
        lists = shorter


@triton.jit
def _merge(
    winners, out, count, group, K: tl.constexpr, SIZE: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """The first K of a group of `group` results, of the `count` results of a query."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, SIZE)
    there = (i < group) & (part * group + i < count)
    entries = tl.load(winners + row * count + part * group + i, there, 0x7FFFFFFFFFFFFFFF)
    to = out + (row * tl.num_programs(1) + part) * K
    for k in tl.static_range(K):
        nearest = tl.min(entries, 0)
        tl.store(to + k, nearest & 0x7FFFFFFF if LAST else nearest)
        entries = tl.where(entries == nearest, 0x7FFFFFFFFFFFFFFF, entries)


def _tile(batch: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Queries and lanes of a program, and over how many programs the keys of a query are split."""
    width = triton.next_power_of_2(m)
    if n >= LONG:
        # as many queries per lane as registers hold lists for
        queries = min(width, max(32 // triton.next_power_of_2(k), 1), 8)
        programs = batch * triton.cdiv(m, queries)
        return queries, 32, max(min(2 * WARPS // programs, n // (LONG // 2)), 1)
    lanes = max(32 // width, 1)
    while lanes < 32 and batch * triton.cdiv(m * lanes, 32) < WARPS:
        lanes *= 2
    return 32 // lanes, lanes, 1


def _forward(keys: Tensor, queries: Tensor, k: int) -> list[Tensor]:
    """One launch, or a few if programs share the keys of a query."""
    (batch, n, P), m = keys.shape, queries.shape[1]
    per_program, lanes, splits = _tile(batch, m, n, k)
    # whole rounds of lanes, so that only the last program has lanes past its last key
    portion = triton.cdiv(triton.cdiv(n, splits), lanes) * lanes
    splits = triton.cdiv(n, portion)
    found = keys.new_empty(batch, m, splits * k, dtype=torch.int64)
    blocks = triton.cdiv(m, per_program)
    _search[(batch * blocks, splits)](
        keys, queries, found, n, m, portion, blocks, *keys.stride(), *queries.stride(),
        P=P, K=k, DEPTH=min(k, portion // lanes), QUERIES=per_program, LANES=lanes, LAST=splits == 1,
        # no fused multiply and add: rounded as everywhere else, equal distances are equal here, too
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    while splits > 1:
        count, group = splits * k, MERGED // k * k
        splits = triton.cdiv(count, group)
        merged = keys.new_empty(batch, m, splits * k, dtype=torch.int64)
        _merge[(batch * m, splits)](
            found, merged, count, group, K=k,
            SIZE=triton.next_power_of_2(min(count, group)), LAST=splits == 1, num_warps=1,
        )  # fmt: skip
        found = merged
    return [found]


def _supports(keys: Tensor, queries: Tensor, k: int) -> bool:
    """Lists that fit into registers, indices of 32 bits, single precision."""
    n, axes = keys.shape[1:]
    single = keys.dtype == queries.dtype == torch.float32
    return single and 0 < k <= min(n, 16) and axes <= 8 and n <= 2**30 and len(queries) * queries.shape[1] > 0


nearest_k = Fast(_forward, empty, no_gradients, _supports)
