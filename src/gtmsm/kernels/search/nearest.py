"""The K nearest keys of each query, in a few dimensions: distance and selection in one.

A distance is a sum of squared differences, rounded axis by axis alike in every twin; equals come by index, the earliest
first. Poses that are revisited exactly make equals common, so which of them are found must not depend on the device.
`nearest_k_by_matrix` is the readable twin, `nearest_k` picks the fastest one for the device.
"""

from functools import reduce

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose
from gtmsm.kernels.search import nearest_cpu
from gtmsm.kernels.search.nearest_cpu import portions

AT_ONCE = 2**26
"""Distances that the readable twin may hold at a time."""


def nearest_k_by_matrix(
    keys: Float[Tensor, "batch n P"], queries: Float[Tensor, "batch m P"], k: int
) -> Int64[Tensor, "batch m K"]:
    """The readable twin: every distance, and a stable sort (NaN last)."""
    along = zip(queries[:, :, None].unbind(-1), keys[:, None].unbind(-1), strict=True)
    distance2 = reduce(torch.add, ((q - key).square() for q, key in along))
    return distance2.sort(dim=-1, stable=True).indices[..., :k]


def nearest_k(
    keys: Float[Tensor, "batch n P"], queries: Float[Tensor, "batch m P"], k: int
) -> Int64[Tensor, "batch m K"]:
    """Indices of the k nearest keys, nearest first, equals by index: no gradients, and the fastest twin."""
    (batch, n, axes), m = keys.shape, queries.shape[1]
    require(0 < k <= n, f"asked for {k} neighbours of {n} keys; give 1 to {n}")
    keys, queries = keys.detach(), queries.detach()
    if not batch * m:
        return torch.empty(batch, m, k, dtype=torch.int64, device=keys.device)
    single, double = (keys.dtype == queries.dtype == dtype for dtype in (torch.float32, torch.float64))
    twin = choose(
        keys,
        cpu=(single or double) and k <= nearest_cpu.MOST_NEIGHBOURS,
        triton=single and k <= 16 and axes <= 8 and n <= 2**30,  # lists in registers, indices in 32 bits
    )
    if twin == "cpu":
        return nearest_cpu.search(keys, queries, k)
    if twin == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.search import nearest_triton

        return nearest_triton.search(keys, queries, k)
    found = torch.empty(batch, m, k, dtype=torch.int64, device=keys.device)
    for some, asked in portions(batch, m, n, AT_ONCE):
        found[some, asked] = nearest_k_by_matrix(keys[some], queries[some, asked], k)
    return found
