"""Shorten long gradients, then a step of Adam, for all parameters at once."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose

BLOCK = 1_024
"""Groups of parameters begin at multiples of this: a stretch of so many numbers belongs to one group."""

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Schedule(NamedTuple):
    """The learning rate by the number of updates done: it may rise from 0, and falls linearly."""

    first: float
    last: float
    fall: int
    """Updates until it is at its last."""
    rise: int
    """Updates until it has risen; 0: it begins at its first."""

    def rate(self, count: Int64[Tensor, ""]) -> Float[Tensor, ""]:
        """The rate of the update after `count` others."""
        done = (count.double() / self.fall).clamp(max=1.0)
        rate = self.first + (self.last - self.first) * done
        return rate * (count.double() / self.rise).clamp(max=1.0) if self.rise else rate


@dataclass(frozen=True)
class Shelf:
    """Weights, gradients and moments of all parameters, end to end, group after group."""

    weight: Float[Tensor, "size"]
    gradient: Float[Tensor, "size"]
    first: Float[Tensor, "size"]
    """Adam's running mean of the gradient."""
    second: Float[Tensor, "size"]
    """And of its square."""
    group: Int32[Tensor, "blocks"]
    """Which group each stretch of `BLOCK` numbers belongs to."""
    ends: tuple[int, ...]
    """Where each group ends."""


class Tally(NamedTuple):
    """What is counted over updates, in place, on the device."""

    done: Int64[Tensor, ""]
    """Updates done."""
    first_bad: Int64[Tensor, ""]
    """Number of the first update whose loss or gradient was not finite; 0 while there is none."""


def adam_by_parts(
    shelf: Shelf,
    faster: Float[Tensor, "groups"],
    clip: Int32[Tensor, "groups"],
    clip_norm: float,
    schedule: Schedule,
    loss: Float[Tensor, ""],
    tally: Tally,
) -> Float[Tensor, ""]:
    """The readable twin: a step of every group, at `faster` times the scheduled rate; returns the gradients' length.

    Groups of the same `clip` are shortened together to `clip_norm`; those of -1 are not counted. Gradients are used up:
    what comes next is added to zeros.
    """
    each = shelf.gradient.view(-1, BLOCK).square().sum(1)
    length2 = torch.zeros_like(faster).index_add(0, shelf.group, each)
    together = (clip[:, None] == clip).to(length2.dtype) @ length2
    shorten = torch.where(clip < 0, 1.0, (clip_norm / (together.sqrt() + 1e-6)).clamp(max=1.0))
    length = torch.where(clip < 0, 0.0, length2).sum().sqrt()
    rates = schedule.rate(tally.done) * faster
    tally.done.add_(1)
    first_scale, second_scale = (1 - beta ** tally.done.double() for beta in BETAS)
    steps = (rates / first_scale).to(faster.dtype)
    root = second_scale.sqrt().to(faster.dtype)
    for i, (begin, end) in enumerate(zip((0, *shelf.ends[:-1]), shelf.ends, strict=True)):
        weight, gradient, first, second = (
            part[begin:end] for part in (shelf.weight, shelf.gradient, shelf.first, shelf.second)
        )
        gradient.mul_(shorten[i])
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        weight.sub_((steps[i] * first).div_(second.sqrt().div_(root).add_(EPSILON)))  # in place: new memory costs more
    shelf.gradient.zero_()
    bad = ~(loss.isfinite() & length.isfinite())
    tally.first_bad.copy_(torch.where(bad & (tally.first_bad == 0), tally.done, tally.first_bad))
    return length


def adam(
    shelf: Shelf,
    faster: Float[Tensor, "groups"],
    clip: Int32[Tensor, "groups"],
    clip_norm: float,
    schedule: Schedule,
    loss: Float[Tensor, ""],
    tally: Tally,
) -> Float[Tensor, ""]:
    """`adam_by_parts`, by the fastest twin for where the tensors are."""
    if choose(shelf.weight, triton=shelf.weight.dtype == torch.float32) == "triton":
        from gtmsm.kernels.gradients import adam_triton

        return adam_triton.adam(shelf, faster, clip, clip_norm, schedule, loss, tally)
    return adam_by_parts(shelf, faster, clip, clip_norm, schedule, loss, tally)
