"""The windows that a convolution looks at, cut out of frames of a table and laid side by side.

A first convolution is then one product of matrices. By parts the frames are gathered, cast, padded and copied window by
window, six launches on a GPU, each of which writes what the next one reads. `frame_windows_by_unfolding` is the
readable twin, `frame_windows` picks the fastest one for the device; on a CPU that is the readable one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.choice import choose

MOST = 256
"""Numbers of a window, at most, for the fast twin: it takes whole windows."""


def frame_windows_by_unfolding(
    x: Float[Tensor, "m channel height width"],
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    rows: Int64[Tensor, "n"] | None,
    made: torch.dtype,
) -> Float[Tensor, "n down across numbers"]:
    """The readable twin: numbers of a window are in the order of its rows, columns and channels."""
    (high, wide), (below, right), (above, beside) = size, stride, padding
    if rows is not None:
        x = x.index_select(0, rows)
    x = F.pad(x.to(made, memory_format=torch.channels_last), (beside, beside, above, above))
    return x.unfold(2, high, below).unfold(3, wide, right).permute(0, 2, 3, 4, 5, 1).flatten(3).contiguous()


def frame_windows(
    x: Float[Tensor, "m channel height width"],
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    rows: Int64[Tensor, "n"] | None,
    made: torch.dtype,
) -> Float[Tensor, "n down across numbers"]:
    """Windows of `size`, `stride` apart, of frames with a border of zeros, as `made`, by the fastest twin.

    With `rows` the frames are x[rows], which the fast twin never copies. Pairs are of rows and columns. Only the
    readable twin has gradients.
    """
    (height, width), (high, wide), (above, beside) = x.shape[2:], size, padding
    require(
        high <= height + 2 * above and wide <= width + 2 * beside,
        f"a window of {high}x{wide} does not fit into a frame of {height}x{width} with a border of {above} and "
        f"{beside}; give smaller windows or larger frames",
    )
    precise = x.dtype in (torch.float32, torch.bfloat16) and made in (torch.float32, torch.bfloat16)
    small = 0 < high * wide * x.shape[1] <= MOST
    learning = torch.is_grad_enabled() and x.requires_grad
    if choose(x, triton=precise and small and not learning) == "triton":
        # Imported here: Triton comes with the CUDA builds of PyTorch only.
        from gtmsm.kernels.layers import frame_windows_triton

        return frame_windows_triton.cut(x, size, stride, padding, rows, made)
    return frame_windows_by_unfolding(x, size, stride, padding, rows, made)
