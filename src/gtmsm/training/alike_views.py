"""Pairs of views of a walk that look alike, and pairs at random to compare them with."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gtmsm.data.clip import Source
from gtmsm.pose import wrapped
from gtmsm.tensors import Actions, Frames

FEWEST_STEPS = 10
"""Minimum number of steps between the two views of a pair: closer ones are alike because the agent has hardly moved."""
SETTLED = 16
"""Steps at the start of a clip that are left out, since the velocity before them is unknown."""
KEPT = 384
"""Number of most alike pairs, and of random pairs, that are kept of each clip."""
SAME_HEADING = 0.02
"""Maximum difference, in radians, of two headings that count as equal."""
ELSEWHERE = 0.05
"""Minimum squared difference of two views of one heading that count as seen from different places (mean of all: 2)."""
COARSE = 16
"""Side in pixels to which frames are reduced before they are compared."""


class Pairs(NamedTuple):
    """Pairs of steps, the same number for each clip; `counts` is True for the pairs that are used."""

    first: Int[Tensor, "clips pairs"]
    later: Int[Tensor, "clips pairs"]
    unlike: Float[Tensor, "clips pairs"]
    """Squared difference of the two views, in units in which the mean over all pairs is 2."""
    counts: Bool[Tensor, "clips pairs"]

    def only(self, counts: Bool[Tensor, "clips pairs"]) -> "Pairs":
        """These pairs with both masks combined."""
        return self._replace(counts=self.counts & counts)

    def most_alike(self, per_clip: float) -> "Pairs":
        """The most alike pairs, on average `per_clip` of each clip."""
        unlike = self.unlike[self.counts]
        count = max(1, min(len(unlike), round(per_clip * len(self.first))))
        return self.only(self.unlike <= unlike.kthvalue(count).values) if len(unlike) else self

    def at(self, clips: Int[Tensor, "some"] | slice) -> "Pairs":
        """The pairs of some clips."""
        return Pairs(*(part[clips] for part in self))

    def between(self, running: Float[Tensor, "clips time *n"]) -> Float[Tensor, "pairs *n"]:
        """Differences of a running sum between the two views of each pair that is used."""
        clip = torch.arange(len(running), device=running.device)[:, None]
        return (running[clip, self.later] - running[clip, self.first])[self.counts]


class Walks(NamedTuple):
    """Actions of clips, and pairs of their views."""

    a: Actions
    shift: Float[Tensor, "clips time"]
    """Shift to the right of each frame relative to the previous one, in half widths of a frame."""
    alike: Pairs
    any_two: Pairs

    def part(self, clips: Int[Tensor, "some"] | slice) -> "Walks":
        """Some of the clips."""
        return Walks(self.a[clips], self.shift[clips], self.alike.at(clips), self.any_two.at(clips))


def find_pairs(
    source: Source,
    clips: int,
    steps: int,
    generator: torch.Generator,
    turn: Float[Tensor, "A"] | None = None,
    at_once: int = 64,
) -> Walks:
    """The most alike pairs of views in `clips` clips of `steps` steps, and random pairs.

    With `turn`, the turn of each action, both views of a pair have the same heading. The most alike pairs are then
    restricted to those between which the agent has moved: in between it saw two views of one heading that differ by
    more than `ELSEWHERE`.
    """
    parts = []
    for begin in range(0, clips, at_once):
        clip = source(min(at_once, clips - begin), steps, generator)
        frames = coarse(clip.x)
        heading = None if turn is None else (clip.a @ turn).cumsum(1)
        parts.append(Walks(clip.a, shifts(frames), *_pairs(frames.flatten(2), heading, generator)))
    a, shift, *pairs = zip(*parts, strict=True)
    joined = (Pairs(*map(torch.cat, zip(*several, strict=True))) for several in pairs)
    return Walks(torch.cat(a), torch.cat(shift), *joined)


def coarse(x: Frames) -> Frames:
    """Frames averaged over squares of pixels, down to about `COARSE` pixels a side."""
    pooled = nn.functional.avg_pool2d(x.flatten(0, 1), max(1, x.shape[-1] // COARSE))
    return pooled.unflatten(0, x.shape[:2])


def shifts(x: Frames) -> Float[Tensor, "batch time"]:
    """Shift to the right of each frame relative to the previous one, from their gradients; 0 for the first frame."""
    between, change = (x[:, 1:] + x[:, :-1]) / 2, (x[:, 1:] - x[:, :-1])[..., 1:-1]
    slope = (between[..., 2:] - between[..., :-2]) / 2
    pixels = -(slope * change).sum((-3, -2, -1)) / slope.square().sum((-3, -2, -1)).clamp_min(1e-3)
    return nn.functional.pad((2 / x.shape[-1] * pixels).clamp(-1, 1), (1, 0))


def _pairs(
    views: Float[Tensor, "batch time F"], heading: Float[Tensor, "batch time"] | None, generator: torch.Generator
) -> tuple[Pairs, Pairs]:
    """The most alike pairs of each clip, and random ones."""
    steps, device = views.shape[1], views.device
    unlike = torch.cdist(views, views).square() / views.var(1).sum(-1)[:, None, None]
    steps_between = torch.arange(steps, device=device)[None] - torch.arange(steps, device=device)[:, None]
    settled = torch.arange(steps, device=device)[:, None] >= min(SETTLED, steps // 4)
    eligible = (steps_between >= FEWEST_STEPS) & settled
    eligible = returned = eligible.expand_as(unlike)
    if heading is not None:
        same = wrapped(heading[:, None] - heading[:, :, None]).abs() < SAME_HEADING
        moved = unlike.masked_fill(~(same & (steps_between > 0)), 0)
        most = moved.cummax(2).values.flip(1).cummax(1).values.flip(1)  # over all views in between
        eligible, returned = eligible & same, eligible & same & (most > ELSEWHERE)
    kept = min(KEPT, steps * steps)
    lots = torch.rand(unlike.shape, device=device, generator=generator)

    def least(score: Tensor, among: Bool[Tensor, "batch time time"]) -> Pairs:
        value, index = score.masked_fill(~among, torch.inf).flatten(1).topk(kept, largest=False)
        return Pairs(index // steps, index % steps, unlike.flatten(1).gather(1, index), value.isfinite())

    return least(unlike, returned), least(lots, eligible)
