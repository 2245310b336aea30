"""q(s_t | s_{t-1}, a_t, z_t, m): knowing where you are from what you see (App. D).

Memory is read backwards: the codes nearest to what is seen now, and the poses they were seen from. The paper's form
moves the plan towards those poses by weights beta that a small network makes of the distance between codes. Bayes' form
makes beta of a network that compares two codes (are they views of one place, and how far apart are they?) and of how
far the place is from the plan, in units of what the agent is unsure of.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from gtmsm.config import require
from gtmsm.kernels.scans.blend_scan import blend_scan
from gtmsm.kernels.scans.landmark_scan import Sights, Surprise, fuse
from gtmsm.model.bearings import LOOK, find_start
from gtmsm.model.motion import Motion
from gtmsm.model.pose_graph import close_loops
from gtmsm.model.recognition import Comparison, LandmarkConfig, Lookup, Said, look_up
from gtmsm.tensors import Belief, Gaussian, apart, coordinates, felt, gather, stepped


@dataclass(frozen=True)
class Known:
    """What is on the map already: poses, how sure they are, and what was seen there."""

    pose: Float[Tensor, "batch n D"]
    variance: Float[Tensor, "batch n G"]
    code: Gaussian


@dataclass(frozen=True)
class Track:
    """q*(s_t) for every step of a walk."""

    state: Float[Tensor, "batch time S"]
    """Means."""
    variance: Float[Tensor, "batch time G"]
    """Of the position and, where there is one, of the heading."""


@dataclass(frozen=True)
class Learned:
    """A track with gradients, and what it costs."""

    track: Track
    divergence: Float[Tensor, "batch time"]
    """KL[q(s_t | s_{t-1}, a_t, z_t, m) || p(s_t | s_{t-1}, a_t)]: the third term of App. D's bound."""
    before: Float[Tensor, "batch time S"]
    """What each step set out from."""
    said: Said | None = None
    """What the comparison said of each pair of views, where it was asked."""


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

    def weights(self, lookup: Lookup) -> Float[Tensor, "batch time K"]:
        """beta_k in [0, 1], 0 where there is no entry yet."""
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
        """NN(delta_{1:K'}, sigma^2_{1:K'}, sigma_p^2): what is added to the logarithm of the plan's variance.

        An entry that is not there counts as 0 in both.
        """
        missing = (0, self.matches - distance.shape[-1])
        parts = [nn.functional.pad((x + 1e-6).log() * there, missing) for x in (distance, known)]
        last = torch.full_like(distance[:, :1], math.log(planned))
        log_ratio: Tensor = self.spread(torch.cat([*parts, last], dim=-1))[..., 0]
        return log_ratio


class Landmarks(nn.Module):
    """The inference network of App. D."""

    def __init__(self, settings: LandmarkConfig, code_size: int, motion: Motion) -> None:
        super().__init__()
        self.settings, self.noise = settings, motion.noise
        self.pose_size, self.has_heading = motion.noisy, motion.settings.has_heading
        self.compare = Comparison(settings, code_size, self.has_heading, self.pose_size)
        if settings.form == "paper":
            self.paper = PaperNetworks(settings)

    @property
    def groups(self) -> int:
        """How many variances a pose has: the paper's form has one; otherwise a heading has its own."""
        return 2 if self.has_heading and self.settings.form == "bayes" else 1

    @property
    def surprise(self) -> Surprise:
        """How steps may go."""
        chosen = self.settings
        steady, stray = (chosen.steady**2, chosen.steady_turn**2), (chosen.stray**2, chosen.stray_turn**2)
        return Surprise(chosen.surprise, steady, stray)

    def look_back(self, entries: Gaussian, code: Gaussian, first: int) -> Lookup:
        """The entries that look most like each step of a walk, among those before it."""
        return look_up(entries, code, self.settings.matches, first, self.settings.recent)

    def sights(self, entries: Gaussian, query: Gaussian, lookup: Lookup) -> Sights:
        """Opinions of the entries found on where each query is."""
        return self._as_sights(self.compare(entries, query, lookup), lookup)

    def _as_sights(self, said: Said, lookup: Lookup) -> Sights:
        """What a comparison said, weighed against the plan."""
        log_odds, offset, noise = said
        log_odds = log_odds + (self.compare.indifference - self.settings.doubt)
        log_odds = log_odds.masked_fill(~lookup.there, -math.inf)
        return Sights(lookup.index, log_odds, offset, noise)

    def follow(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        variance: Float[Tensor, "batch G"],
        actions: Float[Tensor, "batch time A"],
        code: Gaussian,
        past: Known,
        guess: bool = False,
        closure: int | None = None,
    ) -> Track:
        """Where the agent was at each step, from its actions and from what it saw: q*(s_t), reading m_{1:t-1}.

        `guess`: the actions mean nothing, and every step may lead anywhere near. `closure`: steps after which loops are
        closed, 0 for never; None: as the settings say.
        """
        if self._is_lost(variance):
            if past.pose.shape[1]:
                start, variance = self._get_bearings(motion, start, actions, code, past)
            elif self.settings.form == "bayes":
                return self._feel_for_walls(motion, start, actions, code, past)
        entries = past.code.then(code)
        lookup = self.look_back(entries, code, past.pose.shape[1])
        if self.settings.form == "paper":
            require(not closure, "the paper's form of landmarks cannot close loops; use form bayes, or closure 0")
            return self._blend(motion, start, variance, actions, lookup, past)[0]
        sights = self.sights(entries, code, lookup)
        surprise = self.surprise._replace(chance=0.9) if guess else self.surprise
        every = self.settings.closure if closure is None else closure
        require(every >= 0, f"closure is {every}; give a number of steps, or 0 for never")
        if every and not guess:
            return self._close_as_you_go(motion, start, variance, actions, sights, past, every)
        return Track(*motion.filter(start, actions, variance, sights, (past.pose, past.variance), surprise))

    def _is_lost(self, variance: Float[Tensor, "batch G"]) -> bool:
        """Whether nothing is known of where walks begin (`ignorance`)."""
        lost = variance[:, 0] >= self.settings.reach**2
        require(
            bool(lost.all() or not lost.any()),
            f"{int(lost.sum())} of {len(lost)} walks begin anywhere, the others at known places; follow them apart",
        )
        return bool(lost.all())

    def _get_bearings(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        actions: Float[Tensor, "batch time A"],
        code: Gaussian,
        past: Known,
    ) -> tuple[Float[Tensor, "batch S"], Float[Tensor, "batch G"]]:
        """Where a walk begins by what its first steps recognise, and how sure that is."""
        seen = code[:, :LOOK]
        lookup = look_up(past.code, seen, self.settings.matches)
        log_odds, offset, noise = self.compare(past.code, seen, lookup)
        sure = torch.sigmoid(self.compare.confidence(log_odds, noise, lookup.distance))
        still = (1 - self.settings.surprise) ** torch.arange(sure.shape[1], device=sure.device)
        weight = (still * sure)[..., None] * torch.softmax(self.compare.evidence(log_odds, noise), dim=-1)
        path = motion.unroll(motion.start(len(start)), actions[:, :LOOK])[..., : self.pose_size]
        sighted = stepped(gather(past.pose, lookup.index), offset)
        found, agreed = find_start(path, sighted, weight, self.compare.tolerances(path))
        fresh = start.new_tensor([self.settings.stray**2, self.settings.stray_turn**2][: self.groups])
        share = (agreed / still.sum()).clamp(max=1)[:, None]
        return motion.settle(start, found), share * fresh + (1 - share) * self.ignorance(len(start), start)

    def _feel_for_walls(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        actions: Float[Tensor, "batch time A"],
        code: Gaussian,
        past: Known,
    ) -> Track:
        """A walk through a place that is not known, put where its failed steps fit the walls that are known."""
        sights = self.sights(code, code, self.look_back(code, code, 0))
        sure = torch.zeros_like(start[:, : self.groups])
        there = past.pose, past.variance
        state, variance = motion.filter(start, actions, sure, sights, there, self.surprise, walls=False)
        before = torch.cat([start[:, None], state[:, :-1]], dim=1)
        steps = felt(before[..., : self.pose_size], state[..., : self.pose_size])
        shift, unsure = motion.among_walls(before, actions, steps, self.settings.surprise)
        return Track(state + shift[:, None], variance + unsure[:, None])

    def _close_as_you_go(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        variance: Float[Tensor, "batch G"],
        actions: Float[Tensor, "batch time A"],
        sights: Sights,
        past: Known,
        every: int,
    ) -> Track:
        """A stretch of the walk, then all loops closed, then the next stretch on the map as it is now."""
        believed = sights._replace(log_odds=sights.log_odds + self.settings.doubt / 3)
        size, s, v = self.pose_size, start, variance
        states, variances, plans = start[:, None][:, :0], variance[:, None][:, :0], start[:, None, :size][:, :0]
        for begin in range(0, actions.shape[1], every):
            now = slice(begin, begin + every)
            there = torch.cat([past.pose, states[..., :size]], 1), torch.cat([past.variance, variances], 1)
            seen = Sights(*(part[:, now] for part in sights))
            state, unsure = motion.filter(s, actions[:, now], v, seen, there, self.surprise)
            before = torch.cat([s[:, None], state[:, :-1]], dim=1)
            planned = motion.step(before, actions[:, now])[..., :size]
            plans = torch.cat([plans, felt(before[..., :size], planned)], dim=1)
            states, variances = torch.cat([states, state], 1), torch.cat([variances, unsure], 1)
            so_far = Sights(*(part[:, : now.stop] for part in believed))
            pose = close_loops(states[..., :size], start[:, :size], plans, so_far, past.pose, self.surprise)
            states = torch.cat([pose, states[..., size:]], dim=-1)
            s, v = states[:, -1], variances[:, -1]
        return Track(states, variances)

    def learn(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        actions: Float[Tensor, "batch time A"],
        code: Gaussian,
        lookup: Lookup,
    ) -> Learned:
        """The same for a walk from a known start, with gradients and with what the bound pays for it.

        The paper's form is followed back through all of time. Bayes' form walks first, and then takes every step again,
        all of them at once, from where the walk was: its gradients are those of single steps.
        """
        sure = torch.zeros_like(start[:, : self.groups])
        nothing = Known(start[:, None, : self.pose_size][:, :0], sure[:, None][:, :0], code[:, :0])
        if self.settings.form == "paper":
            track, own = self._blend(motion, start, sure, actions, lookup, nothing)
            before = torch.cat([start[:, None], track.state[:, :-1]], dim=1)
            planned = motion.step(before, actions)[..., : self.pose_size]
            off2 = apart(planned, track.state[..., : self.pose_size]).square().sum(-1)
            divergence = _divergence(own[..., 0], off2, self.noise**2, self.pose_size)
            return Learned(track, divergence, before)
        said = self.compare(code, code, lookup)
        sights = self._as_sights(said, lookup)
        with torch.no_grad():
            past = nothing.pose, nothing.variance
            # Walls are still being learned, and soft ones would squeeze the map.
            state, variance = motion.filter(start, actions, sure, sights, past, self.surprise, walls=False)
        before = torch.cat([start[:, None], state[:, :-1]], dim=1)
        unsure = torch.cat([sure[:, None], variance[:, :-1]], dim=1)
        after = motion.go(before, actions)
        planned = after[..., : self.pose_size]
        sighted = stepped(gather(state[..., : self.pose_size], lookup.index), sights.offset)
        known = gather(variance, lookup.index)
        fused = fuse(planned, unsure, sighted, known, sights.log_odds, sights.noise, self.surprise)
        track = Track(motion.settle(after, fused.pose), fused.variance)
        divergence = self.divergence(
            fused.pose, fused.variance, motion.step(before, actions)[..., : self.pose_size], unsure
        )
        return Learned(track, divergence, before, said)

    def divergence(
        self,
        pose: Float[Tensor, "*n D"],
        variance: Float[Tensor, "*n G"],
        planned: Float[Tensor, "*n D"],
        unsure: Float[Tensor, "*n G"],
    ) -> Float[Tensor, "*n"]:
        """KL from the belief to the plan, which is a mixture of two ways to go: at most -log sum_c pi_c exp(-KL_c)."""
        far2 = self._by_group(apart(planned, pose))
        ways = []
        for chance, fresh in self._ways():
            parts = [
                _divergence(variance[..., g], off2, unsure[..., g] + fresh[g], size)
                for g, (off2, size) in enumerate(far2)
            ]
            ways.append(math.log(chance) - torch.stack(parts).sum(0))
        return -torch.logsumexp(torch.stack(ways), dim=0)

    def recognition_loss(
        self, code: Gaussian, lookup: Lookup, path: Float[Tensor, "batch time D"], said: Said | None = None
    ) -> Float[Tensor, ""]:
        """How badly pairs of views tell where they were taken from, given where they were; and how wrong is how sure.

        Every walk is also compared with entries of another one, in which nothing can be recognised. `said`: of the walk
        itself, where somebody has asked already.
        """
        log_odds, offset, noise = said or self.compare(code, code, lookup)
        relative = felt(gather(path, lookup.index), path[:, :, None].expand(*lookup.index.shape, -1))
        there = lookup.there.to(relative)
        pairs = (self.compare.loss(log_odds, offset, noise, relative) * there).sum() / there.sum().clamp_min(1)
        other = Gaussian(code.mean.roll(1, 0), code.log_var.roll(1, 0))
        strangers = look_up(other, code, self.settings.matches)
        strange_odds, _, strange_noise = self.compare(other, code, strangers)
        odds = log_odds.masked_fill(~lookup.there, -30.0)
        best = self.compare.evidence(odds, noise).argmax(-1, keepdim=True)
        miss = (relative - offset).gather(2, best[..., None].expand(-1, -1, 1, relative.shape[-1]))[:, :, 0]
        right = self.compare.right(miss) & lookup.there.any(-1)
        sure = self.compare.confidence(odds, noise, lookup.distance)
        unsure = self.compare.confidence(strange_odds, strange_noise, strangers.distance)
        truth = torch.cat([right, torch.zeros_like(right)], dim=1).to(sure)
        calibration = binary_cross_entropy_with_logits(torch.cat([sure, unsure], dim=1), truth)
        return pairs - logsigmoid(-strange_odds).mean() + calibration

    def log_prob(
        self,
        pose: Float[Tensor, "batch K D"],
        noise: Float[Tensor, "batch K G"],
        state: Float[Tensor, "batch S"],
        variance: Float[Tensor, "batch G"],
    ) -> Float[Tensor, "batch K"]:
        """How well poses that were sighted agree with where the agent is believed to be."""
        far2 = self._by_group(apart(state[:, None, : self.pose_size], pose))
        total = noise + variance[:, None]
        return -0.5 * torch.stack(
            [size * total[..., g].log() + off2 / total[..., g] for g, (off2, size) in enumerate(far2)]
        ).sum(0)

    def sample(self, track: Track, generator: torch.Generator | None) -> Float[Tensor, "batch time S"]:
        """A pose drawn from each belief; its mean where there is no generator."""
        if generator is None:
            return track.state
        pose = track.state[..., : self.pose_size]
        noise = torch.randn(pose.shape, dtype=pose.dtype, device=pose.device, generator=generator)
        drawn = pose + noise * self._spread(track.variance).sqrt()
        return torch.cat([drawn, track.state[..., self.pose_size :]], dim=-1)

    def ignorance(self, batch: int, like: Tensor) -> Float[Tensor, "batch G"]:
        """The variance of a pose of which nothing is known."""
        everywhere = like.new_full((batch, self.groups), self.settings.reach**2)
        if self.groups == 2:
            everywhere[:, 1] = math.pi**2 / 3
        return everywhere

    def as_covariance(self, variance: Float[Tensor, "*n G"], state: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S S"]:
        """Of the whole state, of which anything but the pose is taken to be known."""
        rest = state.shape[-1] - self.pose_size
        return torch.diag_embed(nn.functional.pad(self._spread(variance), (0, rest)))

    def as_variance(self, belief: Belief) -> Float[Tensor, "*n G"]:
        """The variances of a belief's pose; 0 where it is known exactly."""
        if belief.covariance is None:
            return torch.zeros_like(belief.mean[..., : self.groups])
        diagonal = belief.covariance.diagonal(dim1=-2, dim2=-1)[..., : self.pose_size]
        if self.groups == 1:
            return diagonal.mean(-1, keepdim=True)
        return torch.stack([diagonal[..., :2].mean(-1), diagonal[..., 2]], dim=-1)

    def _spread(self, variance: Float[Tensor, "*n G"]) -> Float[Tensor, "*n D"]:
        """The variance of every coordinate."""
        if self.groups == 1:
            return variance.expand(*variance.shape[:-1], self.pose_size)
        return torch.cat([variance[..., :1].expand(*variance.shape[:-1], 2), variance[..., 1:]], dim=-1)

    def _blend(
        self,
        motion: Motion,
        start: Float[Tensor, "batch S"],
        variance: Float[Tensor, "batch G"],
        actions: Float[Tensor, "batch time A"],
        lookup: Lookup,
        past: Known,
    ) -> tuple[Track, Float[Tensor, "batch time 1"]]:
        """App. D as it is written, and sigma_q^2."""
        planned = self.noise**2

        def spread(known: Tensor, t: int) -> Tensor:
            return planned * self.paper.log_ratio(lookup.distance[:, t], known, lookup.there[:, t], planned).exp()

        state, marginal, own = blend_scan(
            lambda s, t: motion.step(s, actions[:, t]),
            motion.settle,
            spread,
            start,
            variance,
            lookup.index,
            self.paper.weights(lookup),
            (past.pose, past.variance),
        )
        return Track(state, marginal), own

    def _ways(self) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """The chance of each way that a step may go, and its variances."""
        return (1 - self.surprise.chance, self.surprise.planned), (self.surprise.chance, self.surprise.stray)

    def _by_group(self, step: Float[Tensor, "*n D"]) -> list[tuple[Float[Tensor, "*n"], int]]:
        """Squared length of each group of coordinates, and how many they are."""
        parts = [step[..., group] for group in coordinates(self.pose_size)]
        return [(part.square().sum(-1), part.shape[-1]) for part in parts]


def _divergence(
    variance: Float[Tensor, "*n"], far2: Float[Tensor, "*n"], planned: Tensor | float, size: int
) -> Float[Tensor, "*n"]:
    """KL between isotropic Gaussians of `size` dimensions whose means are far2 apart, squared."""
    ratio = variance / planned
    return 0.5 * (size * (ratio - 1 - ratio.log()) + far2 / planned)
