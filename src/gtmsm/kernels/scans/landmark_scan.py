"""A walk whose poses are corrected by what is recognised on the way: the filter of App. D, with Bayes' rule for beta.

At each step the plan (where the action should have led) meets K' sights: "this looks like entry k, seen from so far
away". Bayes' rule weighs them against each other, and against "nothing here was seen before". An entry may be an
earlier step of this very walk, so the loop over time is truly sequential: `landmark_scan_by_steps` is the readable
twin, `landmark_scan` picks the fastest one for the device.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.scans import landmark_scan_cpu
from gtmsm.kernels.scans.walled_scan import Gate
from gtmsm.tensors import LOG_TWO_PI, apart, coordinates, gather, stepped


class Sights(NamedTuple):
    """What is recognised at every step: K' opinions on where the agent is."""

    index: Int[Tensor, "*batch K"]  # type: ignore[assignment]  # a tuple's method of that name is not missed
    """Of the entry: counted from the first of the past, on through the steps of this walk."""
    log_odds: Float[Tensor, "*batch K"]
    """Of the opinion being right, per unit of area, before poses are looked at; -inf where there is no such entry."""
    offset: Float[Tensor, "*batch K D"]
    """Where the agent is as seen from the entry's pose (`felt`)."""
    noise: Float[Tensor, "*batch K G"]
    """Variance of that, where it is right."""

    def at(self, t: int) -> "Sights":
        """Those of one step."""
        return Sights(*(part[:, t] for part in self))


class Surprise(NamedTuple):
    """How a step may go: as planned, up to a little noise, or, now and then, otherwise.

    Variances have one number for the position and, where there is a heading, one for it.
    """

    chance: float
    """That it goes otherwise."""
    planned: tuple[float, ...]
    """Variance of a step that goes as planned."""
    stray: tuple[float, ...]
    """Variance of one that does not."""


class Fused(NamedTuple):
    """The belief after a look around."""

    pose: Float[Tensor, "*batch D"]
    variance: Float[Tensor, "*batch G"]
    beta: Float[Tensor, "*batch K"]
    """How much of the way to each sight the plan's position was moved: App. D's beta."""


def fuse(
    planned: Float[Tensor, "*batch D"],
    variance: Float[Tensor, "*batch G"],
    sighted: Float[Tensor, "*batch K D"],
    known: Float[Tensor, "*batch K G"],
    log_odds: Float[Tensor, "*batch K"],
    noise: Float[Tensor, "*batch K G"],
    surprise: Surprise,
) -> Fused:
    """Bayes' rule over 2 K' + 1 hypotheses: sight k is right, and the step went as planned or otherwise; or none is.

    `variance` is that of the pose before the step, `known` that of the entries sighted. Errors of the agent and of an
    entry that have a common past cancel: what is unsure between them, and free to be put right, is what was added
    since. A sight that is right brings the agent to where the entry lies on the map, errors of the map included; only
    the noise of the sight itself speaks against going all the way.
    """
    away = apart(planned[..., None, :], sighted)
    groups = coordinates(planned.shape[-1])
    far2 = [away[..., group].square().sum(-1) for group in groups]
    log_weight, gain = [], []
    for chance, fresh in ((1 - surprise.chance, surprise.planned), (surprise.chance, surprise.stray)):
        log_w, gains = log_odds + math.log(chance), []
        for g, group in enumerate(groups):
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
    for g, group in enumerate(groups):
        beta = as_planned * gain[0][g] + otherwise * gain[1][g]
        moved = (beta[..., None] * away[..., group]).sum(-2)
        scatter = (as_planned * gain[0][g].square() + otherwise * gain[1][g].square()) * far2[g]
        between = (scatter.sum(-1) - moved.square().sum(-1)).clamp_min(0) / (group.stop - group.start)
        fresh_g = (1 - surprise.chance) * surprise.planned[g] + surprise.chance * surprise.stray[g]
        within = ((as_planned + otherwise) * known[..., g] + beta * noise[..., g]).sum(-1)
        pose.append(planned[..., group] + moved)
        spread.append(lost[..., 0] * (variance[..., g] + fresh_g) + within + between)
        betas.append(beta)
    return Fused(torch.cat(pose, -1), torch.stack(spread, -1), betas[0])


def landmark_scan_by_steps(
    move: Callable[[Float[Tensor, "batch S"], int], Float[Tensor, "batch S"]],
    settle: Callable[[Float[Tensor, "batch S"], Float[Tensor, "batch D"]], Float[Tensor, "batch S"]],
    start: Float[Tensor, "batch S"],
    variance: Float[Tensor, "batch G"],
    sights: Sights,
    past: tuple[Float[Tensor, "batch n D"], Float[Tensor, "batch n G"]],
    surprise: Surprise,
) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time G"]]:
    """The readable twin, for any motion: states after each step and the variances of their poses.

    `move(s, t)` is where step t leads from s if it goes as planned, `settle(s, pose)` that state once its pose is known
    to be another. What is known of the map lies in one table that every step writes a row of.
    """
    steps, size = sights.index.shape[1], sights.offset.shape[-1]
    first = past[0].shape[1]
    poses, variances = (torch.cat([p, p.new_zeros(len(p), steps, p.shape[-1])], 1) for p in past)
    states, s = [], start
    for t in range(steps):
        seen = sights.at(t)
        planned = move(s, t)
        sighted = stepped(gather(poses, seen.index), seen.offset)
        fused = fuse(
            planned[:, :size], variance, sighted, gather(variances, seen.index), seen.log_odds, seen.noise, surprise
        )
        s, variance = settle(planned, fused.pose), fused.variance
        poses[:, first + t], variances[:, first + t] = fused.pose, variance
        states.append(s)
    return torch.stack(states, 1) if states else start[:, None][:, :0], variances[:, first:]


def landmark_scan(
    start: Float[Tensor, "batch S"],
    displacement: Float[Tensor, "batch time S"],
    gate: Gate | None,
    variance: Float[Tensor, "batch 1"],
    sights: Sights,
    past: tuple[Float[Tensor, "batch n S"], Float[Tensor, "batch n 1"]],
    surprise: Surprise,
) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time 1"]]:
    """The same for motions whose state is a position, by the fastest twin for where the tensors are."""
    can = len(start) > 0 and start.shape[-1] == 2 and displacement.dtype == torch.float32
    twin = choose(displacement, cpu=True, triton=can)
    if twin == "cpu":
        return landmark_scan_cpu.scan(start, displacement, gate, variance, sights, past, surprise)
    if twin == "triton":
        from gtmsm.kernels.scans import landmark_scan_triton

        return landmark_scan_triton.scan(start, displacement, gate, variance, sights, past, surprise)

    def move(s: Tensor, t: int) -> Tensor:
        d = displacement[:, t]
        return s + d if gate is None else s + d * gate(s + d)[..., None]

    return landmark_scan_by_steps(move, lambda s, pose: pose, start, variance, sights, past, surprise)
