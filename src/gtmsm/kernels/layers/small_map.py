"""What every action does: a matrix of a few numbers applied to very many rows, in full precision.

A GPU's fast products round to three digits, and turns add up over hundreds of steps. By parts, each of the products and
sums is a launch of its own, and the way back is several; there, one kernel says it all. `small_map_by_parts` is the
readable twin, `small_map` picks the fastest one for where the tensors are.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose

MOST_INPUTS, MOST_OUTPUTS = 32, 8
"""Of a matrix that a GPU program applies in one go: its loops over both are unrolled."""


def small_map_by_parts(x: Float[Tensor, "*batch A"], M: Float[Tensor, "D A"]) -> Float[Tensor, "*batch D"]:
    """The readable twin: x M^T, without the products that a GPU rounds."""
    return (x[..., None, :] * M).sum(-1)


def small_map(x: Float[Tensor, "*batch A"], M: Float[Tensor, "D A"]) -> Float[Tensor, "*batch D"]:
    """x M^T in full precision whatever `torch.set_float32_matmul_precision` allows, by the fastest twin."""
    alike = x.dtype == M.dtype and x.dtype in (torch.float32, torch.float64)
    small = x.dtype == torch.float32 and M.shape[1] <= MOST_INPUTS and M.shape[0] <= MOST_OUTPUTS
    twin = choose(x, cpu=alike, triton=alike and small and x.numel() * len(M) > 0)
    if twin == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import small_map_triton

        return small_map_triton.apply(x, M)
    if twin == "cpu":
        # In double precision, which costs hardly more: some CPUs, too, round products of float32 where they may.
        return (x.double() @ M.double().T).to(x.dtype)
    return small_map_by_parts(x, M)
