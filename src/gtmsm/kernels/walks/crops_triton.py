"""Crops on a GPU: a program cuts several frames, pixel by pixel in the order of the output."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast

PIXELS_AT_ONCE = 1024
"""Pixels per program of four warps: eight in each thread."""


@triton.jit
def _cut(
    images, image, corner, frames, count, time, pixels, stride, margin,
    by_image, by_channel, by_row, by_column, SIDE: tl.constexpr, FRAMES: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    frame = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    shown = frame < count
    which = tl.load(image + frame // time, shown, 0).to(tl.int64)
    row = margin + stride * tl.load(corner + 2 * frame, shown, 0).to(tl.int64)
    column = margin + stride * tl.load(corner + 2 * frame + 1, shown, 0).to(tl.int64)
    first = which * by_image + row * by_row + column * by_column
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = pixel // (SIDE * SIDE) * by_channel + pixel // SIDE % SIDE * by_row + pixel % SIDE * by_column
    there = shown[:, None] & (pixel < pixels)[None, :]
    colour = tl.load(images + first[:, None] + inside[None, :], there, 0).to(tl.float32)
    at = frame.to(tl.int64)[:, None] * pixels + pixel[None, :]
    # rounded as on a CPU, so that a frame is the same on any device
    tl.store(frames + at, tl.div_rn(colour, tl.full([FRAMES, PIXELS], 255.0, tl.float32)), there)


def _forward(images: Tensor, image: Tensor, corner: Tensor, side: int, stride: int, margin: int) -> list[Tensor]:
    """One launch."""
    frames = torch.empty(*corner.shape[:2], images.shape[1], side, side, device=images.device)
    if not frames.numel():
        return [frames]
    count, pixels = corner.shape[0] * corner.shape[1], images.shape[1] * side * side
    PIXELS = min(PIXELS_AT_ONCE, triton.next_power_of_2(pixels))
    FRAMES = PIXELS_AT_ONCE // PIXELS
    _cut[(triton.cdiv(count, FRAMES), triton.cdiv(pixels, PIXELS))](
        images, image.contiguous(), corner.contiguous(), frames, count, corner.shape[1], pixels, stride, margin,
        *images.stride(), SIDE=side, FRAMES=FRAMES, PIXELS=PIXELS, num_warps=4,
    )  # fmt: skip
    return [frames]


crops = Fast(_forward)
