"""Attention of few queries to many keys, as the rays of one view ask those of the views it is made from.

All queries of a head fit into one program, so keys and values are read once on the way forward and once on the way
back, and no program waits for another to add up a gradient. `attend_by_parts` is the readable twin, `attend` picks the
fastest one for the device; on a CPU that is the readable one.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose

HEADS_OF = (16, 32, 64, 128)
"""Sizes of a head that the fast twin can do."""
MOST_QUERIES = 128
"""For the fast twin: more would not fit into one program."""
MOST_IN_FLOAT32 = 64 * 64
"""Numbers of one head's queries, for the fast twin in float32: twice the bytes, and room for half as many."""
FARTHEST = 2**24
"""Numbers between two tokens, for the fast twin: 32 bits count those of a block of them."""

Gradients: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Where gradients of query, key and value are to be written; None: somewhere new."""


def attend_by_parts(
    query: Float[Tensor, "n asking width"],
    key: Float[Tensor, "n asked width"],
    value: Float[Tensor, "n asked width"],
    head: int,
) -> Float[Tensor, "n asking width"]:
    """The readable twin: PyTorch's own attention, in the precision of what is given, whatever autocast says."""
    heads = (x.unflatten(-1, (x.shape[-1] // head, head)).transpose(1, 2) for x in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


def attend(
    query: Float[Tensor, "n asking width"],
    key: Float[Tensor, "n asked width"],
    value: Float[Tensor, "n asked width"],
    head: int,
    gradients: Gradients | None = None,
) -> Float[Tensor, "n asking width"]:
    """softmax(q k^T / sqrt(head)) v for every head, by the fastest twin for where the tensors are.

    Heads lie beside each other within the width. What is given may be slices of larger tensors and is never copied.

    `gradients` are tensors, perhaps slices of a larger one too, that the way back writes the gradients into and then
    hands on: whoever made several inputs by one product finds their gradients in one tensor. They must not be looked at
    or reused before that, and a second way back through the same graph overwrites them. Only the fast twin fills them;
    else they are left alone and autograd makes its own, so that what counts is always the gradient handed on.
    """
    given = (query, key, value)
    width = query.shape[-1]
    require(
        head > 0 and width % head == 0,
        f"a width of {width} is not a whole number of heads of {head}; give a head that divides it",
    )
    for name, x, into in zip(("query", "key", "value"), given, gradients or (None,) * 3, strict=True):
        _require_room(name, x, into)
    used = [x for x in (*given, *(gradients or ())) if x is not None]
    laid_out = all(x.stride(2) == 1 and x.stride(1) < FARTHEST for x in used)
    precise = len({x.dtype for x in given}) == 1 and query.dtype in (torch.float32, torch.bfloat16)
    asking = query.shape[1]
    rounded = 1 << max(asking - 1, 15).bit_length()  # to a power of two from 16 on
    fits = asking <= MOST_QUERIES and (query.dtype == torch.bfloat16 or rounded * head <= MOST_IN_FLOAT32)
    empty = 0 in (query.numel(), key.numel())
    if choose(query, triton=head in HEADS_OF and laid_out and precise and fits and not empty) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.rays import attend_triton

        return attend_triton.attended(query, key, value, head, gradients or (None, None, None))
    return attend_by_parts(query, key, value, head)


def _require_room(name: str, x: Tensor, into: Tensor | None) -> None:
    """Refuse a tensor that cannot hold the gradients of x."""
    if into is None:
        return
    fits = into.shape == x.shape and into.dtype == x.dtype and into.device == x.device
    require(
        fits and not into.requires_grad and (x.numel() == 0 or into.stride(2) == 1),
        f"a tensor {tuple(into.shape)} of {into.dtype} on {into.device} with strides {into.stride()} cannot hold the "
        f"gradients of {name}; give one {tuple(x.shape)} of {x.dtype} on {x.device} that requires no gradient itself, "
        "with numbers of a token beside each other",
    )
