"""The image that an agent walks on, enlarged: what it sees framed in yellow, solid cells hatched."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.worlds.image_walk import ImageWalkConfig

YELLOW = (1.0, 0.86, 0.0)
SOLID, SOLID_STRIPE = (0.32, 0.18, 0.18), (0.62, 0.38, 0.36)
SOLID_SHARE = 0.72
"""How much of a solid cell's colour is its own; the rest is the picture's."""


def draw_windows(
    picture: Float[Tensor, "channel size size"],
    cells: Int[Tensor, "time 2"],
    config: ImageWalkConfig,
    zoom: int,
    solid: Bool[Tensor, "cells cells"] | None = None,
) -> Float[Tensor, "time channel side side"]:
    """The image, enlarged, with what the agent sees at each cell framed in yellow (fig. 2a), solid cells hatched."""
    large = picture.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
    if solid is not None:
        large = hatched(large, config, zoom, solid.to(picture.device))
    pixel = torch.arange(large.shape[-1], device=picture.device)
    first = zoom * config.corner(cells)[..., None]
    rim = max(1, zoom // 3)
    last = first + zoom * config.crop
    within = (pixel >= first) & (pixel < last)
    deep = (pixel >= first + rim) & (pixel < last - rim)
    outer, inner = (side[:, 0, :, None] & side[:, 1, None, :] for side in (within, deep))
    return torch.where((outer & ~inner)[:, None], _colour(YELLOW, picture), large)


def hatched(
    large: Float[Tensor, "channel side side"], config: ImageWalkConfig, zoom: int, solid: Bool[Tensor, "cells cells"]
) -> Float[Tensor, "channel side side"]:
    """The middle of each solid cell, as wide as a step, under stripes that let the picture through."""
    pixel = torch.arange(large.shape[-1], device=large.device)
    middle = config.margin + (config.crop - config.stride) // 2
    cell = (pixel // zoom - middle).div(config.stride, rounding_mode="floor")
    is_cell = (cell >= 0) & (cell < config.cells)
    cell = cell.clamp(0, config.cells - 1)
    covered = solid[cell[:, None], cell] & is_cell[:, None] & is_cell
    stripe = (pixel[:, None] + pixel) // max(1, zoom // 3) % 3 == 0
    paint = torch.where(stripe, _colour(SOLID_STRIPE, large), _colour(SOLID, large))
    return torch.where(covered, SOLID_SHARE * paint + (1 - SOLID_SHARE) * large, large)


def _colour(rgb: tuple[float, float, float], like: Float[Tensor, "*picture"]) -> Float[Tensor, "3 1 1"]:
    """A colour to paint with."""
    return torch.tensor(rgb, dtype=like.dtype, device=like.device).view(-1, 1, 1)
