"""The filter of App. D with Bayes' rule for beta: a walk whose poses are corrected by the places recognised on the way.

At each step the planned pose meets K' sights; each says: this looks like entry k, seen from this relative pose.
Bayes' rule weighs the sights against each other, and against the hypothesis that none of them is right.
"""

import math
from collections.abc import Callable
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
    """Of the entry: counted from the first of the past, on through the steps of this walk."""
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

    def mean(self, group: int) -> float:
        """Variance of any step, for one group of coordinates."""
        return (1 - self.chance) * self.planned[group] + self.chance * self.stray[group]

    def components(self) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Probability and variances of both."""
        return (1 - self.chance, self.planned), (self.chance, self.stray)


class Track(NamedTuple):
    """q*(s_t) for every step of a walk."""

    state: States
    """Means."""
    variance: Variance
    """Of the position and, where there is one, of the heading."""


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
) -> Fused:
    """Bayes' rule over 2 K' + 1 hypotheses: sight k is right and the step went as planned or otherwise; or none is.

    `variance` is that of the pose before the step, `known` that of the entries sighted. Errors of the agent and of an
    entry that have a common past cancel: what is uncertain between them is what was added since. A sight that is right
    brings the agent to where the entry lies on the map, errors of the map included; the gain is below 1 only because of
    the noise of the sight itself.
    """
    away = space.difference(planned[..., None, :], sighted)
    far2 = space.squared_lengths(away)
    log_weight, gain = [], []
    for chance, fresh in surprise.components():
        log_w, gains = log_odds + math.log(chance), []
        for g, group in enumerate(space.groups):
            free = (variance[..., None, g] - known[..., g]).clamp_min(0) + fresh[g]
            total = free + noise[..., g]
            log_w = log_w - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + total.log()) + far2[g] / total)
            gains.append(free / total)
        log_weight.append(log_w)
        gain.append(gains)
    none = log_odds.new_zeros(*log_odds.shape[:-1], 1)
    weight = torch.softmax(torch.cat([*log_weight, none], dim=-1), dim=-1)
    as_planned, otherwise, lost = weight.split([log_odds.shape[-1], log_odds.shape[-1], 1], dim=-1)
    pose, spread, betas = [], [], []
    for g, group in enumerate(space.groups):
        beta = as_planned * gain[0][g] + otherwise * gain[1][g]
        moved = (beta[..., None] * away[..., group]).sum(-2)
        scatter = (as_planned * gain[0][g].square() + otherwise * gain[1][g].square()) * far2[g]
        between = (scatter.sum(-1) - moved.square().sum(-1)).clamp_min(0) / (group.stop - group.start)
        within = ((as_planned + otherwise) * known[..., g] + beta * noise[..., g]).sum(-1)
        pose.append(planned[..., group] + moved)
        spread.append(lost[..., 0] * (variance[..., g] + surprise.mean(g)) + within + between)
        betas.append(beta)
    return Fused(torch.cat(pose, -1), torch.stack(spread, -1), betas[0])


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
        sighted = space.step(gather(poses, seen.index), seen.offset)
        known = gather(variances, seen.index)
        fused = fuse(space, planned[:, : space.size], variance, sighted, known, seen.log_odds, seen.noise, surprise)
        s, variance = settle(planned, fused.pose), fused.variance
        poses[:, first + t], variances[:, first + t] = fused.pose, variance
        states.append(s)
    return Track(torch.stack(states, 1) if states else start[:, None][:, :0], variances[:, first:])


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
