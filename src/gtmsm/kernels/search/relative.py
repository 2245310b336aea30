"""How the places that were found lie from who asked, where both have a heading: what a prior knows of a view.

By parts that is a gather and some ten small operations each way, each of which is a launch of its own on a GPU. Entries
may be found many times, by one query or by several.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.tensors import gather


def seen_from(place: Float[Tensor, "*batch 4"], query: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Where it lies ahead and to the left of an agent at `query`, and cos and sin of how far it is turned."""
    (dx, dy), (c, s) = (place - query)[..., :2].unbind(-1), query[..., 2:].unbind(-1)
    to_c, to_s = place[..., 2:].unbind(-1)
    return torch.stack([c * dx + s * dy, c * dy - s * dx, c * to_c + s * to_s, c * to_s - s * to_c], dim=-1)


def relative_by_parts(
    place: Float[Tensor, "batch n 4"], query: Float[Tensor, "batch m 4"], index: Int64[Tensor, "batch m K"]
) -> Float[Tensor, "batch m K 4"]:
    """The readable twin: place[index], seen from each query; places are (x, y, cos, sin)."""
    return seen_from(gather(place, index), query[:, :, None])


def relative(
    place: Float[Tensor, "batch n 4"], query: Float[Tensor, "batch m 4"], index: Int64[Tensor, "batch m K"]
) -> Float[Tensor, "batch m K 4"]:
    """place[index] seen from each query by the fastest twin; on a GPU, rounding of the places' gradients may vary.

    There an entry adds up what all who found it ask of it in whatever order they come.
    """
    alike = place.dtype == query.dtype == torch.float32 and 0 < index.numel() < 2**31
    if choose(place, triton=alike) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.search import relative_triton

        return relative_triton.seen(place, query, index)
    return relative_by_parts(place, query, index)
