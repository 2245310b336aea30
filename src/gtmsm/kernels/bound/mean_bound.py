"""The bound of section 3.4 averaged over frames, from what each frame adds to it: one number, and its two terms."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.tensors import LOG_TWO_PI


class MeanBound(NamedTuple):
    """Averages over the frames that count, in nats."""

    loss: Float[Tensor, ""]
    """-bound, what is minimised: a change of sign would be launches of its own."""
    bound: Float[Tensor, ""]
    """log_likelihood - kl."""
    log_likelihood: Float[Tensor, ""]
    """log N(x | what z decodes to, sigma^2), summed over a frame."""
    kl: Float[Tensor, ""]


def mean_bound_by_parts(
    error2: Float[Tensor, "n"],
    kl: Float[Tensor, "n"],
    log_sigma: Float[Tensor, ""],
    pixels: int,
    counts: Bool[Tensor, "n"] | None,
) -> MeanBound:
    """The readable twin; where no frame counts, all averages are 0."""
    if counts is not None:
        # Before all else: log_sigma would learn from a frame that does not count, were its error a NaN.
        error2 = torch.where(counts, error2, 0.0)
    log_likelihood = -0.5 * (error2 * (-2 * log_sigma).exp() + pixels * (2 * log_sigma + LOG_TWO_PI))

    def mean(each: Float[Tensor, "n"]) -> Float[Tensor, ""]:
        if counts is None:
            return each.sum() / max(len(each), 1)
        return torch.where(counts, each, 0.0).sum() / counts.sum().clamp_min(1)

    bound = mean(log_likelihood - kl)
    return MeanBound(-bound, bound, mean(log_likelihood), mean(kl))


def mean_bound(
    error2: Float[Tensor, "n"],
    kl: Float[Tensor, "n"],
    log_sigma: Float[Tensor, ""],
    pixels: int,
    counts: Bool[Tensor, "n"] | None,
) -> MeanBound:
    """`mean_bound_by_parts`, by the fastest twin: squared errors of so many pixels are Gaussian, of one sigma.

    Frames that do not count may hold anything; None: all count.
    """
    precise = all(each.dtype == torch.float32 and each.device == error2.device for each in (error2, kl, log_sigma))
    # Whatever must be broadcast is left to PyTorch: a kernel would read beyond its end.
    alike = kl.shape == error2.shape and (counts is None or counts.shape == error2.shape)
    if choose(error2, triton=precise and alike and error2.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import mean_bound_triton

        return mean_bound_triton.mean_bound(error2, kl, log_sigma, pixels, counts)
    return mean_bound_by_parts(error2, kl, log_sigma, pixels, counts)
