"""A layer of a small network, whole: rows of a table, weights, bias and ELU.

Networks as small as ours keep a GPU waiting for the next launch: by parts a layer is two launches on the way forward
and four on the way back, more where its rows are gathered or are bytes. `dense_layer_by_parts` is the readable twin,
`dense_layer` picks the fastest one for the device; on a CPU that is the readable one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose, products_of

MOST_EXACT = 2**28
"""Products of float32 numbers that must not be rounded to TF32, for the fast twin."""


def dense_layer_by_parts(
    x: Float[Tensor, "m inputs"] | UInt8[Tensor, "m inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, "outputs"],
    elu: bool,
    rows: Int64[Tensor, "n"] | None = None,
    half: bool = False,
    made: torch.dtype | None = None,
) -> Float[Tensor, "n outputs"]:
    """The readable twin: bytes count from 0 to 1; autocast changes nothing, `half` multiplies bfloat16.

    The result is `made`, the type of x unless something else is asked for.
    """
    if rows is not None:
        x = x.index_select(0, rows)
    if x.dtype == torch.uint8:
        x = x.to(weight.dtype) / 255
    result, product = made or x.dtype, torch.bfloat16 if half else x.dtype
    with torch.autocast(x.device.type, enabled=False):
        y = F.linear(x.to(product), weight.to(product), bias.to(product))
        return (F.elu(y) if elu else y).to(result)


def dense_layer(
    x: Float[Tensor, "m inputs"] | UInt8[Tensor, "m inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, "outputs"],
    elu: bool,
    rows: Int64[Tensor, "n"] | None = None,
    half: bool = False,
    made: torch.dtype | None = None,
) -> Float[Tensor, "n outputs"]:
    """ELU(x W^T + b), or without the ELU, by the fastest twin for where the tensors are.

    With `rows` the input is x[rows], which is never copied; x is then a table that nobody learns. On a GPU products of
    float32 are as exact as `torch.set_float32_matmul_precision` asks for; `half` makes them of bfloat16, whatever x is.
    The result is of the type `made`, that of x unless something else is asked for.
    """
    require(
        rows is None or not x.requires_grad,
        f"a table of {len(x)} rows to gather from requires a gradient, and gathered rows have none; "
        "give x.detach(), or x[rows] without rows",
    )
    in_float32 = weight.dtype == bias.dtype == torch.float32 and x.dtype in (torch.float32, torch.bfloat16, torch.uint8)
    n = len(x if rows is None else rows)
    # Where nothing may be rounded there are no tensor cores, and a library's own products are three times as fast.
    left_to_others = not half and products_of(x.dtype) == "ieee" and n * weight.numel() > MOST_EXACT
    if choose(x, triton=in_float32 and n * weight.numel() > 0 and not left_to_others) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import dense_layer_triton

        whole = torch.float32 if x.dtype == torch.uint8 else x.dtype
        return dense_layer_triton.layer(x, weight, bias, elu, rows, half, made or whole)
    return dense_layer_by_parts(x, weight, bias, elu, rows, half, made)
