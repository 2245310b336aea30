"""The filter of App. D with Bayes' rule for beta: poses of a walk are corrected by entries recognised on the way.

At each step the planned pose is compared with K' sights. Each claims that the frame shows entry k, seen from a certain
relative pose. Bayes' rule weighs the sights against each other, and against the hypothesis that none of them is right
(`fuse`). With `watch`, each step is first estimated from the previous frame. Then each sight is right or wrong by
itself, and the evidence of those that are right adds up (`agree`).
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
from gtmsm.model.slips import Habits, Slips
from gtmsm.pose import Space
from gtmsm.tensors import LOG_TWO_PI, EntryPoses, Pose, Poses, State, States, Variance, gather

Past: TypeAlias = tuple[EntryPoses, Float[Tensor, "batch n G"]]
"""Poses of the entries of a map, and their variances."""
Move: TypeAlias = Callable[[State, int], State]
"""move(s, t): the planned state after step t from s."""
Settle: TypeAlias = Callable[[State, Float[Tensor, "batch D"]], State]
"""settle(s, pose): the state s with its pose corrected."""


class Sights(NamedTuple):
    """The K' entries of memory that match the frame of a step, and the agent's relative pose that each implies."""

    index: Int[Tensor, "*batch K"]  # type: ignore[assignment]  # hides a method of tuples
    """Number of the entry: entries of the past come first, then the steps of this walk."""
    log_odds: Float[Tensor, "*batch K"]
    """Log-odds that the match is right, per unit of area, before poses are compared; -inf if there is no entry."""
    offset: Float[Tensor, "*batch K D"]
    """The agent's displacement from the entry's pose, in the frame of the entry."""
    noise: Float[Tensor, "*batch K G"]
    """Variance of that displacement if the match is right."""

    def at(self, t: int) -> "Sights":
        """The sights of one step."""
        return Sights(*(part[:, t] for part in self))


class Surprise(NamedTuple):
    """The noise of a step, which goes as planned or not; variances of the position and, if any, of the heading."""

    chance: float
    """Probability that a step does not go as planned."""
    planned: tuple[float, ...]
    """Variance of a step that goes as planned."""
    stray: tuple[float, ...]
    """Variance of a step that does not go as planned."""
    habits: Habits | None = None
    """With `watch`: that probability for the position and for the heading, independently. None: the previous frame is
    one sight among others, and a step goes as planned in all coordinates or in none."""
    doubt: float = 0.0
    """Nats that were subtracted from the log-odds of sights; with `watch`, not for the previous frame."""
    surest: float = math.inf
    """Maximum log-odds of the comparison with the previous frame, with `watch`."""
    placed: float = math.inf
    """With `watch`: variance of the position up to which sights add up. Beyond it the agent is lost, and its sights are
    alternatives (`fuse`): many weak ones are no evidence that it is at a place."""

    def of_any_step(self) -> "Surprise":
        """The same for unknown actions: nearly no step goes as planned."""
        return self._replace(chance=0.9, habits=self.habits and Habits((0.9,) * len(self.habits.chance)))

    def chance_of(self, group: int) -> float:
        """Probability that one group of coordinates does not go as planned."""
        return self.chance if self.habits is None else self.habits.chance[group]

    def mean(self, group: int) -> float:
        """Mean variance of a step, for one group of coordinates."""
        chance = self.chance_of(group)
        return (1 - chance) * self.planned[group] + chance * self.stray[group]

    def components(self) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Probability and variances of steps that go as planned, and of those that do not."""
        return (1 - self.chance, self.planned), (self.chance, self.stray)


class Watched(NamedTuple):
    """Each step as estimated from the previous frame, before other sights correct it."""

    step: Poses
    """The mean displacement, in the frame of the pose before the step."""
    added: Float[Tensor, "batch time G"]
    """The variance that the step added."""


class Track(NamedTuple):
    """q*(s_t) for each step of a walk."""

    state: States
    """Means."""
    variance: Variance
    """Variances of the position and, if there is one, of the heading."""
    slips: Float[Tensor, "batch time H"] | None = None
    """`Slips` after each step, as a column of memory; None if they are not learned."""
    watched: Watched | None = None
    """The steps by which loops are closed, with `watch`."""


class Way(NamedTuple):
    """One possible outcome of a step."""

    log_chance: Float[Tensor, "*batch"]
    pose: Pose
    """Mean of the pose after the step, given the inferred pose before it."""
    fresh: Variance
    """The variance that the step added."""


CLAIMS = ((0.9, 1.0), (0.1, 9.0))
"""Shares of the comparisons of successive frames, and the factor by which their variance exceeds the predicted one."""
HEARD = 0.2
"""Weight of a sight where sights add up: errors of sights of one frame, and of successive frames, are correlated."""
ROUNDS = 3
"""Rounds in which sights are weighted by how well they agree with all sights together."""


def prior_ways(planned: Pose, surprise: Surprise) -> list[Way]:
    """The two outcomes of a step before any sight: as planned, or not."""

    # Filled on the device: a graph under capture cannot copy a tensor from the CPU.
    def all_of(*numbers: float) -> Float[Tensor, "*batch numbers"]:
        return torch.stack([torch.full_like(planned[..., 0], number) for number in numbers], dim=-1)

    return [Way(all_of(math.log(chance))[..., 0], planned, all_of(*fresh)) for chance, fresh in surprise.components()]


def seen_ways(
    space: Space, planned: Pose, last: Sights, entry: Pose, surprise: Surprise, chance: Float[Tensor, "*batch G"]
) -> list[Way]:
    """Outcomes of a step given the previous frame, by Bayes' rule: each group of coordinates went as planned or not.

    `last`: the sight of the previous frame, without its axis K. `entry`: the pose that this frame was seen from.
    `chance`: the prior probability that each group did not go as planned.
    """
    away = space.difference(planned, space.step(entry, last.offset))
    is_there, ways = last.log_odds > -math.inf, []
    far2 = space.squared_lengths(away)
    for kinds in itertools.product((False, True), repeat=len(space.groups)):
        expected = [chance[..., g] if other else 1 - chance[..., g] for g, other in enumerate(kinds)]
        log_density, moved, added = (last.log_odds + surprise.doubt).clamp_max(surprise.surest), [], []
        for g, group in enumerate(space.groups):
            fresh, noise = surprise.stray[g] if kinds[g] else surprise.planned[g], last.noise[..., g]
            size = group.stop - group.start
            parts = [math.log(share) + log_normal(far2[g], wider * noise + fresh, size) for share, wider in CLAIMS]
            log_density = log_density + torch.logsumexp(torch.stack(parts), dim=0)
            gain = torch.where(is_there, fresh / (fresh + noise), 0.0)
            moved.append(gain[..., None] * away[..., group])
            added.append(torch.where(is_there, gain * noise, fresh))
        right_or_wrong = torch.stack([log_density, torch.zeros_like(log_density)])
        log_chance = torch.stack(expected).log().sum(0) + torch.logsumexp(right_or_wrong, dim=0)
        ways.append(Way(log_chance, planned + torch.cat(moved, dim=-1), torch.stack(added, -1)))
    norm = torch.logsumexp(torch.stack([way.log_chance for way in ways]), dim=0)
    return [way._replace(log_chance=way.log_chance - norm) for way in ways]


def otherwise(space: Space, ways: Sequence[Way]) -> Float[Tensor, "*batch G"]:
    """The probability that each group of coordinates did not go as planned, from the outcomes of `seen_ways`."""
    chance, groups = torch.stack([way.log_chance for way in ways]).exp(), len(space.groups)
    by_group = chance.unflatten(0, (2,) * groups)
    return torch.stack([by_group.select(g, 1).reshape(-1, *chance.shape[1:]).sum(0) for g in range(groups)], dim=-1)


def log_normal(far2: Float[Tensor, "*n"], variance: Float[Tensor, "*n"], size: int) -> Float[Tensor, "*n"]:
    """log N of a squared distance in `size` dimensions."""
    return -0.5 * (size * (LOG_TWO_PI + variance.log()) + far2 / variance)


def joined_ways(space: Space, planned: Pose, ways: Sequence[Way]) -> tuple[Pose, Variance]:
    """Mean of the pose after a step with several possible outcomes, and the variance that the step added."""
    weight = torch.stack([way.log_chance for way in ways]).exp()
    moved = torch.stack([space.difference(planned, way.pose) for way in ways])
    mean = (weight[..., None] * moved).sum(0)
    fresh = (weight[..., None] * torch.stack([way.fresh for way in ways])).sum(0)
    off = (moved - mean).square()
    scatter = [(weight * off[..., group].mean(-1)).sum(0) for group in space.groups]
    return planned + mean, fresh + torch.stack(scatter, dim=-1)


def agree(
    space: Space,
    pose: Pose,
    variance: Variance,
    sighted: Float[Tensor, "*batch K D"],
    known: Float[Tensor, "*batch K G"],
    log_odds: Float[Tensor, "*batch K"],
    noise: Float[Tensor, "*batch K G"],
) -> tuple[Pose, Variance]:
    """The pose and its variance after sights of which any number may be right; they add up, each weighted by `HEARD`.

    As in `fuse`, errors that the agent and an entry share cancel. Each round weights a sight by the probability that it
    is right: first given the belief before the sights, then given the pose that all sights imply.
    """
    away = space.difference(pose[..., None, :], sighted)
    free = (variance[..., None, :] - known).clamp_min(0)
    moved, left = torch.zeros_like(pose), variance
    for number in range(ROUNDS):
        far2, log_right = space.squared_lengths(away - moved[..., None, :]), log_odds
        for g, group in enumerate(space.groups):
            total = noise[..., g] + free[..., g] if number == 0 else noise[..., g]
            log_right = log_right + log_normal(far2[g], total, group.stop - group.start)
        moves, lefts = [], []
        for g, group in enumerate(space.groups):
            precision = HEARD * torch.sigmoid(log_right) / noise[..., g]
            total = precision.sum(-1)
            common = (precision * known[..., g]).sum(-1) / total.clamp_min(1e-9)
            own = (variance[..., g] - common).clamp_min(0)
            gain = precision * (own / (1 + own * total))[..., None]
            moves.append((gain[..., None] * away[..., group]).sum(-2))
            lefts.append(variance[..., g] - own + own / (1 + own * total))
        moved, left = torch.cat(moves, dim=-1), torch.stack(lefts, dim=-1)
    return pose + moved, left


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
    """Bayes' rule over the outcomes of a step and K' + 1 hypotheses for each: sight k is right, or none is.

    `ways`: the outcomes; None: those of `surprise`.

    `variance` is that of the pose before the step, `known` that of the entries sighted. Errors that the agent and an
    entry share cancel: between them, only the variance that was added since is uncertain. A sight that is right brings
    the agent to where the entry lies on the map, errors of the map included; the gain is below 1 only because of the
    noise of the sight itself.
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
            log_w = log_w + log_normal(far2[g], total, group.stop - group.start)
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
    slips: Slips | None = None,
) -> Track:
    """Filter a walk of any motion step by step; each pose becomes an entry that later steps may recognise.

    `slips`: statistics of slipped steps before these.
    """
    steps, first = sights.index.shape[1], past[0].shape[1]
    poses, variances = (torch.cat([p, p.new_zeros(len(p), steps, p.shape[-1])], 1) for p in past)
    states, columns, watched, s, slips = [], [], [], start, slips or Slips.none(variance)
    for t in range(steps):
        seen, planned = sights.at(t), move(s, t)
        entries, known, plan = gather(poses, seen.index), gather(variances, seen.index), planned[:, : space.size]
        sighted = space.step(entries, seen.offset)
        if surprise.habits is not None and seen.index.shape[-1]:
            # The sight of the previous frame comes first (`look_up`), and is used once.
            last, others = Sights(*(part[:, 0] for part in seen)), Sights(*(part[:, 1:] for part in seen))
            ways = seen_ways(space, plan, last, entries[:, 0], surprise, slips.chance(surprise.habits))
            slips = slips.then(otherwise(space, ways))
            told = sighted[:, 1:], known[:, 1:], others.log_odds, others.noise
            made, added = joined_ways(space, plan, ways)
            watched.append(Watched(space.displacement(s[:, : space.size], made), added))
            pose, variance = _corrected(space, made, variance, added, *told, surprise)
            # Sights of older entries correct the pose, but not the velocity.
            s = torch.cat([pose, settle(planned, made)[:, space.size :]], dim=-1)
        else:
            pose, variance, _ = fuse(space, plan, variance, sighted, known, seen.log_odds, seen.noise, surprise)
            s = settle(planned, pose)
        poses[:, first + t], variances[:, first + t] = pose, variance
        states.append(s)
        columns.append(slips.column)
    learned = torch.stack(columns, 1) if columns and surprise.habits and surprise.habits.worth else None
    steps_seen = Watched(*(torch.stack(parts, 1) for parts in zip(*watched, strict=True))) if watched else None
    return Track(torch.stack(states, 1) if states else start[:, None][:, :0], variances[:, first:], learned, steps_seen)


def _corrected(
    space: Space,
    made: Pose,
    variance: Variance,
    added: Variance,
    sighted: Float[Tensor, "*batch K D"],
    known: Float[Tensor, "*batch K G"],
    log_odds: Float[Tensor, "*batch K"],
    noise: Float[Tensor, "*batch K G"],
    surprise: Surprise,
) -> tuple[Pose, Variance]:
    """The pose after a watched step, corrected by older entries.

    Sights add up or, if the agent is lost, exclude each other. `made`: the pose that the step led to; `added`: the
    variance that it added.
    """
    told, lost = (sighted, known, log_odds, noise), variance[:, :1] > surprise.placed
    pose, left = agree(space, made, variance + added, *told)
    if not lost.any():
        return pose, left
    among = fuse(space, made, variance, *told, surprise, [Way(torch.zeros_like(made[:, 0]), made, added)])
    return torch.where(lost, among.pose, pose), torch.where(lost, among.variance, left)


def filter_positions(
    start: State, d: States, gate: Gate | None, variance: Variance, sights: Sights, past: Past, surprise: Surprise
) -> Track:
    """The same for motions whose state is a position: the landmark scan, which is fast if no gradient is needed."""
    W, b, v, c = gate or (None, None, None, None)
    chance, planned, stray = surprise.chance, surprise.planned[0], surprise.stray[0]
    return Track(*landmark_scan(start, d, W, b, v, c, variance, *sights, *past, chance, planned, stray))


def step_divergence(
    space: Space, pose: Pose, variance: Variance, planned: Pose, uncertain: Variance, surprise: Surprise
) -> Float[Tensor, "*batch"]:
    """An upper bound of the KL from the belief to the planned mixture of Gaussians: -log sum_c pi_c exp(-KL_c).

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
    """KL between isotropic Gaussians of `size` dimensions; `far2` is the squared distance of their means."""
    ratio = variance / planned
    return 0.5 * (size * (ratio - 1 - ratio.log()) + far2 / planned)
