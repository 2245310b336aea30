"""Pictures from environments and files: which observations are pictures, and how they become frames."""

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from jaxtyping import Float32, UInt8
from PIL import Image

from gtmsm.config import require
from gtmsm.errors import shown
from gtmsm.files import open_picture

Frame: TypeAlias = UInt8[np.ndarray, "height width channel"]

SMALLEST = 8
"""Minimum side of a picture in pixels: MiniGrid's 7x7 array of codes is not a picture."""


def white_of(space: spaces.Space[Any]) -> float:
    """The number that is white in pictures of this space, 255 or 1; 0 if its observations are not pictures."""
    if not isinstance(space, spaces.Box) or channels_of(space.shape) is None:
        return 0.0
    if space.dtype == np.uint8:
        return 255.0
    white = float(space.high.flat[0])
    even = bool((space.low == 0).all() and (space.high == white).all())
    return white if space.dtype.kind == "f" and even and white in (1.0, 255.0) else 0.0


def channels_of(shape: tuple[int, ...]) -> int | None:
    """Number of channels of a picture of this shape (channels last, first or absent); None if it is not a picture."""
    if len(shape) == 2:
        shape = (*shape, 1)
    sides, channels = (shape[:2], shape[2]) if len(shape) == 3 and shape[2] in (1, 3) else (shape[1:], shape[0])
    return channels if len(shape) == 3 and channels in (1, 3) and min(sides) >= SMALLEST else None


def resized(
    pictures: UInt8[np.ndarray, "*n height width channel"], height: int, width: int | None = None
) -> UInt8[np.ndarray, "*n new_height new_width channel"]:
    """Resize pictures, each pixel the mean of its area; to a square without `width`, not at all if `height` is 0."""
    fits = isinstance(pictures, np.ndarray) and pictures.dtype == np.uint8 and pictures.ndim >= 3
    found = f"{pictures.dtype} of shape {pictures.shape}" if isinstance(pictures, np.ndarray) else shown(pictures)
    require(fits, f"a picture is {found}; expected uint8 of shape (height, width, channels), white as 255")
    *n, old_height, old_width, channels = pictures.shape
    width = height if width is None else width
    if not height or (old_height, old_width) == (height, width):
        return pictures.copy()
    rows = _shares(old_height, height) @ pictures.reshape(-1, old_height, old_width * channels).astype(np.float32)
    mixed = rows.reshape(-1, old_width, channels).swapaxes(1, 2).reshape(-1, old_width) @ _shares(old_width, width).T
    back = np.rint(mixed).astype(np.uint8).reshape(*n, height, channels, width).swapaxes(-1, -2)
    return np.ascontiguousarray(back)


@lru_cache(16)
def _shares(old: int, new: int) -> Float32[np.ndarray, "new old"]:
    """Weight of each old pixel in the mean of each new one."""
    ends, first = np.arange(new + 1) * old / new, np.arange(old)
    covered = np.minimum(ends[1:, None], first + 1) - np.maximum(ends[:-1, None], first)
    return (np.clip(covered, 0, None) * new / old).astype(np.float32)


def of_file(path: Path) -> Frame:
    """Read a PNG or JPEG file."""
    with open_picture(path) as image:
        return _pixels(image)


def of_bytes(content: bytes) -> Frame:
    """Decode a PNG or JPEG that was stored inside another file."""
    with open_picture(content) as image:
        return _pixels(image)


def _pixels(image: Image.Image) -> Frame:
    """One channel if the picture is grey, else RGB."""
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image.convert("RGB"))
