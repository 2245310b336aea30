"""How far pictures are from the truth: squared errors of a decoder's pixels, summed over each picture."""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.kernels.choice import choose


def picture_error_by_parts(logits: Float[Tensor, "n *frame"], x: Float[Tensor, "n *frame"]) -> Float[Tensor, "n"]:
    """The readable twin: sum over pixels of (x - sigmoid(logits))^2."""
    made = torch.sigmoid(logits.to(torch.promote_types(logits.dtype, x.dtype)))
    error2 = (x - made).square()
    return error2.sum(tuple(range(1, x.dim()))) if x.dim() > 1 else error2


def picture_error(logits: Float[Tensor, "n *frame"], x: Float[Tensor, "n *truth"]) -> Float[Tensor, "n"]:
    """Sum over pixels of (x - sigmoid(logits))^2, in the precision of x, by the fastest twin.

    Either may be flat, (n, pixels), where the other is not. Only the readable twin has gradients of x: hardly anybody
    asks what the truth should have been.
    """
    if logits.shape != x.shape:
        if logits.shape[1:].numel() != x.shape[1:].numel():
            raise InputError(
                f"logits have shape {tuple(logits.shape)}, x has {tuple(x.shape)}; give as many pixels in both"
            )
        x = x.reshape(logits.shape)
    precise = logits.dtype in (torch.float32, torch.bfloat16) and x.dtype == torch.float32 and not x.requires_grad
    if choose(logits, triton=precise and logits.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.bound import picture_error_triton

        return picture_error_triton.error(logits, x)
    return picture_error_by_parts(logits, x)
