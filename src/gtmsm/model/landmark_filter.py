"""The filter of App. D with Bayes' rule for beta: a walk whose poses are corrected by the places recognised on the way.

At each step the planned pose meets K' sights; each says: this looks like entry k, seen from this relative pose.
Bayes' rule weighs the sights against each other, and against the hypothesis that none of them is right.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.scans.landmark_scan import landmark_scan
from gtmsm.kernels.scans.walled_scan import Gate
from gtmsm.pose import Space
from gtmsm.tensors import LOG_TWO_PI, EntryPoses, Pose, State, States, Variance, gather

Past: TypeAlias = tuple[EntryPoses, Float[Tensor, "batch n G"]]
"""Poses of the entries of a map, and their variances."""
Move: TypeAlias = Callable[[State, int], State]
"""move(s, t): the planned state after step t from s."""
Settle: TypeAlias = Callable[[State, Float[Tensor, "batch D"]], State]
"""settle(s, pose): the state s with its pose corrected."""


class Sights(NamedTuple):
    """The K' entries of memory that match the frame of a step, and what each says of the agent's pose."""

    index: Int[Tensor, "*batch K"]  # type: ignore[assignment]  # hides a method of tuples
    """Number of the entry: entries of the past come first, then the steps of this walk."""
    log_odds: Float[Tensor, "*batch K"]
    """That the match is right, per unit of area, before poses are compared; -inf where there is no such entry."""
    offset: Float[Tensor, "*batch K D"]
    """The agent's displacement from the entry's pose, in the frame of the entry."""
    noise: Float[Tensor, "*batch K G"]
    """Variance of that displacement if the match is right."""

    def at(self, t: int) -> "Sights":
        """Those of one step."""
        return Sights(*(part[:, t] for part in self))


class Surprise(NamedTuple):
    """The noise of a step, which goes as planned or otherwise; variances of the position and of a heading if any."""

    chance: float
    """Probability that a step goes otherwise."""
    planned: tuple[float, ...]
    """Variance of a step that goes as planned."""
    stray: tuple[float, ...]
    """Variance of one that does not."""
    chances: tuple[float, ...] | None = None
    """Where the last frame is asked first how a step went: the same probability for the position and for a heading,
    each by itself; None: it counts as one sight among others, and a step goes otherwise in all of its coordinates."""
    doubt: float = 0.0
    """Nats that were subtracted from the log-odds of sights, and do not count where the last frame is asked first."""

    def of_any_step(self) -> "Surprise":
        """The same where actions are unknown: nearly every step goes otherwise."""
        return self._replace(chance=0.9, chances=None if self.chances is None else (0.9,) * len(self.chances))

    def chance_of(self, group: int) -> float:
        """Probability that one group of coordinates goes otherwise."""
        return self.chance if self.chances is None else self.chances[group]

    def mean(self, group: int) -> float:
        """Variance of any step, for one group of coordinates."""
        chance = self.chance_of(group)
        return (1 - chance) * self.planned[group] + chance * self.stray[group]

    def components(self) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Probability and variances of both."""
        return (1 - self.chance, self.planned), (self.chance, self.stray)


class Track(NamedTuple):
    """q*(s_t) for every step of a walk."""

    state: States
    """Means."""
    variance: Variance
    """Of the position and, where there is one, of the heading."""


class Way(NamedTuple):
    """One way in which a step may have gone."""

    log_chance: Float[Tensor, "*batch"]
    pose: Pose
    """Mean of the pose after it, given the inferred pose before it ..."""
    fresh: Variance
    """... and the variance that it added."""


OUTLIERS, WIDER = 0.1, 9.0
"""Fraction of outliers among comparisons of successive frames, and the factor of their variance."""


def prior_ways(planned: Pose, surprise: Surprise) -> list[Way]:
    """The two ways without a frame: as planned, or otherwise."""

    # Filled on the device: a graph under capture can take no tensor from the CPU.
    def all_of(*numbers: float) -> Float[Tensor, "*batch numbers"]:
        return torch.stack([torch.full_like(planned[..., 0], number) for number in numbers], dim=-1)

    return [Way(all_of(math.log(chance))[..., 0], planned, all_of(*fresh)) for chance, fresh in surprise.components()]


def seen_ways(space: Space, planned: Pose, last: Sights, entry: Pose, surprise: Surprise) -> list[Way]:
    """What the last frame says of a step: each group of coordinates went as planned or otherwise, by Bayes' rule.

    `last` is the sight of the last frame, without its axis K, and `entry` the pose that the frame was seen from.
    """
    assert surprise.chances is not None
    away = space.difference(planned, space.step(entry, last.offset))
    is_there, ways = last.log_odds > -math.inf, []
    far2 = space.squared_lengths(away)
    sizes = [group.stop - group.start for group in space.groups]
    for kinds in itertools.product((False, True), repeat=len(sizes)):
        chances = [c if other else 1 - c for c, other in zip(surprise.chances, kinds, strict=False)]
        fresh = [surprise.stray[g] if other else surprise.planned[g] for g, other in enumerate(kinds)]
        agreed = []
        for weight, scale in ((1 - OUTLIERS, 1.0), (OUTLIERS, WIDER)):
            log_density = last.log_odds + surprise.doubt + math.log(weight)
            for g, size in enumerate(sizes):
                total = scale * last.noise[..., g] + fresh[g]
                log_density = log_density - 0.5 * (size * (LOG_TWO_PI + total.log()) + far2[g] / total)
            agreed.append(log_density)
        wrong = torch.zeros_like(last.log_odds)
        log_chance = math.log(math.prod(chances)) + torch.logsumexp(torch.stack([*agreed, wrong]), dim=0)
        gain = [torch.where(is_there, fresh[g] / (fresh[g] + last.noise[..., g]), 0.0) for g in range(len(sizes))]
        moved = torch.cat([gain[g][..., None] * away[..., group] for g, group in enumerate(space.groups)], dim=-1)
        added = [torch.where(is_there, gain[g] * last.noise[..., g], fresh[g]) for g in range(len(sizes))]
        ways.append(Way(log_chance, planned + moved, torch.stack(added, -1)))
    norm = torch.logsumexp(torch.stack([way.log_chance for way in ways]), dim=0)
    return [way._replace(log_chance=way.log_chance - norm) for way in ways]


class Fused(NamedTuple):
    """The belief after a step and its sights."""

    pose: Pose
    variance: Variance
    beta: Float[Tensor, "*batch K"]
    """App. D's beta, for the position: the fraction of the way to each sight that the plan was moved."""


def fuse(
    space: Space,
    planned: Pose,
    variance: Variance,
    sighted: Float[Tensor, "*batch K D"],
    known: Float[Tensor, "*batch K G"],
    log_odds: Float[Tensor, "*batch K"],
    noise: Float[Tensor, "*batch K G"],
    surprise: Surprise,
    ways: Sequence[Way] | None = None,
) -> Fused:
    """Bayes' rule over the ways of a step and K' + 1 hypotheses for each: sight k is right; or none is.

    `variance` is that of the pose before the step, `known` that of the entries sighted. Errors of the agent and of an
    entry that have a common past cancel: what is uncertain between them is what was added since. A sight that is right
    brings the agent to where the entry lies on the map, errors of the map included; the gain is below 1 only because of
    the noise of the sight itself. `ways`: those of `seen_ways`; by default as planned or otherwise.
    """
    ways = ways or prior_ways(planned, surprise)
    log_weight, moves, spreads, gains = [], [], [], []
    for way in ways:
        away = space.difference(way.pose[..., None, :], sighted)
        far2, shift = space.squared_lengths(away), space.difference(planned, way.pose)
        log_w, moved, spread, gain = log_odds + way.log_chance[..., None], [], [], []
        for g, group in enumerate(space.groups):
            free = (variance[..., None, g] - known[..., g]).clamp_min(0) + way.fresh[..., None, g]
            total = free + noise[..., g]
            log_w = log_w - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + total.log()) + far2[g] / total)
            gain.append(free / total)
            seen = shift[..., None, group] + gain[g][..., None] * away[..., group]
            moved.append(torch.cat([seen, shift[..., None, group]], dim=-2))
            lost = (variance[..., g] + way.fresh[..., g])[..., None]
            spread.append(torch.cat([known[..., g] + gain[g] * noise[..., g], lost], dim=-1))
        log_weight.append(torch.cat([log_w, way.log_chance[..., None]], dim=-1))
        moves.append(moved)
        spreads.append(spread)
        gains.append(gain[0])
    weight = torch.softmax(torch.cat(log_weight, dim=-1), dim=-1)
    pose, variances = [], []
    for g, group in enumerate(space.groups):
        means = torch.cat([each[g] for each in moves], dim=-2)
        mean = (weight[..., None] * means).sum(-2)
        scatter = (weight * means.square().sum(-1)).sum(-1) - mean.square().sum(-1)
        within = (weight * torch.cat([each[g] for each in spreads], dim=-1)).sum(-1)
        pose.append(planned[..., group] + mean)
        variances.append(within + scatter.clamp_min(0) / (group.stop - group.start))
    right = weight.unflatten(-1, (len(ways), -1))[..., :-1]
    beta = (right * torch.stack(gains, dim=-2)).sum(-2)
    return Fused(torch.cat(pose, -1), torch.stack(variances, -1), beta)


def filter_by_steps(
    space: Space,
    move: Move,
    settle: Settle,
    start: State,
    variance: Variance,
    sights: Sights,
    past: Past,
    surprise: Surprise,
) -> Track:
    """The walk of any motion, step by step; every pose becomes an entry that later steps may recognise."""
    steps, first = sights.index.shape[1], past[0].shape[1]
    poses, variances = (torch.cat([p, p.new_zeros(len(p), steps, p.shape[-1])], 1) for p in past)
    states, s = [], start
    for t in range(steps):
        seen, planned = sights.at(t), move(s, t)
        entries, plan, ways, log_odds = gather(poses, seen.index), planned[:, : space.size], None, seen.log_odds
        if surprise.chances is not None and log_odds.shape[-1]:
            ways, log_odds = _ask_the_last_frame(space, plan, seen, entries, surprise)
        sighted, known = space.step(entries, seen.offset), gather(variances, seen.index)
        fused = fuse(space, plan, variance, sighted, known, log_odds, seen.noise, surprise, ways)
        s, variance = settle(planned, fused.pose), fused.variance
        poses[:, first + t], variances[:, first + t] = fused.pose, variance
        states.append(s)
    return Track(torch.stack(states, 1) if states else start[:, None][:, :0], variances[:, first:])


def _ask_the_last_frame(
    space: Space, plan: Pose, seen: Sights, entries: Float[Tensor, "batch matches G"], surprise: Surprise
) -> tuple[list[Way], Float[Tensor, "batch matches"]]:
    """The ways in which a step may have gone, by the sight of the frame before it, and the odds of the other sights.

    That sight comes first (`look_up`), and is heard once.
    """
    ways = seen_ways(space, plan, Sights(*(part[:, 0] for part in seen)), entries[:, 0], surprise)
    odds = seen.log_odds
    return ways, torch.cat([torch.full_like(odds[:, :1], -math.inf), odds[:, 1:]], dim=1)


def filter_positions(
    start: State, d: States, gate: Gate | None, variance: Variance, sights: Sights, past: Past, surprise: Surprise
) -> Track:
    """The same for motions whose state is a position: the landmark scan, which is fast where no gradient is needed."""
    W, b, v, c = gate or (None, None, None, None)
    chance, planned, stray = surprise.chance, surprise.planned[0], surprise.stray[0]
    return Track(*landmark_scan(start, d, W, b, v, c, variance, *sights, *past, chance, planned, stray))


def step_divergence(
    space: Space, pose: Pose, variance: Variance, planned: Pose, uncertain: Variance, surprise: Surprise
) -> Float[Tensor, "*batch"]:
    """An upper bound of KL from the belief to the planned mixture of Gaussians: -log sum_c pi_c exp(-KL_c).

    `uncertain` is the variance of the pose before the step. Both are marginals of the pose after it.
    """
    far2 = space.squared_lengths(space.difference(planned, pose))
    bounds = []
    for chance, fresh in surprise.components():
        parts = [
            isotropic_divergence(variance[..., g], far2[g], uncertain[..., g] + fresh[g], group.stop - group.start)
            for g, group in enumerate(space.groups)
        ]
        bounds.append(math.log(chance) - torch.stack(parts).sum(0))
    return -torch.logsumexp(torch.stack(bounds), dim=0)


def isotropic_divergence(
    variance: Float[Tensor, "*batch"], far2: Float[Tensor, "*batch"], planned: Tensor | float, size: int
) -> Float[Tensor, "*batch"]:
    """KL between isotropic Gaussians of `size` dimensions whose means are far2 apart, squared."""
    ratio = variance / planned
    return 0.5 * (size * (ratio - 1 - ratio.log()) + far2 / planned)
