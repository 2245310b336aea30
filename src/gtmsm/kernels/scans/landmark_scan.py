"""A walk between walls whose positions are corrected by recognised places: the sequential loop of App. D's filter.

An entry may be an earlier step of the same walk, so steps cannot be computed in parallel. The equations are those of
`gtmsm.model.landmark_filter.fuse`, which has headings, too. Without the fast implementations an update of `obstacles`
takes 2.6 times as long on an H200, memorising 2.8 times on a CPU. They have no gradients: training filters without any.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.kernels.operator import operator
from gtmsm.kernels.scans.walled_scan import Gate
from gtmsm.tensors import LOG_TWO_PI, gather


@operator(cpu="gtmsm.kernels.scans.landmark_scan_cpu", cuda="gtmsm.kernels.scans.landmark_scan_triton")
def landmark_scan(
    start: Float[Tensor, "batch S"],
    displacement: Float[Tensor, "batch time S"],
    W: Float[Tensor, "H S"] | None,
    b: Float[Tensor, "H"] | None,
    v: Float[Tensor, "H"] | None,
    c: Float[Tensor, ""] | None,
    variance: Float[Tensor, "batch 1"],
    index: Int[Tensor, "batch time K"],
    log_odds: Float[Tensor, "batch time K"],
    offset: Float[Tensor, "batch time K S"],
    noise: Float[Tensor, "batch time K 1"],
    past: Float[Tensor, "batch n S"],
    past_variance: Float[Tensor, "batch n 1"],
    chance: float,
    planned: float,
    stray: float,
) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time 1"]]:
    """Positions after each step, and their variances.

    W, b, v, c are the weights of the `Gate` that knows the walls, or None. The sights of a step are entries `index` of
    the past and of this walk, with log-odds, offsets and their variances. A step has the variance `stray` with
    probability `chance`, and otherwise `planned`.
    """
    gate = None if W is None or b is None or v is None or c is None else Gate(W, b, v, c)
    steps, first = index.shape[1], past.shape[1]
    entries = torch.cat([torch.cat([past, past_variance], -1), past.new_zeros(len(past), steps, past.shape[-1] + 1)], 1)
    s = start
    for t, d in enumerate(displacement.unbind(1)):
        s = s + (d if gate is None else d * gate(s + d)[..., None])
        entry, known = gather(entries, index[:, t]).split([s.shape[-1], 1], dim=-1)
        away = entry + offset[:, t] - s[:, None]
        s, variance = _fuse(s, variance, away, known[..., 0], log_odds[:, t], noise[:, t, :, 0], chance, planned, stray)
        entries[:, first + t] = torch.cat([s, variance], -1)
    made = entries[:, first:]
    return made[..., :-1], made[..., -1:]


def _fuse(
    s: Float[Tensor, "batch S"],
    variance: Float[Tensor, "batch 1"],
    away: Float[Tensor, "batch K S"],
    known: Float[Tensor, "batch K"],
    log_odds: Float[Tensor, "batch K"],
    noise: Float[Tensor, "batch K"],
    chance: float,
    planned: float,
    stray: float,
) -> tuple[Float[Tensor, "batch S"], Float[Tensor, "batch 1"]]:
    """Bayes' rule at one step, with both kinds of steps on an axis of their own."""
    size, far2 = s.shape[-1], away.square().sum(-1)
    # Filled on the device: a graph under capture can take no tensor from the CPU.
    columns = (planned, stray), (math.log(1 - chance), math.log(chance))
    fresh, log_chance = (torch.stack([s.new_full((1,), number) for number in pair]) for pair in columns)
    free = (variance - known).clamp_min(0)[:, None] + fresh
    total = free + noise[:, None]
    log_weight = log_odds[:, None] + log_chance - 0.5 * (size * (LOG_TWO_PI + total.log()) + far2[:, None] / total)
    weight = torch.softmax(torch.nn.functional.pad(log_weight.flatten(1), (0, 1)), dim=-1)
    right, lost = weight[:, :-1].unflatten(1, (2, far2.shape[1])), weight[:, -1:]
    gain = free / total
    beta = (right * gain).sum(1)
    moved = (beta[..., None] * away).sum(1)
    between = ((right * gain.square()).sum(1) * far2).sum(-1) - moved.square().sum(-1)
    within = (right.sum(1) * known + beta * noise).sum(-1)
    usual = (1 - chance) * planned + chance * stray
    return s + moved, lost * (variance + usual) + (within + between.clamp_min(0) / size)[:, None]
