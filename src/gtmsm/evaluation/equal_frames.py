"""A control without learning: who is told how far each action moves, and believes that equal frames are one place."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.tensors import Actions, Frames

REACH = 2
"""Steps from where the plan leads within which an earlier place with an equal frame is believed."""


def follow_by_equal_frames(
    frames: Frames, actions: Actions, moves: Float[Tensor, "A 2"], last: int, start: Float[Tensor, "batch 2"]
) -> Float[Tensor, "batch time 2"]:
    """Cells of a walk over an image by its true moves and outer walls, corrected where a frame was seen before.

    Of the earlier cells with an equal frame the nearest to the plan is taken, of equally near ones the latest. It is
    also how a step that failed is noticed: the frame is still that of the cell before.
    """
    # A loop over time, since each belief depends on those before it.
    number = _numbers(frames)
    batch, steps = number.shape
    planned = actions @ moves.to(actions)
    cells = start.new_zeros(batch, steps, 2)
    here = start
    for t in range(steps):
        there = (here + planned[:, t]).clamp(0, last)
        if t:
            away = (cells[:, :t] - there[:, None]).abs().sum(-1)
            known = (number[:, :t] == number[:, t : t + 1]) & (away <= REACH)
            age = torch.arange(t, 0, -1, device=away.device) / (t + 1)  # below 1, so that it only breaks ties
            nearest = torch.where(known, away + age, torch.inf).min(1)
            again = cells[:, :t].gather(1, nearest.indices[:, None, None].expand(-1, -1, 2))[:, 0]
            there = torch.where(nearest.values.isfinite()[:, None], again, there)
        cells[:, t] = here = there
    return cells


def _numbers(frames: Frames) -> Int[Tensor, "batch time"]:
    """Equal frames have equal numbers."""
    return torch.unique(frames.flatten(2).flatten(0, 1), dim=0, return_inverse=True)[1].view(frames.shape[:2])
