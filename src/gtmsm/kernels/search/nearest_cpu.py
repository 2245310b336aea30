"""Nearest keys on a CPU: one round of NumPy's vectorised argmin per neighbour, in portions that fit into the cache.

`topk` of a few out of some hundred costs several times as much as their distances, and may return any of several equal
ones; argmin returns the first.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from gtmsm.kernels.operator import Fast, no_gradients

IN_CACHE = 2**18
"""Number of distances computed at once."""
WORTH_THREADS = 4
"""Number of portions from which several threads are used."""
MOST_NEIGHBOURS = 256
"""Maximum number of neighbours: for more, a sort is faster."""


def portions(batch: int, m: int, n: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Parts of the batch and of its queries with at most `at_once` distances, or with one query."""
    some = min(max(at_once // max(n, 1), 1), max(m, 1))
    together = max(at_once // max(n * some, 1), 1) if some == m else 1
    for first in range(0, batch, together):
        for start in range(0, m, some):
            yield slice(first, first + together), slice(start, start + some)


def empty(keys: Tensor, queries: Tensor, k: int) -> list[Tensor]:
    """Indices of any values."""
    return [keys.new_empty(*queries.shape[:2], k, dtype=torch.int64)]


def _forward(keys: Tensor, queries: Tensor, k: int) -> list[Tensor]:
    """Portion by portion of the queries."""
    (batch, n, axes), m = keys.shape, queries.shape[1]
    made = empty(keys, queries, k)
    found = made[0].numpy()
    x = keys.detach().transpose(1, 2).contiguous().numpy()
    q = queries.detach().numpy()

    def fill(portion: tuple[slice, slice]) -> None:
        some, asked = portion
        with np.errstate(all="ignore"):
            distance2 = np.square(q[some, asked, None, 0] - x[some, None, 0])
            for p in range(1, axes):
                difference = q[some, asked, None, p] - x[some, None, p]
                distance2 += np.square(difference, out=difference)
        found[some, asked] = _first(distance2.reshape(-1, n), k).reshape(*distance2.shape[:2], k)

    every = list(portions(batch, m, n, IN_CACHE))
    if len(every) < WORTH_THREADS or torch.get_num_threads() == 1:
        for portion in every:
            fill(portion)
    else:  # NumPy releases the interpreter lock while it computes
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, every))
    return made


def _first(distance2: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k smallest of each row, in the order of a stable sort; overwrites the distances."""
    # The bits of non-negative numbers, read as integers, have the same order; the largest integer means "taken".
    single = distance2.dtype == np.float32
    bits = distance2.view(np.uint32 if single else np.uint64)  # unsigned: a NaN may have a sign
    np.minimum(bits, 0x7F800001 if single else 0x7FF0000000000001, out=bits)  # all kinds of NaN are equal
    order, row = bits.view(np.int32 if single else np.int64), np.arange(len(bits))
    taken = 2**31 - 1 if single else 2**63 - 1
    found = np.empty((len(order), k), np.int64)
    for i in range(k):
        found[:, i] = nearest = order.argmin(1)
        order[row, nearest] = taken
    return found


def _supports(keys: Tensor, queries: Tensor, k: int) -> bool:
    """A few neighbours, in one precision."""
    known = keys.dtype == queries.dtype and keys.dtype in (torch.float32, torch.float64)
    return known and 0 < k <= min(keys.shape[1], MOST_NEIGHBOURS) and len(queries) * queries.shape[1] > 0


nearest_k = Fast(_forward, empty, no_gradients, _supports)
