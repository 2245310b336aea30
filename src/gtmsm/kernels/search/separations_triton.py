"""Squared distances on a GPU: one launch each way, nothing kept but what was given.

All is read where it lies, by strides: memory is often the earlier part of a longer walk. An entry found by several
queries gets its gradient from all of them, by atomic additions in whatever order they happen: its last bits may differ
from run to run.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

PAIRS = 128
"""Of a query and an entry that a program looks at together: one for each thread."""
MOST_ENTRIES = 256
"""Of one query that a program looks at together on the way back."""


@triton.jit
def _separations_forward(
    place, query, index, distance2, pairs, m, K,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis, index_batch, index_row, index_entry,
    P: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    used = pair < pairs
    k = (pair % K).to(tl.int64)
    row = ((pair // K) % m).to(tl.int64)
    batch = (pair // K // m).to(tl.int64)
    entry = tl.load(index + batch * index_batch + row * index_row + k * index_entry, used, 0)
    place += batch * place_batch + entry * place_row
    query += batch * query_batch + row * query_row
    total = tl.zeros([PAIRS], tl.float32)
    for p in tl.static_range(P):
        away = tl.load(query + p * query_axis, used, 0.0) - tl.load(place + p * place_axis, used, 0.0)
        total += away * away
    tl.store(distance2 + pair, total, used)


@triton.jit
def _separations_backward(
    place, query, index, incoming, g_place, g_query, queries, n, m, K,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis, index_batch, index_row, index_entry,
    in_batch, in_row, in_entry,
    P: tl.constexpr, INTO_PLACE: tl.constexpr, INTO_QUERY: tl.constexpr,
    QUERIES: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # gradients of one axis have nothing to do with those of another: each has programs of its own
    number = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    p = tl.program_id(1)
    asked = number < queries
    row = (number % m).to(tl.int64)
    batch = (number // m).to(tl.int64)
    at = tl.load(query + batch * query_batch + row * query_row + p * query_axis, asked, 0.0)
    place += (batch * place_batch + p * place_axis)[:, None]
    index += (batch * index_batch + row * index_row)[:, None]
    incoming += (batch * in_batch + row * in_row)[:, None]
    g_place += (batch * n * P + p)[:, None]
    into_query = tl.zeros([QUERIES], tl.float32)
    for first in range(0, K, ENTRIES):
        k = (first + tl.arange(0, ENTRIES))[None, :]
        used = asked[:, None] & (k < K)
        entry = tl.load(index + k.to(tl.int64) * index_entry, used, 0)
        away = at[:, None] - tl.load(place + entry * place_row, used, 0.0)
        share = 2.0 * away * tl.load(incoming + k.to(tl.int64) * in_entry, used, 0.0)
        into_query += tl.sum(share, 1)
        if INTO_PLACE:
            tl.atomic_add(g_place + entry * P, -share, used, sem="relaxed")
    if INTO_QUERY:
        tl.store(g_query + number.to(tl.int64) * P + p, into_query, asked)


def queries_and_entries(K: int) -> tuple[int, int]:
    """How many queries a program looks at on the way back, and how many of the K entries of each together."""
    entries = min(triton.next_power_of_2(K), MOST_ENTRIES)
    return max(PAIRS // entries, 1), entries


class _Separations(torch.autograd.Function):
    """Squared distances, and gradients of places and queries."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, query: Tensor, index: Tensor) -> Tensor:
        _, m, K = index.shape
        distance2 = place.new_empty(index.shape)
        pairs = distance2.numel()
        _separations_forward[(triton.cdiv(pairs, PAIRS),)](
            place, query, index, distance2, pairs, m, K, *place.stride(), *query.stride(), *index.stride(),
            P=place.shape[-1], PAIRS=PAIRS, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(place, query, index)
        return distance2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        place, query, index = ctx.saved_tensors
        (batch, m, K), (_, n, P) = index.shape, place.shape
        into_place, into_query, _ = ctx.needs_input_grad
        g_place = place.new_zeros(place.shape) if into_place else incoming
        g_query = query.new_empty(query.shape) if into_query else incoming
        queries, entries = queries_and_entries(K)
        _separations_backward[(triton.cdiv(batch * m, queries), P)](
            place, query, index, incoming, g_place, g_query, batch * m, n, m, K,
            *place.stride(), *query.stride(), *index.stride(), *incoming.stride(),
            P=P, INTO_PLACE=into_place, INTO_QUERY=into_query, QUERIES=queries, ENTRIES=entries, num_warps=4,
        )  # fmt: skip
        return g_place if into_place else None, g_query if into_query else None, None


def measure(place: Tensor, query: Tensor, index: Tensor) -> Tensor:
    """`separations_by_parts` for float32 CUDA tensors; places' gradients are added up in no fixed order."""
    return _Separations.apply(place, query, index)  # type: ignore[no-any-return]
