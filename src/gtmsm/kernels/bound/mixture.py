"""How likely a code is under the entries retrieved for it, nearer ones weighing more: the mixture of App. A.1.

log p(z) = log sum_k w_k N(z | bank[row_k]), with w_k proportional to 1 / (distance2_k + delta). The twins by parts say
it in a dozen small operations, each of which is a launch of its own on a GPU; there, one kernel says it all. Entries
may be retrieved many times, by one query or by several.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.bound import mixture_cpu
from gtmsm.kernels.choice import Twin, choose
from gtmsm.tensors import Gaussian


def mixture_log_prob_by_parts(
    z: Float[Tensor, "n Z"],
    bank_mean: Float[Tensor, "rows Z"],
    bank_log_var: Float[Tensor, "rows Z"],
    row: Int[Tensor, "n K"],
    distance2: Float[Tensor, "n K"],
    delta: float,
) -> Float[Tensor, "n"]:
    """The readable twin: log sum_k w_k N(z | bank[row_k])."""
    log_weight = torch.log_softmax(-(distance2 + delta).log(), dim=-1)
    component = Gaussian(bank_mean, bank_log_var).take(row)
    return torch.logsumexp(log_weight + component.log_prob(z[:, None]), dim=-1)


def mixture_divergence_by_parts(
    mean: Float[Tensor, "n Z"],
    log_var: Float[Tensor, "n Z"],
    z: Float[Tensor, "n Z"],
    bank_mean: Float[Tensor, "rows Z"],
    bank_log_var: Float[Tensor, "rows Z"],
    row: Int[Tensor, "n K"],
    distance2: Float[Tensor, "n K"],
    delta: float,
) -> Float[Tensor, "n"]:
    """The readable twin: log N(z | mean, var) - log p(z), KL[N(mean, var) || p] by one sample z."""
    log_prob = mixture_log_prob_by_parts(z, bank_mean, bank_log_var, row, distance2, delta)
    return Gaussian(mean, log_var).log_prob(z) - log_prob


def mixture_log_prob(
    z: Float[Tensor, "n Z"],
    bank_mean: Float[Tensor, "rows Z"],
    bank_log_var: Float[Tensor, "rows Z"],
    row: Int[Tensor, "n K"],
    distance2: Float[Tensor, "n K"],
    delta: float,
) -> Float[Tensor, "n"]:
    """log sum_k w_k N(z | bank[row_k]), by the fastest twin; on a GPU, rounding of the bank's gradients may vary."""
    twin = _twin(row, z, bank_mean, bank_log_var, distance2)
    if twin == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import mixture_triton

        return mixture_triton.log_prob(z, bank_mean, bank_log_var, row, distance2, delta)
    if twin == "cpu":
        return mixture_cpu.log_prob(z, bank_mean, bank_log_var, row, distance2, delta)
    return mixture_log_prob_by_parts(z, bank_mean, bank_log_var, row, distance2, delta)


def mixture_divergence(
    mean: Float[Tensor, "n Z"],
    log_var: Float[Tensor, "n Z"],
    z: Float[Tensor, "n Z"],
    bank_mean: Float[Tensor, "rows Z"],
    bank_log_var: Float[Tensor, "rows Z"],
    row: Int[Tensor, "n K"],
    distance2: Float[Tensor, "n K"],
    delta: float,
) -> Float[Tensor, "n"]:
    """log N(z | mean, var) - log p(z), by the fastest twin; on a GPU, rounding of the bank's gradients may vary."""
    twin = _twin(row, z, mean, log_var, bank_mean, bank_log_var, distance2)
    if twin == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import mixture_triton

        return mixture_triton.divergence(mean, log_var, z, bank_mean, bank_log_var, row, distance2, delta)
    if twin == "cpu":
        return mixture_cpu.divergence(mean, log_var, z, bank_mean, bank_log_var, row, distance2, delta)
    return mixture_divergence_by_parts(mean, log_var, z, bank_mean, bank_log_var, row, distance2, delta)


def _twin(row: Tensor, z: Tensor, *floats: Tensor) -> Twin:
    """Fast ones want something to do, in one precision; on a GPU, in single precision."""
    alike = row.numel() > 0 and z.numel() > 0 and all(x.dtype == z.dtype for x in floats)
    return choose(z, cpu=alike and z.dtype in (torch.float32, torch.float64), triton=alike and z.dtype == torch.float32)
