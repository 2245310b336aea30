"""Camera rays, and the light on the surfaces that they hit."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

NOTHING, COLUMN, SPHERE, CONE, BOX = range(5)
"""Kinds of objects."""

NEAR, FAR = 1e-3, 1e3
"""Surfaces nearer or farther than this are not seen; floors and ceilings end at FAR."""
HIDDEN = 2 * FAR
"""Depth of a surface that a ray misses."""
SLACK = 1e-5
"""Fraction of its length by which a wall is lengthened, so that no ray passes through a corner."""
DIM = 0.06
"""Attenuation of light with depth: 1 / (1 + DIM depth)."""
WALL_LIGHT = (0.82, 0.18)
"""Light on a wall that runs north, and the light added on a wall that runs east."""
LAMP = (0.36, 0.48, 0.8)
"""Unit vector towards the light that falls on objects."""
AMBIENT, DIRECT = 0.62, 0.38
"""Light on an object: AMBIENT + DIRECT times the cosine between its normal and the lamp."""


class Fan(NamedTuple):
    """Camera rays: the quantities that depend on neither the scene nor the pose."""

    eye: float
    spread: float
    """Distance between neighbouring rays at a depth of 1."""
    side: int
    """Side of a texture in texels."""
    across: Float[Tensor, "column"]
    slope: Float[Tensor, "row"]
    plane_depth: Float[Tensor, "row"]
    plane_light: Float[Tensor, "row"]
    plane_side: Int32[Tensor, "row"]
    """Side in texels of the level of detail of the floor or ceiling in that row."""
    plane_level: Int32[Tensor, "row"]
    """Offset of that level in the texture pyramid."""
    is_floor: Int64[Tensor, "row"]


def camera_rays(pixels: int, antialias: int, edge: float, eye: float, side: int, device: torch.device) -> Fan:
    """The rays of a camera; in float64 first, so that rounding does not change the level of detail of a row."""
    rays = pixels * antialias
    spread = 2 * edge / rays
    order = torch.arange(rays, device=device).view(pixels, antialias).T.flatten()
    across = ((2 * order.double() + 1) / rays - 1) * edge
    slope = -across
    height = torch.where(slope < 0, eye, 1 - eye).double()
    depth = height / slope.abs().maximum(height / FAR)
    level_side = level_side_for(spread * depth * (depth / height).clamp(min=1), side)
    return Fan(
        eye, spread, side, across.float(), slope.float(), depth.float(), (1 / (1 + DIM * depth)).float(),
        level_side, level_start(level_side, side), (slope < 0).long(),
    )  # fmt: skip


def level_side_for(covered: Float[Tensor, "*any"], side: int) -> Int32[Tensor, "*any"]:
    """Side of the level of detail whose texels are about as large as the area that a ray covers."""
    level = (covered * side).clamp(1, side).log2().round().int()
    return torch.full_like(level, side) >> level


def level_start(level_side: Int32[Tensor, "*any"], side: int) -> Int32[Tensor, "*any"]:
    """Number of texels in all finer levels."""
    return (side**2 - level_side**2) * 4 // 3


class Eyes(NamedTuple):
    """Positions of the cameras, and the direction of each column of rays in the floor plane."""

    x: Float[Tensor, "f"]
    y: Float[Tensor, "f"]
    dx: Float[Tensor, "f column"]
    dy: Float[Tensor, "f column"]
