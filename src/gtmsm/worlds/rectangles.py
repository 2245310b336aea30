"""Solid rectangles at random places of a grid, such that every free cell can be reached from every other."""

from typing import TypeAlias

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

Corner: TypeAlias = Int64[Tensor, "n tries 2"]
Solid: TypeAlias = Bool[Tensor, "n cells cells"]
"""Where no agent can go."""

TRIES = 8
"""Places tried for each rectangle; one that fits nowhere is left out."""


def most_rectangles(cells: int) -> int:
    """How many a grid could ever hold: single cells, every other row and column."""
    return ((cells + 1) // 2) ** 2


def draw_rectangles(
    keep_free: Int64[Tensor, "n 2"], cells: int, count: int, longest: int, generator: torch.Generator
) -> Solid:
    """`count` rectangles for each of `n` grids, sides uniform in 1 to `longest` < `cells`, none on the cell kept free.

    They touch neither sides nor corners of each other, so there is a way around each: no free cell is cut off.
    """
    n, device = len(keep_free), keep_free.device
    axis = torch.arange(cells, device=device)
    agent = torch.arange(n, device=device)
    solid = torch.zeros(n, cells, cells, dtype=torch.bool, device=device)
    near = torch.zeros_like(solid)
    for _ in range(count):
        chance = torch.rand(2, n, TRIES, 2, generator=generator, device=generator.device).to(device)
        side = 1 + (chance[0] * longest).long()
        first = (chance[1] * (cells - side + 1)).long()
        last = first + side - 1
        tried = _boxes(axis, first, last)
        on_start = ((first <= keep_free[:, None]) & (keep_free[:, None] <= last)).all(-1)
        fits = ~((tried & near[:, None]).any((-2, -1)) | on_start)
        chosen = fits.byte().argmax(1)
        is_placed = fits.any(1)[:, None, None]
        solid = solid | (tried[agent, chosen] & is_placed)
        near = near | (_boxes(axis, first - 1, last + 1)[agent, chosen] & is_placed)
    return solid


def _boxes(axis: Int64[Tensor, "cells"], first: Corner, last: Corner) -> Bool[Tensor, "n tries cells cells"]:
    """The cells from a first row and column to a last, as masks."""
    inside = (axis >= first[..., None]) & (axis <= last[..., None])
    return inside[:, :, 0, :, None] & inside[:, :, 1, None, :]
