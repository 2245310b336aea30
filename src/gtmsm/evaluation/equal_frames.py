"""A control without learning: dead reckoning by true moves, corrected where an equal frame was seen before."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.tensors import Actions, Frames

REACH = 2
"""Maximum distance, in steps, of an earlier cell with an equal frame that replaces the planned position."""


def follow_by_equal_frames(
    frames: Frames,
    actions: Actions,
    moves: Float[Tensor, "A 2"],
    last: int,
    start: Float[Tensor, "batch 2"],
    stride: int | None = None,
) -> Float[Tensor, "batch time 2"]:
    """Cells of a walk over an image by its true moves and outer walls, corrected where a frame was seen before.

    Of the earlier cells with an equal frame, the one nearest to the plan is taken; of equally near ones, the latest.
    A failed step is noticed in the same way: the frame is still that of the previous cell. `stride` is the number of
    pixels from one cell to the next. If it is given, the pixels that successive frames share tell whether a step was
    made once, twice or not at all.
    """
    # A loop over time, since each position depends on the previous ones.
    number = _numbers(frames)
    batch, steps = number.shape
    planned = actions @ moves.to(actions)
    if stride is not None:
        planned = planned * _times_made(frames, planned, stride)[..., None]
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
    """A number for each frame; equal frames have equal numbers."""
    return torch.unique(frames.flatten(2).flatten(0, 1), dim=0, return_inverse=True)[1].view(frames.shape[:2])


def _times_made(frames: Frames, planned: Float[Tensor, "batch time 2"], stride: int) -> Float[Tensor, "batch time"]:
    """How often each step was made: the first of 1, 0 and 2 times for which the shared pixels are equal; else 1."""
    made = torch.ones_like(planned[..., 0])
    for move in planned.flatten(0, 1).unique(dim=0):
        once, never, twice = (_fit(frames, times * stride * move) for times in (1, 0, 2))
        other = torch.where(never, 0.0, torch.where(twice, 2.0, 1.0)).to(made)
        this = (planned[:, 1:] == move).all(-1)
        made[:, 1:] = torch.where(this & ~once, other, made[:, 1:])
    return made


def _fit(frames: Frames, shift: Float[Tensor, "2"]) -> Bool[Tensor, "batch steps"]:
    """Whether each frame but the first equals the previous one shifted by so many pixels, where the two overlap."""
    before, now = frames[:, :-1], frames[:, 1:]
    for axis, d in enumerate(shift.long().tolist(), start=3):
        common = frames.shape[axis] - abs(d)
        if common <= 0:
            return torch.zeros(before.shape[:2], dtype=torch.bool, device=frames.device)
        before, now = before.narrow(axis, max(0, d), common), now.narrow(axis, max(0, -d), common)
    return (before == now).flatten(2).all(-1)
