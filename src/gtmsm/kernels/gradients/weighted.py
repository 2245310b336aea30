"""Products and convolutions with weights that learn in half precision: their gradients go straight to their sinks.

PyTorch's own do the work. What is saved lies around them: a weight is cast to half precision with all others at once
(`halves`), and its gradient is made in float32 where the optimiser wants it instead of being cast, added up and copied.
Without sinks, or in full precision, these are plain PyTorch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.kernels.gradients.halves import HALF, half_of
from gtmsm.kernels.gradients.sinks import sinks_of

MADE_IN_FLOAT32 = "dtype_out" in torch.ops.aten.addmm.overloads()
"""Whether this PyTorch can add a product of halves to a matrix in float32, on a GPU: older ones cannot."""


def project(x: Float[Tensor, "*batch inputs"], *weights: Float[Tensor, "_ inputs"]) -> Float[Tensor, "*batch outputs"]:
    """x W^T for all of these weights by one product: their outputs lie side by side."""
    if (sinks := _sinks(x, *weights)) is not None:
        return _Project.apply(x, sinks, *weights)  # type: ignore[no-any-return]
    return F.linear(x, weights[0] if len(weights) == 1 else torch.cat(weights))


def convolve(
    x: Float[Tensor, "n inputs height width"],
    weight: Float[Tensor, "_ _ high wide"],
    stride: int,
    padding: int,
    transposed: bool,
) -> Float[Tensor, "n outputs high_out wide_out"]:
    """A convolution without bias, or the transpose of one."""
    if (sinks := _sinks(x, weight)) is not None:
        return _Convolve.apply(x, weight, sinks[0], (stride,) * 2, (padding,) * 2, transposed)  # type: ignore[no-any-return]
    return (F.conv_transpose2d if transposed else F.conv2d)(x, weight, None, stride, padding)


def _sinks(x: Tensor, *weights: Tensor) -> list[Tensor] | None:
    """Those of the weights, where gradients are wanted and products are of half precision."""
    device = x.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == HALF
    learning = torch.is_grad_enabled() and all(weight.requires_grad for weight in weights)
    return sinks_of(*weights) if half and learning and x.numel() else None


class _Project(torch.autograd.Function):
    """A product, and the two of the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sinks: list[Tensor], *weights: Tensor) -> Tensor:
        halved = [half_of(weight) for weight in weights]
        together = _as_one(halved)
        weight = torch.cat(halved) if together is None else together
        rows = x.flatten(0, -2).to(HALF)
        ctx.save_for_backward(rows, weight)
        ctx.sinks, ctx.shape, ctx.dtype = sinks, x.shape, x.dtype
        return (rows @ weight.T).unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        dy = dy.flatten(0, -2)
        dx = (dy @ weight).view(ctx.shape).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        _learn(ctx.sinks, dy, rows)
        return dx, None, *[None] * len(ctx.sinks)


def _learn(sinks: list[Tensor], dy: Tensor, rows: Tensor) -> None:
    """Add dy^T x to the sinks, which share its rows; in float32, where such a product can be made of halves."""
    if not (dy.is_cuda and MADE_IN_FLOAT32):
        learned = (dy.T @ rows).float()
    elif (whole := _as_one(sinks)) is None:
        learned = torch.mm(dy.T, rows, out_dtype=torch.float32)
    else:
        torch.addmm(whole, dy.T, rows, out_dtype=torch.float32, out=whole)
        return
    torch._foreach_add_(sinks, list(learned.split([len(sink) for sink in sinks])))


def _as_one(matrices: list[Tensor]) -> Tensor | None:
    """One matrix of the rows of all of these, if that is how they lie in memory."""
    storage, end = matrices[0].untyped_storage().data_ptr(), matrices[0].data_ptr()
    for matrix in matrices:
        beside = matrix.untyped_storage().data_ptr() == storage and matrix.data_ptr() == end
        if not beside or not matrix.is_contiguous():
            return None
        end += matrix.nbytes
    rows, columns = sum(len(matrix) for matrix in matrices), matrices[0].shape[1]
    return matrices[0].as_strided((rows, columns), (columns, 1))


class _Convolve(torch.autograd.Function):
    """A convolution, and the two of the way back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, sink: Tensor, stride: tuple[int, int], padding: tuple[int, int],
        transposed: bool,
    ) -> Tensor:  # fmt: skip
        ctx.dtype = x.dtype
        x, weight = x.to(HALF, memory_format=torch.channels_last), half_of(weight)
        ctx.save_for_backward(x, weight)
        ctx.sink, ctx.how = sink, (stride, padding, (1, 1), transposed, (0, 0), 1)
        return torch.convolution(x, weight, None, *ctx.how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)

        def back(into_input: bool) -> Tensor:
            wanted = [into_input, not into_input, False]
            return torch.ops.aten.convolution_backward(dy, x, weight, None, *ctx.how, wanted)[1 - into_input]

        ctx.sink.add_(back(into_input=False))
        dx = back(into_input=True).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return dx, None, None, None, None, None
