"""Loop closure: what is recognised now also says where everything since then must have been.

Poses are the knots of a net. Threads tie each to the one before it (what the action should have done) and to what was
recognised there. Relaxing the net spreads the error that a revisit brings to light over the steps that made it.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.scans.landmark_scan import Sights, Surprise
from gtmsm.tensors import LOG_TWO_PI, apart, coordinates, gather, stepped

SLACK = (0.5, 0.5, 0.5, 0.5, 0.2, 0.1)
"""How loose planned steps are, round after round, in units of what they miss by on average. A loose net first finds out
which sights agree; a stiffer one then leaves the error to the few steps that made it (docs/notebook.md)."""


def close_loops(
    pose: Float[Tensor, "batch time D"],
    start: Float[Tensor, "batch D"],
    plan: Float[Tensor, "batch time D"],
    sights: Sights,
    past: Float[Tensor, "batch n D"],
    surprise: Surprise,
) -> Float[Tensor, "batch time D"]:
    """The poses of a walk that agree best with its planned steps (as the agent feels them) and with all sights at once.

    What was on the map before stays where it is. A sight is believed, and a step taken for a surprise, as far as that
    is likely where the net has come to lie.
    """
    groups = coordinates(pose.shape[-1])
    for slack in SLACK:
        every = torch.cat([past, pose], dim=1)
        known = gather(every, sights.index)
        before = torch.cat([start[:, None], pose[:, :-1]], dim=1)
        off_plan = apart(stepped(before, plan), pose)
        off_sight = apart(stepped(known, sights.offset), pose[:, :, None])
        trust = _trust(off_sight, sights, groups)
        relaxed = []
        for g, group in enumerate(groups):
            size, far2 = group.stop - group.start, off_plan[..., group].square().sum(-1)
            stiff = _stiffness(far2, surprise.chance, slack * _mean(surprise, g), surprise.stray[g], size)
            relaxed.append(
                _relax(
                    start[:, group],
                    past[..., group],
                    (pose - before - off_plan)[..., group],
                    stiff,
                    sights.index,
                    (pose[:, :, None] - known - off_sight)[..., group],
                    trust / sights.noise[..., g],
                )
            )
        pose = torch.cat(relaxed, dim=-1)
    return pose


def _trust(off: Float[Tensor, "batch time K D"], sights: Sights, groups: list[slice]) -> Float[Tensor, "batch time K"]:
    """The probability that a sight is right, given how far off it is."""
    log_odds = sights.log_odds
    for g, group in enumerate(groups):
        noise = sights.noise[..., g]
        far2 = off[..., group].square().sum(-1)
        log_odds = log_odds - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + noise.log()) + far2 / noise)
    return torch.sigmoid(log_odds)


def _mean(surprise: Surprise, g: int) -> float:
    """The variance of any step, surprises included."""
    return (1 - surprise.chance) * surprise.planned[g] + surprise.chance * surprise.stray[g]


def _stiffness(
    off2: Float[Tensor, "batch time"], chance: float, loose: float, stray: float, size: int
) -> Float[Tensor, "batch time"]:
    """The precision of a planned step: loose, or hardly any where it looks like a surprise."""
    otherwise = stray + loose
    log_ratio = size * math.log(otherwise / loose) + off2 * (1 / otherwise - 1 / loose)
    planned = torch.sigmoid(math.log((1 - chance) / chance) + 0.5 * log_ratio)
    return planned / loose + (1 - planned) / otherwise


def _relax(
    start: Float[Tensor, "batch S"],
    past: Float[Tensor, "batch n S"],
    step: Float[Tensor, "batch time S"],
    stiff: Float[Tensor, "batch time"],
    index: Int[Tensor, "batch time K"],
    sight: Float[Tensor, "batch time K S"],
    pull: Float[Tensor, "batch time K"],
) -> Float[Tensor, "batch time S"]:
    """The x that make sum_t stiff (x_t - x_{t-1} - step)^2 + sum_tk pull (x_t - x_k - sight)^2 least.

    x_0 and what lies in the past are given.
    """
    batch, steps, k = index.shape
    first = past.shape[1]
    now = torch.arange(steps, device=step.device)
    # Knots of the walk first, then the fixed ones: the past, and the start.
    fixed = torch.cat([past, start[:, None]], dim=1)
    end = torch.where(index < first, steps + index, index - first).flatten(1)
    before = torch.cat([now.new_full((1,), steps + first), now[:-1]]).expand(batch, -1)
    later = torch.cat([now.expand(batch, -1), now[:, None].expand(steps, k).flatten().expand(batch, -1)], dim=1)
    earlier = torch.cat([before, end], dim=1)
    weight = torch.cat([stiff, pull.flatten(1)], dim=1)
    length = torch.cat([step, sight.flatten(1, 2)], dim=1)
    free = (earlier < steps).to(weight)
    matrix = weight.new_zeros(batch, steps * steps)
    inner = earlier.clamp(max=steps - 1)
    matrix.scatter_add_(1, later * steps + later, weight)
    matrix.scatter_add_(1, inner * steps + inner, weight * free)
    matrix.scatter_add_(1, later * steps + inner, -weight * free)
    matrix.scatter_add_(1, inner * steps + later, -weight * free)
    anchor = gather(fixed, (earlier - steps).clamp(min=0)) * (1 - free)[..., None]
    pulled = weight[..., None] * (length + anchor)
    right = torch.zeros_like(step)
    right.scatter_add_(1, later[..., None].expand_as(pulled), pulled)
    right.scatter_add_(1, inner[..., None].expand_as(pulled), -(weight * free)[..., None] * length)
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix.view(batch, steps, steps)))
