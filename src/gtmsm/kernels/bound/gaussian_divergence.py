"""How far one Gaussian is from another, for many pairs of them: what a code costs where one view was foreseen.

By parts it is a dozen small operations, and as many backwards, each of which is a launch of its own on a GPU; there,
one kernel does it each way. For mixtures there is `mixture.mixture_divergence`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.tensors import Gaussian


def gaussian_divergence_by_parts(
    mean: Float[Tensor, "n Z"],
    log_var: Float[Tensor, "n Z"],
    other_mean: Float[Tensor, "n Z"],
    other_log_var: Float[Tensor, "n Z"],
) -> Float[Tensor, "n"]:
    """The readable twin: KL[N(mean, var) || N(other_mean, other_var)]."""
    return Gaussian(mean, log_var).divergence(Gaussian(other_mean, other_log_var))


def gaussian_divergence(
    mean: Float[Tensor, "n Z"],
    log_var: Float[Tensor, "n Z"],
    other_mean: Float[Tensor, "n Z"],
    other_log_var: Float[Tensor, "n Z"],
) -> Float[Tensor, "n"]:
    """KL[N(mean, var) || N(other_mean, other_var)], by the fastest twin."""
    parts = (mean, log_var, other_mean, other_log_var)
    precise = all(part.dtype == torch.float32 and part.device == mean.device for part in parts)
    alike = all(part.shape == mean.shape for part in parts)  # a kernel would read beyond the end of a shorter one
    if choose(mean, triton=precise and alike and mean.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import gaussian_divergence_triton

        return gaussian_divergence_triton.gaussian_divergence(*parts)
    return gaussian_divergence_by_parts(*parts)
