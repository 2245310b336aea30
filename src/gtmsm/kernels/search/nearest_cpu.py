"""Nearest keys on a CPU: as many rounds of NumPy's vectorised argmin as there are neighbours, in the cache.

A selection (`topk`) of a few out of some hundred costs several times as much as their distances, and does not say
which of several equals it takes; argmin takes the first.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

IN_CACHE = 2**18
"""Distances at once: small enough to be compared where they were made."""
WORTH_THREADS = 4
"""Portions from which on they are shared between threads."""
MOST_NEIGHBOURS = 256
"""A sort finds more of them sooner."""


def portions(batch: int, m: int, n: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Parts of the batch and of its queries that make at most so many distances, or those of one query."""
    some = min(max(at_once // max(n, 1), 1), max(m, 1))
    together = max(at_once // max(n * some, 1), 1) if some == m else 1
    for first in range(0, batch, together):
        for start in range(0, m, some):
            yield slice(first, first + together), slice(start, start + some)


def search(keys: Float[Tensor, "batch n P"], queries: Float[Tensor, "batch m P"], k: int) -> Int64[Tensor, "batch m K"]:
    """`nearest_k_by_matrix` for CPU tensors in float32 or float64."""
    (batch, n, axes), m = keys.shape, queries.shape[1]
    found = np.empty((batch, m, k), np.int64)
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
    else:  # NumPy lets go of the interpreter while it computes
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(fill, every))
    return torch.from_numpy(found)


def _first(distance2: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k smallest of each row, in the order of a stable sort; overwrites the distances."""
    # A distance is not negative: its bits compare as it does, and leave room for "taken" beyond infinity and NaN.
    single = distance2.dtype == np.float32
    bits = distance2.view(np.uint32 if single else np.uint64)  # unsigned: a NaN may have a sign
    np.minimum(bits, 0x7F800001 if single else 0x7FF0000000000001, out=bits)  # whatever kind of NaN is the same
    order, row = bits.view(np.int32 if single else np.int64), np.arange(len(bits))
    taken = 2**31 - 1 if single else 2**63 - 1
    found = np.empty((len(order), k), np.int64)
    for i in range(k):
        found[:, i] = nearest = order.argmin(1)
        order[row, nearest] = taken
    return found
