"""Loop closure: a place recognised now also corrects the poses of the walk since it was last seen.

A pose graph: nodes are poses, edges are planned steps and sights. Least squares over all edges spreads the error that a
revisit shows over the steps that made it. With `watch`, the variance of a step is what is left after it was estimated
from the previous frame: a step that went as planned is stiff, and one that bumped is not.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.landmark_filter import Sights, Surprise, Watched, log_normal
from gtmsm.model.motion import Motion
from gtmsm.pose import Space
from gtmsm.tensors import Actions, EntryPoses, PerEntry, Pose, Poses, State, States, Variance, gather

SLACK = (0.5, 0.5, 0.5, 0.5, 0.2, 0.1)
"""Variance of planned steps in each round, in units of their mean variance. Loose steps first show which sights agree;
stiffer ones then leave the error to the few steps that made it (docs/notebook.md)."""
ROUNDS = 4
"""Rounds in which sights are weighted by their probability, with `watch`."""
HEARD = 0.1
"""Weight of a sight, with `watch`: errors of sights of one frame, and of successive frames, are correlated."""


def planned_steps(motion: Motion, start: State, states: States, actions: Actions) -> Poses:
    """The planned displacement of each action, from the state before it."""
    before = torch.cat([start[:, None], states[:, :-1]], dim=1)
    planned = motion.step(before, actions)[..., : motion.pose_size]
    return motion.space.displacement(before[..., : motion.pose_size], planned)


def close_loops(
    space: Space, pose: Poses, start: Pose, plan: Poses, sights: Sights, past: EntryPoses, surprise: Surprise
) -> Poses:
    """The poses of a walk that agree best with its planned displacements and with all sights at once.

    Entries of the past are fixed. Each round weights sights and steps by how likely they are at the current poses.
    """
    for slack in SLACK:
        known = gather(torch.cat([past, pose], dim=1), sights.index)
        before = torch.cat([start[:, None], pose[:, :-1]], dim=1)
        off_plan = space.difference(space.step(before, plan), pose)
        off_sight = space.difference(space.step(known, sights.offset), pose[:, :, None])
        likely, far2 = trust(space, off_sight, sights), space.squared_lengths(off_plan)
        relaxed = []
        for g, group in enumerate(space.groups):
            size, loose = group.stop - group.start, slack * surprise.mean(g)
            stiff = stiffness(far2[g], surprise.chance_of(g), loose, surprise.stray[g], size)
            pull = likely / sights.noise[..., g]
            net = _Net.of(stiff, sights.index - past.shape[1], pull)
            relaxed.append(pose[..., group] + net.relax(off_plan[..., group], off_sight[..., group])[0])
        pose = torch.cat(relaxed, dim=-1)
    return pose


def close_watched_loops(
    space: Space,
    pose: Poses,
    start: Pose,
    variance: Variance,
    steps: Watched,
    sights: Sights,
    past: EntryPoses,
) -> tuple[Poses, Float[Tensor, "batch time G"]]:
    """The same with `watch`, where each step has a stiffness of its own; also the variances of the poses.

    `variance` is that of the start, which moves as well. In float64, since variances of steps differ by many orders of
    magnitude.
    """
    like, pose, start, past = pose, pose.double(), start.double(), past.double()
    # The sight of the previous frame comes first; the estimates of the steps have used it already.
    index, *said = (part[:, :, 1:] for part in sights)
    sights, steps = Sights(index, *(part.double() for part in said)), Watched(*(part.double() for part in steps))
    first = steps.added[:, :1] + variance[:, None]
    stiff, before_walk = 1 / torch.cat([first, steps.added[:, 1:]], dim=1), past.shape[1]
    for _ in range(ROUNDS):
        known = gather(torch.cat([past, pose], dim=1), index)
        before = torch.cat([start[:, None], pose[:, :-1]], dim=1)
        off_step = space.difference(space.step(before, steps.step), pose)
        off_sight = space.difference(space.step(known, sights.offset), pose[:, :, None])
        likely, relaxed, factors = HEARD * trust(space, off_sight, sights), [], []
        for g, group in enumerate(space.groups):
            net = _Net.of(stiff[..., g], index - before_walk, likely / sights.noise[..., g])
            moved, factor = net.relax(off_step[..., group], off_sight[..., group])
            relaxed.append(pose[..., group] + moved)
            factors.append(factor)
        pose = torch.cat(relaxed, dim=-1)
    # Weights of the last round are precisions, so that the inverse of its matrix is a covariance.
    spread = [torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) for factor in factors]
    return pose.to(like), torch.stack(spread, dim=-1).to(variance)


def trust(space: Space, off: Float[Tensor, "*n D"], sights: Sights) -> Float[Tensor, "*n"]:
    """The probability that a sight is right, given its residual."""
    log_odds, far2 = sights.log_odds, space.squared_lengths(off)
    for g, group in enumerate(space.groups):
        log_odds = log_odds + log_normal(far2[g], sights.noise[..., g], group.stop - group.start)
    return torch.sigmoid(log_odds)


def stiffness(off2: Float[Tensor, "*n"], chance: float, loose: float, stray: float, size: int) -> Float[Tensor, "*n"]:
    """The expected precision of a planned step, given its residual: it may not have gone as planned."""
    otherwise = stray + loose
    log_ratio = size * math.log(otherwise / loose) + off2 * (1 / otherwise - 1 / loose)
    planned = torch.sigmoid(math.log((1 - chance) / chance) + 0.5 * log_ratio)
    return planned / loose + (1 - planned) / otherwise


class _Net(NamedTuple):
    """Steps and sights as edges of known stiffness between the poses of a walk.

    The start and entries from before the walk, which have negative indices, are fixed.
    """

    steps: int
    later: Int[Tensor, "batch edges"]
    earlier: Int[Tensor, "batch edges"]
    weight: Float[Tensor, "batch edges"]

    @classmethod
    def of(cls, stiff: Float[Tensor, "batch time"], index: Int[Tensor, "batch time K"], pull: PerEntry) -> "_Net":
        """Steps of stiffness `stiff`, and sights of stiffness `pull`."""
        batch, steps, k = index.shape
        now = torch.arange(steps, device=index.device)
        later = torch.cat([now, now[:, None].expand(steps, k).flatten()]).expand(batch, -1)
        earlier = torch.cat([(now - 1).expand(batch, -1), index.flatten(1)], dim=1)
        return cls(steps, later, earlier, torch.cat([stiff, pull.flatten(1)], dim=1))

    def relax(
        self, off_plan: States, off_sight: Float[Tensor, "batch time K S"]
    ) -> tuple[States, Float[Tensor, "batch time time"]]:
        """How far to move each step: the d that minimises, over all steps t and sights k,

        stiff (d_t - d_{t-1} + off_plan)^2 + pull (d_t - d_k + off_sight)^2; and the Cholesky factor, as in `relax`.
        """
        return relax(*self, torch.cat([off_plan, off_sight.flatten(1, 2)], dim=1))


def relax(
    nodes: int,
    later: Int[Tensor, "batch edges"],
    earlier: Int[Tensor, "batch edges"],
    weight: Float[Tensor, "batch edges"],
    off: Float[Tensor, "batch edges S"],
) -> tuple[Float[Tensor, "batch nodes S"], Float[Tensor, "batch nodes nodes"]]:
    """The d that minimises weight (d_later - d_earlier + off)^2, summed over all edges; a negative `earlier` is fixed.

    Also the Cholesky factor of the Hessian of half of this sum.
    """
    batch, pulled = len(weight), weight[..., None] * off
    inner, inside = earlier.clamp(min=0), earlier >= 0
    right = weight.new_zeros(batch, nodes, off.shape[-1])
    right.scatter_add_(1, later[..., None].expand_as(pulled), -pulled)
    right.scatter_add_(1, inner[..., None].expand_as(pulled), pulled * inside[..., None])
    matrix, loose = weight.new_zeros(batch, nodes * nodes), weight * inside
    matrix.scatter_add_(1, later * nodes + later, weight)
    matrix.scatter_add_(1, inner * nodes + inner, loose)
    matrix.scatter_add_(1, later * nodes + inner, -loose)
    matrix.scatter_add_(1, inner * nodes + later, -loose)
    factor = torch.linalg.cholesky(matrix.view(-1, nodes, nodes))
    return torch.cholesky_solve(right, factor), factor
