"""The search of grids on a GPU: one launch, with one warp for each query.

A warp holds the distances of the boxes it has opened, a row for each level, and the best entries so far. It opens the
nearest box of the innermost row if that may hold a better entry, and otherwise returns to the row above. Only the
number of levels depends on the number of entries.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# A tuple that grows in a loop that Triton unrolls has no Python type:
# mypy: disable-error-code="assignment,misc"

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast, no_gradients
from gtmsm.kernels.search import grid_search as grids
from gtmsm.kernels.search.grid_search import LEVELS

MOST_AXES = 8
"""Maximum number of axes: loops over them are unrolled."""
MOST_NEIGHBOURS = 32
"""Maximum number of neighbours: one warp keeps them in registers."""
RECENT = 512
"""Number of entries outside of grids that are compared together: large, to wait for memory only a few times."""


@triton.jit
def _take_better(
    far2, entry, near, which, farthest, last, SLOTS: tl.constexpr
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """The best entries after some candidates: the nearest candidate replaces the last of the best while it is better.

    `farthest` and `last` are the distance and the index of the last of the best.
    """
    slot = tl.arange(0, SLOTS)
    nearest = tl.min(far2, 0)
    first = tl.min(tl.where(far2 == nearest, entry, 0x7FFFFFFF), 0)
    while (nearest < farthest) | ((nearest == farthest) & (first < last)):
        gone = tl.min(tl.where((near == farthest) & (which == last), slot, SLOTS), 0)
        near, which = tl.where(slot == gone, nearest, near), tl.where(slot == gone, first, which)
        farthest = tl.max(near, 0)
        last = tl.max(tl.where(near == farthest, which, -1), 0)
        taken = entry == first
        far2, entry = tl.where(taken, float("inf"), far2), tl.where(taken, 0x7FFFFFFF, entry)
        nearest = tl.min(far2, 0)
        first = tl.min(tl.where(far2 == nearest, entry, 0x7FFFFFFF), 0)
    return near, which, farthest, last


@triton.jit
def _distances(query, keys, row, axis, there, P: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Squared, in float64; infinite past the end and for NaN."""
    difference = tl.load(keys + row, there, 0.0).to(tl.float64) - query[0]
    far2 = difference * difference
    for p in tl.static_range(1, P):
        difference = tl.load(keys + p * axis + row, there, 0.0).to(tl.float64) - query[p]
        far2 += difference * difference
    return tl.where(there & (far2 == far2), far2, float("inf"))


@triton.jit
def _distances_of_boxes(query, walls, P: tl.constexpr, FAN: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Distances of the nearest points of boxes: rounded as others are, so never more than that of an entry inside."""
    box = tl.arange(0, FAN)
    far2 = tl.zeros([FAN], tl.float64)
    for p in tl.static_range(P):
        below = tl.load(walls + p * FAN + box).to(tl.float64) - query[p]
        above = query[p] - tl.load(walls + (P + p) * FAN + box).to(tl.float64)
        outside = tl.maximum(tl.maximum(below, above), 0.0)
        far2 += outside * outside
        far2 = tl.where(query[p] - query[p] == 0, far2, float("inf"))  # NaN is far from all
    return far2


@triton.jit(do_not_specialize=["recent", "grids", "held", "fresh"])  # they change as memory grows: compile once
def _search(
    queries, where, recent, index, distance2, grids, held, fresh,
    query_row, query_axis, recent_row, recent_axis,
    P: tl.constexpr, K: tl.constexpr, SLOTS: tl.constexpr, LEVELS: tl.constexpr, WORDS: tl.constexpr,
    CELL: tl.constexpr, FAN: tl.constexpr, RECENT: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    asked = tl.program_id(0).to(tl.int64)
    query = ()
    for p in tl.static_range(P):
        query += (tl.load(queries + asked * query_row + p * query_axis).to(tl.float64),)
    slot = tl.arange(0, SLOTS)
    # Slots past K hold entries that no candidate can replace.
    near = tl.where(slot < K, float("inf"), float("-inf")).to(tl.float64)
    which = tl.where(slot < K, 0x7FFFFFFF, -1)
    farthest = tl.max(near, 0)
    last = tl.max(which, 0)

    row, box = tl.arange(0, LEVELS)[:, None], tl.arange(0, FAN)
    for g in range(grids):
        of = where + g * WORDS
        keys = tl.load(of).to(recent.dtype)
        entries = tl.load(of + 1).to(tl.pointer_type(tl.int32))
        walls = tl.load(of + 2).to(recent.dtype)
        earliest = tl.load(of + 3).to(tl.pointer_type(tl.int32))
        n, halvings, levels = tl.load(of + 4), tl.load(of + 5), tl.load(of + 6).to(tl.int32)
        far2 = tl.where(row == 0, _distances_of_boxes(query, walls, P, FAN)[None, :], float("inf"))
        begun = tl.where(row == 0, tl.load(earliest + box)[None, :], 0x7FFFFFFF)
        level, node = tl.cast(0, tl.int32), tl.cast(0, tl.int64)
        while level >= 0:
            here = row == level
            far2_here = tl.min(tl.where(here, far2, float("inf")), 0)
            begun_here = tl.min(tl.where(here, begun, 0x7FFFFFFF), 0)
            nearest = tl.min(far2_here, 0)
            first = tl.min(tl.where(far2_here == nearest, begun_here, 0x7FFFFFFF), 0)
            if (nearest < farthest) | ((nearest == farthest) & (first < last)):
                is_it = begun_here == first  # boxes of one level share no entries
                chosen = tl.min(tl.where(is_it, box, FAN), 0)
                opened = here & is_it[None, :]
                far2, begun = tl.where(opened, float("inf"), far2), tl.where(opened, 0x7FFFFFFF, begun)
                inside = node * FAN + chosen
                if level + 1 < levels:
                    level += 1
                    node = inside
                    boxes = tl.load(of + 7 + level) + node
                    inner = row == level
                    beyond = _distances_of_boxes(query, walls + boxes * 2 * P * FAN, P, FAN)
                    far2 = tl.where(inner, beyond[None, :], far2)
                    begun = tl.where(inner, tl.load(earliest + boxes * FAN + box)[None, :], begun)
                else:
                    member = (inside * n >> halvings) + tl.arange(0, CELL)
                    there = member < (inside + 1) * n >> halvings
                    near, which, farthest, last = _take_better(
                        _distances(query, keys, member, n, there, P), tl.load(entries + member, there, 0x7FFFFFFF),
                        near, which, farthest, last, SLOTS,
                    )  # fmt: skip
            else:
                level -= 1
                node = node // FAN

    for begin in range(0, fresh, RECENT):
        i = begin + tl.arange(0, RECENT)
        there = i < fresh
        at = i.to(tl.int64) * recent_row
        near, which, farthest, last = _take_better(
            _distances(query, recent, at, recent_axis, there, P), tl.where(there, held + i, 0x7FFFFFFF),
            near, which, farthest, last, SLOTS,
        )  # fmt: skip

    before = (near[None, :] < near[:, None]) | ((near[None, :] == near[:, None]) & (which[None, :] < which[:, None]))
    to = asked * K + tl.sum(before.to(tl.int32), 1) - (SLOTS - K)
    tl.store(index + to, which.to(tl.int64), slot < K)
    tl.store(distance2 + to, near, slot < K)


def _forward(query: Tensor, places: Tensor, table: Tensor, held: int, k: int) -> list[Tensor]:
    """One launch."""
    recent, (m, axes) = places[held:], query.shape
    made = [query.new_empty(m, k, dtype=dtype) for dtype in (torch.int64, torch.float64)]
    _search[(m,)](
        query, table, recent, *made, len(table), held, len(recent), *query.stride(), *recent.stride(),
        P=axes, K=k, SLOTS=max(4, triton.next_power_of_2(k)), LEVELS=LEVELS, WORDS=7 + LEVELS,
        CELL=grids.CELL, FAN=grids.FAN, RECENT=RECENT,
        # no fused multiply and add: rounded as everywhere else, equal distances are equal here, too
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return made


def _supports(query: Tensor, places: Tensor, table: Tensor, held: int, k: int) -> bool:
    """A few axes, a few neighbours, and at least one query."""
    known = all(x.dtype in (torch.float32, torch.float64) for x in (query, places))
    return known and 0 < query.shape[1] <= MOST_AXES and k <= MOST_NEIGHBOURS and len(query) > 0


grid_search = Fast(_forward, None, no_gradients, _supports)
