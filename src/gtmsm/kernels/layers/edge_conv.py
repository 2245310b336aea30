"""The first and the last convolution of a coder, 3x3, whole: a picture has three channels, and between them are many.

Libraries are made for many channels on both sides: they pad pictures to eight, and pass over the large side again for
bias and ELU. Here a pixel with its neighbours, 9 numbers of each of its few channels, is one row of a matrix product.
`edge_conv_in_by_parts` and `edge_conv_out_by_parts` are the readable twins, `edge_conv_in` and `edge_conv_out` pick the
fastest ones for the device; on a CPU these are the readable ones.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose

FEW = 4
"""Channels of a picture, at most, for the fast twins."""
MANY = 128
"""Channels of the other side, at most, for the fast twin of the way to few: it takes all of them at once."""
WIDEST = 256
"""Pixels of a row, at most, for the same: it takes whole rows."""
MOST = 2**30
"""Pixels of all pictures, and numbers of one with many channels, for the fast twins: 32 bits count them."""


def edge_conv_in_by_parts(
    x: Float[Tensor, "m few height width"] | UInt8[Tensor, "m few height width"],
    weight: Float[Tensor, "out few 3 3"],
    bias: Float[Tensor, "out"],
    rows: Int64[Tensor, "n"] | None,
    made: torch.dtype,
) -> Float[Tensor, "n out height width"]:
    """The readable twin: bytes count from 0 to 1; autocast changes nothing, all is of the type `made`."""
    if rows is not None:
        x = x.index_select(0, rows)
    if x.dtype == torch.uint8:
        x = x.to(weight.dtype) / 255
    with torch.autocast(x.device.type, enabled=False):
        y = F.elu(F.conv2d(x.to(made), weight.to(made), bias.to(made), padding=1))
    return y.contiguous(memory_format=torch.channels_last)


def edge_conv_in(
    x: Float[Tensor, "m few height width"] | UInt8[Tensor, "m few height width"],
    weight: Float[Tensor, "out few 3 3"],
    bias: Float[Tensor, "out"],
    rows: Int64[Tensor, "n"] | None,
    made: torch.dtype,
) -> Float[Tensor, "n out height width"]:
    """ELU(conv(x) + bias), 3x3 with a border of zeros, channels last, by the fastest twin.

    With `rows` the input is x[rows], which is never copied. Nobody learns x. The result is of the type `made`, and so
    are the products: bfloat16, or float32 as exact as `torch.backends.cudnn.allow_tf32` asks for.
    """
    require(
        not x.requires_grad,
        f"a table of {len(x)} pictures requires a gradient, and the first convolution has none for them; "
        "give x.detach(), or use torch.nn.functional.conv2d",
    )
    precise = made in (torch.float32, torch.bfloat16) and x.dtype in (torch.float32, torch.uint8)
    n, (_, few, height, width) = len(x if rows is None else rows), x.shape
    small = few <= FEW and _countable(n, len(weight), height, width)
    if choose(x, triton=_in_float32(weight, bias) and precise and small and weight.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import edge_conv_triton

        return edge_conv_triton.to_many(x, weight, bias, rows, made)
    return edge_conv_in_by_parts(x, weight, bias, rows, made)


def edge_conv_out_by_parts(
    x: Float[Tensor, "n many height width"], weight: Float[Tensor, "few many 3 3"], bias: Float[Tensor, "few"]
) -> Float[Tensor, "n few height width"]:
    """The readable twin: products in the precision of x, whatever autocast says, and a result of float32 at least."""
    with torch.autocast(x.device.type, enabled=False):
        y = F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), padding=1)
    return y.to(torch.promote_types(x.dtype, torch.float32), memory_format=torch.contiguous_format)


def edge_conv_out(
    x: Float[Tensor, "n many height width"], weight: Float[Tensor, "few many 3 3"], bias: Float[Tensor, "few"]
) -> Float[Tensor, "n few height width"]:
    """conv(x) + bias, 3x3 with a border of zeros, plane by plane in float32, by the fastest twin.

    The fast one wants x channels_last, and makes its gradient so. Products are of bfloat16 where x is; those of float32
    are as exact as `torch.backends.cudnn.allow_tf32` asks for.
    """
    precise = _in_float32(weight, bias) and x.dtype in (torch.float32, torch.bfloat16)
    many, width = x.shape[1], x.shape[3]
    small = len(weight) <= FEW and many <= MANY and width <= WIDEST and _countable(*x.shape)
    if choose(x, triton=precise and small and weight.numel() > 0) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import edge_conv_triton

        return edge_conv_triton.to_few(x, weight, bias)
    return edge_conv_out_by_parts(x, weight, bias)


def _in_float32(weight: Tensor, bias: Tensor) -> bool:
    return weight.dtype == bias.dtype == torch.float32


def _countable(n: int, many: int, height: int, width: int) -> bool:
    return 0 < n * height * width < MOST and many * height * width < MOST
