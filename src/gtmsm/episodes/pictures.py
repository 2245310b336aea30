"""Pictures that environments give: which observations are pictures, and how they become frames."""

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, UInt8

from gtmsm.errors import InputError, shortened

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


def picture_shape(space: spaces.Space[Any]) -> tuple[int, int, int]:
    """Height, width and channels of the picture that an observation is, or has as its only one."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    pictures: list[Any] = [part for part in parts if is_picture(part)]
    if len(pictures) != 1:
        raise InputError(
            f"{len(pictures)} pictures in the observation {shortened(str(space), 80)}; give a Kind instead"
        )
    shape = pictures[0].shape
    height, width = shape[1:] if len(shape) == 3 and shape[2] not in (1, 3) else shape[:2]
    return height, width, channels_of(shape) or 3


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
