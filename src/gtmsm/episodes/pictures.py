"""Pictures that environments give: which observations are pictures, and how they become frames."""

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, UInt8

Frame: TypeAlias = UInt8[np.ndarray, "height width channel"]

SMALLEST = 8
"""Pixels of a side: MiniGrid's 7x7 array of codes is no picture."""


def is_picture(space: spaces.Space[Any]) -> bool:
    """Whether observations are uint8 pictures, or floats from 0 to 1."""
    if not isinstance(space, spaces.Box) or channels_of(space.shape) is None:
        return False
    as_float = space.dtype.kind == "f" and bool((space.low == 0).all() and (space.high == 1).all())
    return space.dtype == np.uint8 or as_float


def channels_of(shape: tuple[int, ...]) -> int | None:
    """Of a picture of this shape: channels last, first or none; None where it is no picture."""
    if len(shape) == 2:
        shape = (*shape, 1)
    sides, channels = (shape[:2], shape[2]) if len(shape) == 3 and shape[2] in (1, 3) else (shape[1:], shape[0])
    return channels if len(shape) == 3 and channels in (1, 3) and min(sides) >= SMALLEST else None


def resized(picture: Frame, size: int) -> Frame:
    """A picture of `size` by `size` pixels, each the mean of the area it covers."""
    height, width, channels = picture.shape
    if not size or (height, width) == (size, size):
        return picture.copy()
    rows = _shares(height, size) @ picture.reshape(height, -1).astype(np.float32)
    mixed = _shares(width, size) @ rows.reshape(size, width, channels)
    return np.rint(mixed).astype(np.uint8)


@lru_cache(16)
def _shares(old: int, new: int) -> Float32[np.ndarray, "new old"]:
    """How much of each new pixel's mean comes from each old one."""
    ends, first = np.arange(new + 1) * old / new, np.arange(old)
    covered = np.minimum(ends[1:, None], first + 1) - np.maximum(ends[:-1, None], first)
    return (np.clip(covered, 0, None) * new / old).astype(np.float32)
