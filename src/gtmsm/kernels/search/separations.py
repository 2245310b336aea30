"""How far the entries that were found are from who asked: squared distances, with gradients.

`nearest_k` searches without gradients; this measures what it found. By parts that is some ten small operations each
way, each of which is a launch of its own on a GPU. Entries may be found many times, by one query or by several.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.search import separations_cpu
from gtmsm.tensors import gather

MOST_AXES = 8
"""Of a place on a GPU: loops over them are unrolled."""


def separations_by_parts(
    place: Float[Tensor, "batch n P"], query: Float[Tensor, "batch m P"], index: Int64[Tensor, "batch m K"]
) -> Float[Tensor, "batch m K"]:
    """The readable twin: |query - place[index]|^2."""
    return (query[:, :, None] - gather(place, index)).square().sum(-1)


def separations(
    place: Float[Tensor, "batch n P"], query: Float[Tensor, "batch m P"], index: Int64[Tensor, "batch m K"]
) -> Float[Tensor, "batch m K"]:
    """|query - place[index]|^2 by the fastest twin; on a GPU, rounding of the places' gradients may vary.

    There an entry adds up what all who found it ask of it in whatever order they come.
    """
    alike = place.dtype == query.dtype and index.numel() * place.shape[-1] > 0
    twin = choose(
        place,
        cpu=alike and place.dtype in (torch.float32, torch.float64),
        triton=alike and place.dtype == torch.float32 and place.shape[-1] <= MOST_AXES and index.numel() < 2**31,
    )
    if twin == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.search import separations_triton

        return separations_triton.measure(place, query, index)
    if twin == "cpu":
        return separations_cpu.measure(place, query, index)
    return separations_by_parts(place, query, index)
