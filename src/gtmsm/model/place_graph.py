"""A graph of places for loop closure: equal views are of one place, and all steps between two places count together.

A walk that returns to the same views visits few places, however long it is, so that its whole map can be corrected. If
a part of the map is misplaced, each step into it contradicts that, and the part moves as a whole. A graph of single
steps would explain each of these steps by a slip of its own, and leave the part where it is (docs/notebook.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.model.landmark_filter import Sights, Surprise
from gtmsm.model.pose_graph import SLACK, relax, stiffness, trust
from gtmsm.pose import Space

ROUNDS = ((math.inf, 0.0), (0.5, 0.0), (0.1, 0.0), (0.05, 0.0), *((1.0, slack) for slack in SLACK[-3:]))
"""Width and slack of each round. Without slack, residuals below the width, in units of a step that does not go as
planned, count by their square, others by their length: from least squares to least distances, which a minority of slips
does not affect. With slack, steps and sights are weighted as in a graph of single steps."""
FREE = 1_024
"""Maximum number of places that are corrected; those that were left longest ago are fixed."""
EXACTLY = 1 + 1e-6
"""Factor of the minimum noise up to which a sight counts as that of an equal view."""


class Sameness(NamedTuple):
    """The criterion for two views to be of the same place."""

    noise: float
    """Variance of the relative position of equal views."""
    near: tuple[float, ...]
    """Maximum distance between poses of one place, for each group of coordinates."""

    def equal(self, sights: Sights) -> Bool[Tensor, "*batch K"]:
        """Which sights are of views that are equal."""
        return (sights.noise[..., 0] <= EXACTLY * self.noise) & (sights.log_odds > -math.inf)

    def is_back(self, sights: Sights, first: int) -> Bool[Tensor, "batch"]:
        """Whether most views of each walk, of those that differ from the previous view, are equal to an earlier one.

        `first`: number of the entry of the first step. The previous view is among the sights of each step.
        """
        last = first - 1 + torch.arange(sights.index.shape[1], device=sights.index.device)[:, None]
        equal = self.equal(sights)
        moved = ~(equal & (sights.index == last)).any(-1)
        return 2 * (moved & equal.any(-1)).sum(1) > moved.sum(1)


class Edges(NamedTuple):
    """Displacements between pairs of places, by steps and by sights."""

    pair: Int[Tensor, "n 2"]
    offset: Float[Tensor, "n D"]
    """The second place in the frame of the first."""
    noise: Float[Tensor, "n G"]
    """Variances of sights."""
    log_odds: Float[Tensor, "n"]
    """Log-odds of sights."""
    steps: Int[Tensor, "n"]
    """Number of steps in the edge; 0: it is a sight, which is always the same and is kept once."""


@dataclass(frozen=True)
class PlaceGraph:
    """The places of one walk and the edges between them, as a value on the CPU, in float64."""

    first: int
    """Number of the entry of the first step."""
    of: Int[Tensor, "steps"]
    """The place of each step."""
    pose: Float[Tensor, "places D"]
    fixed: Bool[Tensor, "places"]
    past: Int[Tensor, "m 2"]
    """Numbers of recognised entries from before the walk, and their places, which are fixed."""
    edges: Edges

    @classmethod
    def begin(cls, first: int, start: Float[Tensor, "D"], groups: int) -> "PlaceGraph":
        """The graph before the first step: only the place where the walk begins."""
        pose, none = start[None].detach().cpu().double(), torch.zeros(0, dtype=torch.int64)
        edges = Edges(none.view(0, 2), pose[:0], pose.new_zeros(0, groups), pose.new_zeros(0), none)
        return cls(first, none, pose, torch.ones(1, dtype=torch.bool), none.view(0, 2), edges)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.of)

    @property
    def poses(self) -> Float[Tensor, "steps D"]:
        """The pose after each step."""
        return self.pose[self.of]

    @property
    def moves(self) -> int:
        """Number of steps that led from one place to another."""
        return int(self.edges.steps.sum())

    @property
    def is_map(self) -> bool:
        """Whether most steps led to known places: then the graph is more informative than single steps."""
        return 2 * int((~self.fixed).sum()) < self.moves

    def then(
        self,
        space: Space,
        same: Sameness,
        pose: Float[Tensor, "time D"],
        plan: Float[Tensor, "time D"],
        sights: Sights,
        place_of: Callable[[Int[Tensor, "n"]], Float[Tensor, "n D"]],
    ) -> "PlaceGraph":
        """The graph with more steps: their poses, planned displacements and sights; `place_of`: poses of the past."""
        pose, plan = pose.detach().cpu().double(), plan.detach().cpu().double()
        seen = Sights(*(part.detach().cpu() for part in sights))
        is_there = seen.log_odds > -math.inf
        graph = self._with_past(seen.index[is_there], place_of)
        known, begun, places = graph._known(seen.index[is_there]), self.first + len(self), list(graph.pose)
        last = int(self.of[-1]) if len(self) else 0
        rows: list[tuple[int, int, int, int]] = []  # the pair, the step, and index of its sight; -1: the step itself
        for t, (numbers, there, alike) in enumerate(
            zip(seen.index.tolist(), is_there.tolist(), same.equal(seen).tolist(), strict=True)
        ):
            met = [known[n] if is_met else -1 for n, is_met in zip(numbers, there, strict=True)]
            candidates = sorted({place for place, is_alike in zip(met, alike, strict=True) if is_alike})
            here = _nearest(space, same, pose[t], candidates, places)
            if here is None:
                here = len(places)
                places.append(pose[t])
            if last != here:
                rows.append((last, here, t, -1))
            rows += [(p, here, t, k) for k, p in enumerate(met) if p not in (-1, here)]
            known[begun + t] = last = here
        fixed = torch.cat([graph.fixed, self.fixed.new_zeros(len(places) - len(graph.fixed))])
        of = torch.tensor([known[begun + t] for t in range(len(pose))], dtype=torch.int64)
        added = _edges(rows, plan, seen, self.edges)
        edges = Edges(*(torch.cat(parts) for parts in zip(graph.edges, added, strict=True)))
        return replace(graph, of=torch.cat([self.of, of]), pose=torch.stack(places), fixed=fixed, edges=_pooled(edges))

    def _known(self, number: Int[Tensor, "n"]) -> dict[int, int]:
        """The places of entries of the past, and of those of `number` that are steps of the walk so far."""
        steps = number[(number >= self.first) & (number < self.first + len(self))].unique()
        return dict(self.past.tolist()) | dict(zip(steps.tolist(), self.of[steps - self.first].tolist(), strict=True))

    def _with_past(self, number: Int[Tensor, "n"], place_of: Callable[[Tensor], Tensor]) -> "PlaceGraph":
        """The graph with fixed places for those of these entries that are from before the walk."""
        number = number[number < self.first].unique()
        number = number[~torch.isin(number, self.past[:, 0])]
        if not len(number):
            return self
        pose, place = place_of(number).detach().cpu().double(), len(self.pose) + torch.arange(len(number))
        fixed = torch.cat([self.fixed, torch.ones(len(number), dtype=torch.bool)])
        past = torch.cat([self.past, torch.stack([number, place], 1)])
        return replace(self, pose=torch.cat([self.pose, pose]), fixed=fixed, past=past)

    def closed(self, space: Space, same: Sameness, surprise: Surprise, bonus: float) -> "PlaceGraph":
        """The graph with the poses that agree best with all steps and sights; places found to be one are merged."""
        pose, edges = self.pose, self.edges
        free = self._free()
        if not free.any():  # the whole walk was in known places
            return self
        row = torch.full((len(pose),), -1).masked_scatter(free, torch.arange(int(free.sum())))
        earlier, later = row[edges.pair].unbind(1)
        outer = (later < 0) & (earlier >= 0)  # swap these, so that the later end is one that may move
        swapped, made = torch.where(outer, earlier, later), edges.steps.double()
        kept = swapped >= 0
        sights = Sights(edges.pair[:, 1], edges.log_odds + bonus, edges.offset, edges.noise)
        equal = (edges.steps == 0) & same.equal(sights)
        for width, slack in ROUNDS:
            off = space.difference(space.step(pose[edges.pair[:, 0]], edges.offset), pose[edges.pair[:, 1]])
            far2, likely = space.squared_lengths(off), trust(space, off, sights)
            moved = torch.zeros_like(pose)
            for g, group in enumerate(space.groups):
                weight = (made + equal) / (far2[g] / (width**2 * surprise.stray[g])).sqrt().clamp_min(1)
                if slack:
                    loose, size = slack * surprise.mean(g), group.stop - group.start
                    stiff = stiffness(far2[g], surprise.chance_of(g), loose, surprise.stray[g], size)
                    weight = torch.where(edges.steps > 0, made * stiff, likely / edges.noise[:, g])
                signed = torch.where(outer, -1.0, 1.0)[:, None] * off[:, group]
                other = torch.where(outer, later, earlier)
                parts = (swapped[kept], other[kept], weight[kept], signed[kept])
                moved[free, group] = relax(int(free.sum()), *(part[None] for part in parts))[0][0]
            pose = pose + moved
        return replace(self, pose=pose)._merged(space, same, equal)

    def _free(self) -> Bool[Tensor, "places"]:
        """The places that may move."""
        last = torch.full((len(self.pose),), -1).scatter_reduce_(0, self.of, torch.arange(len(self)), "amax")
        last[self.fixed] = -1
        free = last >= 0
        return free & (last > last.topk(FREE + 1).values[-1]) if len(last) > FREE else free

    def _merged(self, space: Space, same: Sameness, equal: Bool[Tensor, "n"]) -> "PlaceGraph":
        """The graph with one place for places of equal views whose poses are now close to each other."""
        label = torch.arange(len(self.pose))
        pairs = self.edges.pair[equal]
        far2 = space.squared_lengths(space.difference(self.pose[pairs[:, 0]], self.pose[pairs[:, 1]]))
        near = torch.stack([far <= (0.5 * limit) ** 2 for far, limit in zip(far2, same.near, strict=True)]).all(0)
        for a, b in pairs[near & ~self.fixed[pairs].all(1)].tolist():
            one, other = int(label[a]), int(label[b])
            kept, gone = (other, one) if self.fixed[other] and not self.fixed[one] else (one, other)
            if not self.fixed[gone]:
                label[label == gone] = kept
        used, label = label.unique(return_inverse=True)
        pair, past = label[self.edges.pair], self.past.clone()
        past[:, 1] = label[past[:, 1]]
        edges = _pooled(Edges(*(part[pair[:, 0] != pair[:, 1]] for part in self.edges._replace(pair=pair))))
        return replace(self, of=label[self.of], pose=self.pose[used], fixed=self.fixed[used], past=past, edges=edges)


def _nearest(space: Space, same: Sameness, pose: Tensor, places: list[int], poses: list[Tensor]) -> int | None:
    """The nearest of these places, None if it is not near enough to be that of `pose`."""
    if not places:
        return None
    far2 = space.squared_lengths(space.difference(torch.stack([poses[place] for place in places]), pose))
    ratio2 = torch.stack([far / limit**2 for far, limit in zip(far2, same.near, strict=True)]).amax(0)
    best = int(ratio2.argmin())
    return places[best] if ratio2[best] <= 1 else None


def _edges(rows: list[tuple[int, int, int, int]], plan: Tensor, seen: Sights, like: Edges) -> Edges:
    """Edges for steps and sights, as `PlaceGraph.then` lists them."""
    if not rows:
        return Edges(*(part[:0] for part in like))
    table = torch.tensor(rows)
    t, k = table[:, 2], table[:, 3].clamp_min(0)
    is_step = table[:, 3] < 0
    offset = torch.where(is_step[:, None], plan[t], seen.offset[t, k].double())
    return Edges(table[:, :2], offset, seen.noise[t, k].double(), seen.log_odds[t, k].double(), is_step.long())


def _pooled(edges: Edges) -> Edges:
    """One edge for all equal steps between two places; of the sights between two places, the first."""
    kind = (100 * edges.offset).round().long() * (edges.steps > 0)[:, None]
    key = torch.cat([edges.pair, (edges.steps > 0)[:, None].long(), kind], 1)
    unique, which = key.unique(dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(key)).scatter_reduce_(0, which, torch.arange(len(key)), "amin")
    steps = torch.zeros(len(unique), dtype=torch.int64).scatter_add_(0, which, edges.steps)
    return Edges(*(part[first] for part in edges))._replace(steps=steps)
