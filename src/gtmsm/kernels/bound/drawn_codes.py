"""What an encoder said, made into codes: those of frames to be explained, a sample of each, and those of a memory.

An encoder leaves mean and log-variance side by side, for all frames at once. To take that apart and to draw from it is
a handful of small operations, and twice as many backwards, each of which is a launch of its own on a GPU; there, one
kernel does it each way.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.kernels.choice import choose


class DrawnCodes(NamedTuple):
    """q(z|x) of frames to be explained, one sample of each, and q(z|x) of memorised frames."""

    mean: Float[Tensor, "asked Z"]
    log_var: Float[Tensor, "asked Z"]
    z: Float[Tensor, "asked Z"]
    """z ~ N(mean, exp(log_var)), reparameterised; the mean where there was no noise."""
    bank_mean: Float[Tensor, "rest Z"]
    bank_log_var: Float[Tensor, "rest Z"]


def drawn_codes_by_parts(
    both: Float[Tensor, "n twice"],
    asked: int,
    noise: Float[Tensor, "asked Z"] | None,
    lowest: float,
    highest: float,
) -> DrawnCodes:
    """The readable twin: z = mean + noise exp(log_var / 2), with log_var from `lowest` to `highest`."""
    # Split, not sliced: the gradients of parts are then put together, rather than padded with zeros and added up.
    sizes, Z = [asked, len(both) - asked], both.shape[1] // 2
    means, log_vars = both.to(torch.promote_types(both.dtype, torch.float32)).split([Z, Z], dim=1)
    mean, bank_mean = means.split(sizes)
    log_var, bank_log_var = log_vars.clamp(lowest, highest).split(sizes)
    z = mean if noise is None else mean + noise * (0.5 * log_var).exp()
    return DrawnCodes(mean, log_var, z, bank_mean, bank_log_var)


def drawn_codes(
    both: Float[Tensor, "n twice"],
    asked: int,
    noise: Float[Tensor, "asked Z"] | None,
    lowest: float,
    highest: float,
) -> DrawnCodes:
    """`drawn_codes_by_parts`, by the fastest twin: the first `asked` rows are to be explained, the others memorised.

    Codes come in single precision at least, gradients in that of `both`. Only the readable twin has gradients of noise.
    """
    n, twice = both.shape
    if twice % 2:
        raise InputError(f"both has {twice} columns; give an even number, as many means as log-variances")
    if not 0 <= asked <= n:
        raise InputError(f"asked is {asked} of {n} rows; give a number from 0 to {n}")
    if noise is not None and noise.shape != (asked, twice // 2):
        raise InputError(f"noise has shape {tuple(noise.shape)}; give {(asked, twice // 2)}, as a sample has")
    easy = noise is None or (noise.dtype == torch.float32 and not noise.requires_grad)
    precise = both.dtype in (torch.float32, torch.bfloat16)
    if choose(both, triton=easy and precise and both.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import drawn_codes_triton

        return drawn_codes_triton.drawn_codes(both, asked, noise, lowest, highest)
    return drawn_codes_by_parts(both, asked, noise, lowest, highest)
