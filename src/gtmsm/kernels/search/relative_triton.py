"""How places lie from who asked, on a GPU: one launch each way, nothing kept but what was given.

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
"""Of a query and an entry that a program computes together: one for each thread."""


def queries_and_entries(K: int) -> tuple[int, int]:
    """How many queries a program of the backward pass computes, and how many of the K entries of each together."""
    entries = min(triton.next_power_of_2(K), 256)
    return max(PAIRS // entries, 1), entries


@triton.jit
def _four(pointer, axis, used):  # pragma: no cover - runs on the GPU
    """Four numbers of everyone."""
    return (
        tl.load(pointer, used, 0.0),
        tl.load(pointer + axis, used, 0.0),
        tl.load(pointer + 2 * axis, used, 0.0),
        tl.load(pointer + 3 * axis, used, 0.0),
    )


@triton.jit
def _relative_forward(
    place, query, index, seen, pairs, m, K,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis, index_batch, index_row, index_entry,
    PAIRS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    used = pair < pairs
    k = (pair % K).to(tl.int64)
    row = ((pair // K) % m).to(tl.int64)
    batch = (pair // K // m).to(tl.int64)
    entry = tl.load(index + batch * index_batch + row * index_row + k * index_entry, used, 0)
    x, y, to_c, to_s = _four(place + batch * place_batch + entry * place_row, place_axis, used)
    at_x, at_y, c, s = _four(query + batch * query_batch + row * query_row, query_axis, used)
    dx, dy = x - at_x, y - at_y
    seen += pair.to(tl.int64) * 4
    tl.store(seen, c * dx + s * dy, used)
    tl.store(seen + 1, c * dy - s * dx, used)
    tl.store(seen + 2, c * to_c + s * to_s, used)
    tl.store(seen + 3, c * to_s - s * to_c, used)


@triton.jit
def _relative_backward(
    place, query, index, incoming, g_place, g_query, queries, n, m, K,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis, index_batch, index_row, index_entry,
    in_batch, in_row, in_entry, in_axis,
    INTO_PLACE: tl.constexpr, INTO_QUERY: tl.constexpr, QUERIES: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    number = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    asking = number < queries
    row = (number % m).to(tl.int64)
    batch = (number // m).to(tl.int64)
    at_x, at_y, c, s = _four(query + batch * query_batch + row * query_row, query_axis, asking)
    at_x, at_y, c, s = at_x[:, None], at_y[:, None], c[:, None], s[:, None]
    place += (batch * place_batch)[:, None]
    index += (batch * index_batch + row * index_row)[:, None]
    incoming += (batch * in_batch + row * in_row)[:, None]
    g_place += (batch * n * 4)[:, None]
    into_x = tl.zeros([QUERIES], tl.float32)
    into_y = tl.zeros([QUERIES], tl.float32)
    into_c = tl.zeros([QUERIES], tl.float32)
    into_s = tl.zeros([QUERIES], tl.float32)
    for first in range(0, K, ENTRIES):
        k = (first + tl.arange(0, ENTRIES))[None, :]
        used = asking[:, None] & (k < K)
        entry = tl.load(index + k.to(tl.int64) * index_entry, used, 0)
        ahead, left, turned_c, turned_s = _four(incoming + k.to(tl.int64) * in_entry, in_axis, used)
        # what is asked for in the agent's frame, turned back into that of the map
        g_x = c * ahead - s * left
        g_y = s * ahead + c * left
        if INTO_QUERY:
            x, y, to_c, to_s = _four(place + entry * place_row, place_axis, used)
            dx, dy = x - at_x, y - at_y
            into_x -= tl.sum(g_x, 1)
            into_y -= tl.sum(g_y, 1)
            into_c += tl.sum(ahead * dx + left * dy + turned_c * to_c + turned_s * to_s, 1)
            into_s += tl.sum(ahead * dy - left * dx + turned_c * to_s - turned_s * to_c, 1)
        if INTO_PLACE:
            into = g_place + entry * 4
            tl.atomic_add(into, g_x, used, sem="relaxed")
            tl.atomic_add(into + 1, g_y, used, sem="relaxed")
            tl.atomic_add(into + 2, c * turned_c - s * turned_s, used, sem="relaxed")
            tl.atomic_add(into + 3, s * turned_c + c * turned_s, used, sem="relaxed")
    if INTO_QUERY:
        g_query += number.to(tl.int64) * 4
        tl.store(g_query, into_x, asking)
        tl.store(g_query + 1, into_y, asking)
        tl.store(g_query + 2, into_c, asking)
        tl.store(g_query + 3, into_s, asking)


class _Relative(torch.autograd.Function):
    """Places seen from queries, and gradients of both."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, query: Tensor, index: Tensor) -> Tensor:
        _, m, K = index.shape
        seen, pairs = place.new_empty(*index.shape, 4), index.numel()
        _relative_forward[(triton.cdiv(pairs, PAIRS),)](
            place, query, index, seen, pairs, m, K, *place.stride(), *query.stride(), *index.stride(),
            PAIRS=PAIRS, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(place, query, index)
        return seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        place, query, index = ctx.saved_tensors
        (batch, m, K), n = index.shape, place.shape[1]
        into_place, into_query, _ = ctx.needs_input_grad
        g_place = place.new_zeros(place.shape) if into_place else incoming
        g_query = query.new_empty(query.shape) if into_query else incoming
        queries, entries = queries_and_entries(K)
        _relative_backward[(triton.cdiv(batch * m, queries),)](
            place, query, index, incoming, g_place, g_query, batch * m, n, m, K,
            *place.stride(), *query.stride(), *index.stride(), *incoming.stride(),
            INTO_PLACE=into_place, INTO_QUERY=into_query, QUERIES=queries, ENTRIES=entries, num_warps=4,
        )  # fmt: skip
        return g_place if into_place else None, g_query if into_query else None, None


def seen(place: Tensor, query: Tensor, index: Tensor) -> Tensor:
    """`relative_by_parts` for float32 CUDA tensors; places' gradients are added up in no fixed order."""
    return _Relative.apply(place, query, index)  # type: ignore[no-any-return]
