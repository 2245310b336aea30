"""Films of an agent on its map."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from gtmsm.worlds.floor_map import OUTSIDE, SHARP, Colour, FloorMap

Walk: TypeAlias = Float[Tensor, "time 3"]
TRUE: Colour = (213, 94, 58)
INFERRED: Colour = (47, 134, 209)
"""Colours of poses, as in figures: red is the true one, blue the inferred one."""


def film_map(
    floor: FloorMap, true_pose: Walk, tau: int, size: int, inferred_pose: Walk | None = None, trail: bool = False
) -> UInt8[np.ndarray, "future size size 3"]:
    """One map per step after tau: a dot at every memorised place, the true pose, and a smaller inferred one on top."""
    # A smaller map is faster to draw on, hundreds of times.
    picture = floor.image.resize((SHARP * size, SHARP * size), Image.Resampling.BOX)
    floor = replace(floor, image=picture, scale=floor.scale * SHARP * size / floor.image.width)
    side = floor.image.width / floor.scale  # markers have the same size on maps of different scale
    floor = floor.dots(true_pose[:tau], radius=0.009 * side)
    frames = []
    for step in range(tau, len(true_pose)):
        if trail and step > tau:
            floor = floor.path(true_pose[step - 1 : step + 1], width=0.012 * side)
        present = floor.agent(true_pose[step], TRUE, radius=0.1 * side)
        if inferred_pose is not None:
            present = present.agent(inferred_pose[step], INFERRED, radius=0.055 * side)
        frames.append(present.pixels())
    return np.stack(frames)


def extent_of(floor: FloorMap) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a map, in units of the world."""
    (x, y), side = floor.corner, floor.image.width / floor.scale
    return x, x + side, y, y + side


def bounds_of(floor: FloorMap) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the drawn part of a map, without its empty margins."""
    drawn = (np.asarray(floor.image) != np.array(OUTSIDE)).any(-1)
    (top, bottom), (left, right) = (np.flatnonzero(drawn.any(axis))[[0, -1]] for axis in (1, 0))
    (x, y), height = floor.corner, floor.image.height - 1
    west, east = (x + float(pixel) / floor.scale for pixel in (left, right))
    south, north = (y + float(height - pixel) / floor.scale for pixel in (bottom, top))
    return west, east, south, north


def tensor_of(poses: Float[np.ndarray, "time 3"]) -> Walk:
    """Poses as a float32 tensor, for the methods of `FloorMap`."""
    return torch.from_numpy(np.ascontiguousarray(poses, dtype=np.float32))
