"""Crops on a CPU: all that can be seen of an image become numbers once, and long walks copy them row by row."""

import torch
from torch import Tensor


def cut(images: Tensor, image: Tensor, corner: Tensor, side: int, stride: int, margin: int) -> Tensor:
    """`crops_by_windows`, faster where a walk has more steps than an image has places."""
    windows = images[image][..., margin:, margin:].unfold(2, side, stride).unfold(3, side, stride)
    n, channels, high, wide = windows.shape[:4]
    seen = windows.permute(0, 2, 3, 1, 4, 5).reshape(n * high * wide, channels * side * side).float().div_(255)
    row = (torch.arange(n)[:, None] * high + corner[..., 0]) * wide + corner[..., 1]
    return seen.index_select(0, row.flatten()).view(*corner.shape[:2], channels, side, side)
