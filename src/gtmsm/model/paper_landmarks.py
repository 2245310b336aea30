"""App. D as it is written: the planned pose is moved towards recognised poses by weights that depend on codes alone."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gtmsm.model.landmark_filter import Move, Past, Settle, Track
from gtmsm.model.motion import Motion
from gtmsm.model.recognition import LandmarkConfig, Lookup
from gtmsm.pose import Space
from gtmsm.tensors import Actions, EntryIndex, PerEntry, State, Variance, gather


class PaperNetworks(nn.Module):
    """beta and the variance of App. D: small networks of the distance between codes."""

    def __init__(self, settings: LandmarkConfig) -> None:
        super().__init__()
        last = nn.Linear(32, 1), nn.Linear(32, 1)
        for layer, bias in zip(last, (-2.0, 0.0), strict=True):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)
        self.matches = settings.matches
        self.beta = nn.Sequential(nn.Linear(2, 32), nn.ELU(), last[0])
        self.spread = nn.Sequential(nn.Linear(2 * settings.matches + 1, 32), nn.ELU(), last[1])

    def weights(self, lookup: Lookup) -> PerEntry:
        """beta_k in [0, 1], 0 if there is no entry yet."""
        distance = lookup.distance
        logit = self.beta(torch.stack([(distance + 1e-4).log(), distance.clamp(max=50.0) / 10], dim=-1))[..., 0]
        return torch.sigmoid(logit).masked_fill(~lookup.there, 0.0)

    def log_ratio(
        self,
        distance: Float[Tensor, "batch K"],
        known: Float[Tensor, "batch K"],
        there: Bool[Tensor, "batch K"],
        planned: float,
    ) -> Float[Tensor, "batch"]:
        """NN(delta_{1:K'}, sigma^2_{1:K'}, sigma_p^2): log sigma_q^2 - log sigma_p^2.

        `known` are the variances sigma_k^2 of the entries, `planned` is sigma_p^2. A missing entry counts as 0 in both.
        """
        missing = (0, self.matches - distance.shape[-1])
        parts = [nn.functional.pad((x + 1e-6).log() * there, missing) for x in (distance, known)]
        last = torch.full_like(distance[:, :1], math.log(planned))
        log_ratio: Tensor = self.spread(torch.cat([*parts, last], dim=-1))[..., 0]
        return log_ratio

    def filter(
        self, motion: Motion, start: State, variance: Variance, actions: Actions, lookup: Lookup, past: Past
    ) -> tuple[Track, Float[Tensor, "batch time 1"]]:
        """`blend_scan` with these networks, along a motion whose noise is sigma_p."""
        planned = motion.noise**2

        def move(s: Tensor, t: int) -> Tensor:
            return motion.step(s, actions[:, t])

        def spread(known: Tensor, t: int) -> Tensor:
            return planned * self.log_ratio(lookup.distance[:, t], known, lookup.there[:, t], planned).exp()

        beta = self.weights(lookup)
        return blend_scan(motion.space, move, motion.settle, spread, start, variance, lookup.index, beta, past)


def blend_scan(
    space: Space,
    move: Move,
    settle: Settle,
    spread: Callable[[Float[Tensor, "batch K"], int], Float[Tensor, "batch"]],
    start: State,
    variance: Variance,
    index: EntryIndex,
    beta: PerEntry,
    past: Past,
) -> tuple[Track, Float[Tensor, "batch time 1"]]:
    """mu_q = mu_p + sum_k beta_k (mu_k - mu_p) step by step: the walk, and sigma_q^2 = spread(sigma^2_{1:K'}).

    Given beta the pose is linear in those before it, so its marginal variance is
    (1 - sum_k beta_k)^2 v_{t-1} + sum_k beta_k^2 v_k + sigma_q^2.
    """
    steps, first = index.shape[1], past[0].shape[1]
    poses, variances = (torch.cat([p, p.new_zeros(len(p), steps, p.shape[-1])], 1) for p in past)
    states, added, s = [], [], start
    for t in range(steps):
        planned, weight = move(s, t), beta[:, t]
        plan = planned[:, : space.size]
        away = space.difference(plan[:, None], gather(poses, index[:, t]))
        known = gather(variances, index[:, t])[..., 0]
        pose = plan + (weight[..., None] * away).sum(1)
        fresh = spread(known, t)[:, None]
        kept = (1 - weight.sum(1, keepdim=True)).square()
        variance = kept * variance + (weight.square() * known).sum(1, keepdim=True) + fresh
        s = settle(planned, pose)
        poses[:, first + t], variances[:, first + t] = pose, variance
        states.append(s)
        added.append(fresh)
    return Track(torch.stack(states, 1), variances[:, first:]), torch.stack(added, 1)
