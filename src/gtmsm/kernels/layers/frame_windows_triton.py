"""Windows of frames on a GPU: read as frames lie and written as rows lie, in one launch.

What follows each other in a window comes from different lines and channels of a frame, while the same number of windows
beside each other lies in one line. So threads beside each other read windows beside each other, and have turned what
they read before they write it.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS_AT_ONCE = 8192
"""Per program of four warps: 64 in each thread, all on their way before the first is needed."""


@triton.jit(do_not_specialize=["count"])
def _cut_windows(
    x, rows, windows, count, x_frame,
    GATHERED: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, X_PLANE: tl.constexpr, X_ROW: tl.constexpr, X_COLUMN: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BELOW: tl.constexpr, RIGHT: tl.constexpr,
    ABOVE: tl.constexpr, BESIDE: tl.constexpr, WINDOWS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """[numbers, windows] are read, [windows, numbers] written; all about numbers is known when this is compiled."""
    USED: tl.constexpr = HIGH * WIDE * CHANNELS
    window = tl.program_id(0).to(tl.int64) * WINDOWS + tl.arange(0, WINDOWS)
    number = tl.arange(0, NUMBERS)
    there, used = window < count, number < USED
    frame = window // (DOWN * ACROSS)
    place = (window % (DOWN * ACROSS)).to(tl.int32)
    at = tl.load(rows + frame, there, 0) if GATHERED else frame
    first_row, first_column = place // ACROSS * BELOW - ABOVE, place % ACROSS * RIGHT - BESIDE
    down, right = number // (WIDE * CHANNELS), number // CHANNELS % WIDE
    row, column = first_row[None, :] + down[:, None], first_column[None, :] + right[:, None]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & used[:, None] & there[None, :]
    # 64 bits: a table may be larger than 2 GB, and its frames may lie in any way
    corner = at * x_frame + first_row.to(tl.int64) * X_ROW + first_column.to(tl.int64) * X_COLUMN
    beyond = (number % CHANNELS).to(tl.int64) * X_PLANE + down.to(tl.int64) * X_ROW + right.to(tl.int64) * X_COLUMN
    seen = tl.load(x + (corner[None, :] + beyond[:, None]), inside, 0.0)
    turned = tl.trans(seen.to(windows.dtype.element_ty))
    tl.store(windows + (window[:, None] * USED + number[None, :]), turned, there[:, None] & used[None, :])


def cut(
    x: Tensor,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    rows: Tensor | None,
    made: torch.dtype,
) -> Tensor:
    """`frame_windows_by_unfolding` of float32 or bfloat16 into either, without gradients."""
    n, (_, channels, height, width) = len(x if rows is None else rows), x.shape
    (high, wide), (below, right), (above, beside) = size, stride, padding
    down, across = (height + 2 * above - high) // below + 1, (width + 2 * beside - wide) // right + 1
    windows = torch.empty(n, down, across, high * wide * channels, dtype=made, device=x.device)
    if not windows.numel():
        return windows
    count, NUMBERS = n * down * across, triton.next_power_of_2(windows.shape[-1])
    WINDOWS = min(128, NUMBERS_AT_ONCE // NUMBERS)  # not more than there are threads
    _cut_windows[(triton.cdiv(count, WINDOWS),)](
        x, x if rows is None else rows.contiguous(), windows, count, x.stride(0),
        GATHERED=rows is not None, DOWN=down, ACROSS=across, CHANNELS=channels, HEIGHT=height, WIDTH=width,
        X_PLANE=x.stride(1), X_ROW=x.stride(2), X_COLUMN=x.stride(3), HIGH=high, WIDE=wide, BELOW=below, RIGHT=right,
        ABOVE=above, BESIDE=beside, WINDOWS=WINDOWS, NUMBERS=NUMBERS, num_warps=4,
    )  # fmt: skip
    return windows
