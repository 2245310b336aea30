"""Tokens of remembered views as seen from elsewhere: gathered, shifted by where their columns run, and normalised.

A view is used many times, each time by another asker, and every use is as large as the view: by parts it is written
three times on the way there. `seen_from_by_parts` is the readable twin, `seen_from` picks the fastest one for the
device; on a CPU that is the readable one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose

WIDEST = 4_096
"""Numbers of a token, for the fast twin: each lies in registers as a whole."""
TALLEST = 16_384
"""Numbers of one column of a view, for the fast twin: so does what it learns."""


def seen_from_by_parts(
    digest: Float[Tensor, "rows tokens width"],
    row: Int[Tensor, "n K"],
    column: Float[Tensor, "n K columns width"],
    eps: float = 1e-5,
) -> Float[Tensor, "n asked width"]:
    """The readable twin: added up and normalised in float32 at least, and rounded once, at the end."""
    (n, k, columns, width), tokens = column.shape, digest.shape[1]
    dtype = torch.promote_types(digest.dtype, column.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    gathered = digest.index_select(0, row.flatten()).view(n, k, tokens // columns, columns, width)
    shifted = gathered.to(wide) + column[:, :, None].to(wide)
    return F.layer_norm(shifted, (width,), eps=eps).to(dtype).view(n, k * tokens, width)


def seen_from(
    digest: Float[Tensor, "rows tokens width"],
    row: Int[Tensor, "n K"],
    column: Float[Tensor, "n K columns width"],
    eps: float = 1e-5,
) -> Float[Tensor, "n asked width"]:
    """What n askers see of K views each, `row` of `digest`: tokens of the first view, then of the second, and so on.

    Token t of a view lies in column t % columns, and is normalised after what that column says was added to it.
    """
    (rows, tokens, width), columns = digest.shape, column.shape[2]
    require(
        columns > 0 and tokens % columns == 0,
        f"views of {tokens} tokens have no {columns} columns; give as many as divide {tokens}",
    )
    precise = all(part.dtype in (torch.float32, torch.bfloat16) for part in (digest, column))
    tall = _power_of_2(tokens // columns) * _power_of_2(width)
    something = rows * tokens * width * row.numel() > 0
    can = precise and something and _power_of_2(width) <= WIDEST and tall <= TALLEST
    if choose(digest, triton=can) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.rays import seen_from_triton

        return seen_from_triton.seen(digest, row, column, eps)
    return seen_from_by_parts(digest, row, column, eps)


def _power_of_2(size: int) -> int:
    """The next one: what a GPU program holds of so many numbers."""
    return 1 << max(size - 1, 0).bit_length()
