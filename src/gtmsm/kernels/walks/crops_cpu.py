"""Crops on a CPU: every window of an image becomes floats once, and long walks copy them row by row."""

import torch
from torch import Tensor

from gtmsm.kernels.operator import Fast


def empty(images: Tensor, image: Tensor, corner: Tensor, side: int, stride: int, margin: int) -> list[Tensor]:
    """Frames."""
    return [torch.empty(*corner.shape[:2], images.shape[1], side, side, device=images.device)]


def _forward(images: Tensor, image: Tensor, corner: Tensor, side: int, stride: int, margin: int) -> list[Tensor]:
    windows = images[image][..., margin:, margin:].unfold(2, side, stride).unfold(3, side, stride)
    n, channels, high, wide = windows.shape[:4]
    seen = windows.permute(0, 2, 3, 1, 4, 5).reshape(n * high * wide, channels * side * side).float().div_(255)
    row = (torch.arange(n)[:, None] * high + corner[..., 0]) * wide + corner[..., 1]
    return [seen.index_select(0, row.flatten()).view(*corner.shape[:2], channels, side, side)]


def _supports(images: Tensor, image: Tensor, corner: Tensor, side: int, stride: int, margin: int) -> bool:
    """Walks with more steps than an image has windows."""
    high, wide = ((size - margin - side) // stride + 1 for size in images.shape[2:])
    return 0 < high * wide <= corner.shape[1]


crops = Fast(_forward, empty, supports=_supports)
