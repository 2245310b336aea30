"""Memory read backwards: entries whose codes match the current frame, and the relative pose that each match implies."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from gtmsm.config import config, require
from gtmsm.pose import Space
from gtmsm.tensors import LOG_TWO_PI, EntryIndex, EntryPoses, Gaussian, PerEntry, Pose, Poses, Variance, gather

MATCH_WEIGHT = 0.2
"""Weight of the density of the match alone, for pairs of views that are known to overlap."""


@config
class LandmarkConfig:
    """How pose estimates are corrected by frames."""

    form: Literal["off", "paper", "bayes"] = "off"
    """off: poses from actions alone (section 3.3); paper: App. D as written; bayes: beta by Bayes' rule from a network
    that compares two views, with a chance that a step does not go as planned (docs/deviations.md)."""
    matches: int = 12
    """K', the number of entries looked up by their codes (App. D); the previous frame is always among them."""
    width: int = 256
    """Hidden units of the network that compares two views; App. D's own networks have 32."""
    recent: int = 1
    """Number of most recent steps whose frames are not looked up, except for the previous frame: for an agent that
    moves slowly, their codes are the nearest of all."""
    steady: float = 0.05
    """Standard deviation of the position after a step that goes as planned, in units of the pose space; the paper's
    form uses the motion's own noise."""
    steady_turn: float = 0.01
    """Standard deviation of the heading after a step that goes as planned, in radians; the paper's form uses the
    motion's own noise."""
    surprise: float = 0.1
    """Chance that a step does not go as planned."""
    watch: bool = False
    """Estimate each step from the previous frame first: whether the agent moved as planned and, independently, whether
    it turned as planned. Other entries that are recognised then correct this estimate, and those that agree add up.
    Runs step by step, without the fast scan."""
    watch_odds: float = 0.0
    """With `watch`: maximum log-odds that the previous frame shows the step rightly. In pictures unlike those trained
    on, the comparison may be wrong however sure it is. 0: no maximum."""
    surprise_turn: float = 0.05
    """With `watch`: chance that an agent does not turn as planned."""
    surprise_worth: float = 0.0
    """With `watch`: number of steps of a walk whose evidence counts as much as the chances above. How often steps fail
    is then learned during a walk, and kept in memory. 0: it is not learned."""
    surprise_again: float = 0.0
    """With `surprise_worth`: minimum chance that a step does not go as planned after one that did not, except turns."""
    stray: float = 1.0
    """Standard deviation of the position after a step that does not go as planned, in units of the pose space."""
    stray_turn: float = 0.2
    """Standard deviation of the heading after a step that does not go as planned, in radians."""
    closure: int = 0
    """Number of steps after which loops are closed: matches since then also correct all earlier poses of the walk.
    0: never, so that no pose depends on later frames."""
    grain: float = 0.1
    """Minimum standard deviation of a relative pose: that of equal codes, in units of the pose space and in radians."""
    last_grain: float = 0.0
    """Minimum standard deviation of the position relative to the previous frame, with which a network of its own then
    compares each frame: single steps are seen more precisely, but not their turns. 0: one network, and `grain`, for
    all frames."""
    doubt: float = 6.0
    """Nats subtracted from the log-odds of each match: K' matches from one memory are not independent, and plans are
    right more often than not. Closing a loop subtracts two thirds of it."""
    reach: float = 4.0
    """Standard deviation of the distance between two views of a walk that do not match, in units of the pose space."""
    rendered: int = 0
    """Number of candidate poses, of the start of a walk or of a picture, that are judged by the views that memory
    predicts there; the best are refined (`rendering.py`). For priors query and rays. 0: judged by matches of codes
    alone."""
    tolerance: float = 0.5
    """Maximum error of a position that counts as recognised, in units of the pose space."""
    tolerance_turn: float = 10.0
    """Maximum error of a heading that counts as recognised, in degrees."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.matches >= 1, f"matches is {self.matches}; look up at least 1 entry")
        require(self.closure >= 0, f"closure is {self.closure}; give a number of steps, or 0 for never")
        require(
            not self.closure or self.form != "paper",
            f"closure is {self.closure}, but the paper's form cannot close loops; use form bayes, or closure 0",
        )
        require(self.rendered >= 0, f"rendered is {self.rendered}; give a number of poses, or 0 for none")
        require(self.recent >= 1, f"recent is {self.recent}; the last frame is always looked up: give at least 1")
        require(self.width >= 8, f"width is {self.width}; give at least 8")
        for name in ("surprise", "surprise_turn"):
            chance = getattr(self, name)
            require(0 < chance < 1, f"{name} is {chance}; give a probability between 0 and 1")
        require(self.surprise_worth >= 0, f"surprise_worth is {self.surprise_worth}; give a number of steps, or 0")
        require(self.watch_odds >= 0, f"watch_odds is {self.watch_odds}; give positive log-odds, or 0 for no maximum")
        require(self.last_grain >= 0, f"last_grain is {self.last_grain}; give a positive number, or 0 for none")
        again = self.surprise_again
        require(0 <= again < 1, f"surprise_again is {again}; give a probability from 0 to below 1")
        for name in ("steady", "steady_turn", "stray", "stray_turn", "grain", "reach", "tolerance", "tolerance_turn"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive number")


@dataclass(frozen=True)
class Lookup:
    """The K' entries whose codes are nearest to that of each query."""

    index: EntryIndex
    """Indices of the entries; 0 where `there` is False."""
    there: Bool[Tensor, "batch time K"]
    """False where there are fewer than K entries yet."""
    distance: PerEntry
    """Mean squared distance of the codes, in units of their own variances."""
    after: Bool[Tensor, "batch time"] | None = None
    """Whether the first entry of a query is the frame just before it; None: it never is."""

    @classmethod
    def of(cls, entries: Gaussian, query: Gaussian, index: EntryIndex, there: Bool[Tensor, "batch time K"]) -> "Lookup":
        """These entries, with the distances of their codes."""
        seen = entries.at(index)
        scale = seen.log_var.exp() + query.log_var.exp()[:, :, None]
        return cls(index, there, ((query.mean[:, :, None] - seen.mean).square() / scale).mean(-1))

    @property
    def first(self) -> "Lookup":
        """Only the first entry of each query."""
        return Lookup(self.index[..., :1], self.there[..., :1], self.distance[..., :1], self.after)

    def begun_elsewhere(self) -> "Lookup":
        """The lookup if the entry before the first query is not its previous frame: that pair is not compared."""
        if self.after is None:
            return self
        there, after = self.there.clone(), self.after.clone()
        there[:, 0, :1] &= ~after[:, :1]
        after[:, 0] = False
        return Lookup(self.index, there, self.distance, after)

    def at(self, steps: Int[Tensor, "batch asked"]) -> "Lookup":
        """Only these queries."""
        after = None if self.after is None else gather(self.after, steps)
        return Lookup(gather(self.index, steps), gather(self.there, steps), gather(self.distance, steps), after)


def look_up(
    entries: Gaussian,
    query: Gaussian,
    k: int,
    first: int | None = None,
    recent: int = 1,
    number: Int[Tensor, "n"] | None = None,
) -> Lookup:
    """The `k` entries nearest to each query by code.

    With `first`, query t is entry first + t itself: it is compared only with entries at least `recent` steps before it,
    and always with the one just before it. `number`: numbers of the entries, if some were left out. The search is
    without gradients and for all steps at once, since codes do not depend on poses.
    """
    with torch.no_grad():
        far = torch.cdist(query.mean, entries.mean, compute_mode="donot_use_mm_for_euclid_dist")
        if first is not None:
            entry = torch.arange(far.shape[-1], device=far.device) if number is None else number
            now = first + torch.arange(far.shape[-2], device=far.device)[:, None]
            far = far.masked_fill(entry > now - recent, math.inf).masked_fill(entry == now - 1, -1.0)
        found, index = far.topk(min(k, far.shape[-1]), dim=-1, largest=False)
        there = found < math.inf
        index = torch.where(there, index, 0)
    lookup = Lookup.of(entries, query, index, there)
    return lookup if first is None else replace(lookup, after=(found < 0).any(-1))


class Match(NamedTuple):
    """The comparison of an entry and a query, for each pair of a lookup."""

    log_odds: PerEntry
    """Log-odds that both show the same place."""
    offset: Float[Tensor, "batch time K D"]
    """The displacement from the entry's pose to the query's, in the frame of the entry."""
    noise: Float[Tensor, "batch time K G"]
    """Its variance."""


class Pairs(nn.Module):
    """A network whose inputs are two codes and the distance between them."""

    def __init__(self, code_size: int, width: int, outputs: int) -> None:
        super().__init__()
        # Layers that depend on one view alone are computed once per view, not once per pair.
        self.view = nn.Sequential(nn.Linear(code_size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.alike = nn.Linear(1, width, bias=False)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
        )

    def outputs(self, entries: Gaussian, query: Gaussian, lookup: Lookup) -> Float[Tensor, "batch time K outputs"]:
        """Outputs for each query and the entries that were looked up for it; codes get no gradient."""
        distance = lookup.distance.detach()[..., None]
        there = gather(self.first(self.view(entries.mean.detach())), lookup.index)
        here = self.second(self.view(query.mean.detach()))[:, :, None]
        made: Tensor = self.net(there + here + self.alike((distance + 1e-4).log()))
        return made.to(distance)


class Comparison(Pairs):
    """A network of two codes: do they show the same place, and from which relative pose?"""

    def __init__(self, settings: LandmarkConfig, code_size: int, space: Space) -> None:
        outputs = 1 + space.size + len(space.groups)
        super().__init__(code_size, settings.width, outputs)
        self.settings, self.space = settings, space
        self.trust = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))
        self.last = Pairs(code_size, settings.width, outputs) if settings.last_grain else None

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of the layers between the first and the last."""
        square = self.settings.width, self.settings.width
        return [parameter for parameter in self.parameters() if parameter.shape == square]

    def forward(self, entries: Gaussian, query: Gaussian, lookup: Lookup) -> Match:
        """Compare each query with the entries that were looked up for it; codes get no gradient."""
        match = self._match(self.outputs(entries, query, lookup), lookup, self.settings.grain)
        if self.last is None or lookup.after is None:
            return match
        after = lookup.after[..., None]

        def put_first(step: Tensor, whole: Tensor) -> Tensor:
            first = torch.where(after.view(*after.shape, *[1] * (whole.dim() - 3)), step, whole[:, :, :1])
            return torch.cat([first, whole[:, :, 1:]], dim=2)

        return Match(*map(put_first, self.step(entries, query, lookup.first), match))

    def step(self, entries: Gaussian, query: Gaussian, last: Lookup) -> Match:
        """Compare each query with the frame just before it, the only entry of `last`."""
        network, grain = (self, self.settings.grain) if self.last is None else (self.last, self.settings.last_grain)
        return self._match(network.outputs(entries, query, last), last, grain)

    def _match(self, made: Float[Tensor, "batch time K outputs"], lookup: Lookup, grain: float) -> Match:
        """The match of each pair, from outputs of a network; `grain`: minimum standard deviation of the position."""
        log_odds, offset, log_noise = made.split([1, self.space.size, len(self.space.groups)], dim=-1)
        # Equal codes imply equal poses, whatever the network has learned.
        distance = lookup.distance.detach()[..., None]
        other = distance / (distance + 0.1)
        least = torch.full_like(log_noise, self.settings.grain)
        least[..., 0] = grain
        noise = least**2 + other * (2 * log_noise.clamp(-6.0, 3.0)).exp()
        return Match(log_odds[..., 0], offset * other, noise)

    @property
    def indifference(self) -> float:
        """Minus the log-density, at its peak, of the relative pose of views that do not match."""
        position = 0.5 * self.space.positions * (LOG_TWO_PI + 2 * math.log(self.settings.reach))
        return position + self.space.angles * LOG_TWO_PI

    def loss(
        self,
        log_odds: Float[Tensor, "*batch"],
        offset: Pose,
        noise: Variance,
        relative: Pose,
        match_weight: float = 0.0,
    ) -> Float[Tensor, "*batch"]:
        """-log p(relative pose | both codes): a mixture of the density of the match and one as wide as `reach`.

        `match_weight`: weight of the density of the match alone, for pairs of views that are known to overlap. Where
        the network is sure that they do not match, the mixture gives it no gradient.
        """
        far2 = self.space.squared_lengths(self.space.difference(offset, relative))
        shown, anywhere = logsigmoid(log_odds), logsigmoid(-log_odds) - self.indifference
        for g, group in enumerate(self.space.groups):
            spread = far2[g] / noise[..., g]
            shown = shown - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + noise[..., g].log()) + spread)
        anywhere = anywhere - 0.5 * relative[..., : self.space.positions].square().sum(-1) / self.settings.reach**2
        return -torch.logaddexp(shown, anywhere) - match_weight * (shown - logsigmoid(log_odds))

    def walk_loss(
        self,
        code: Gaussian,
        lookup: Lookup,
        path: Poses,
        match: Match | None = None,
        trust: PerEntry | None = None,
        asked: Int[Tensor, "batch asked"] | None = None,
    ) -> Float[Tensor, ""]:
        """Negative log-likelihood of the relative poses of a walk's pairs of views, plus the calibration of confidence.

        Each walk is also compared with entries of another walk, in which nothing can be recognised. `match`: that of
        the walk itself, if it has been computed already. `trust`: weights of pairs, by how certain their relative poses
        are. With `asked`, all looked-up entries are compared at these steps, and the previous frame at each step.
        """
        query, here, total, count = code, path, path.new_zeros(()), path.new_zeros(())
        if asked is not None:
            last = lookup.first
            _, lost = self._pairs(self.step(code, code, last), last, path, path)
            total, count = (lost * last.there).sum(), last.there.sum()
            lookup, query, here = lookup.at(asked), code.at(asked), gather(path, asked)
        match = match or self(code, query, lookup)
        error, lost = self._pairs(match, lookup, path, here)
        there = lookup.there.to(lost) * (1.0 if trust is None else trust)
        pairs = (total + (lost * there).sum()) / (count + there.sum()).clamp_min(1)
        other = Gaussian(code.mean.roll(1, 0), code.log_var.roll(1, 0))
        strange = look_up(other, query, self.settings.matches)
        stranger = self(other, query, strange)
        calibration = self._calibration(match, lookup, error, stranger, strange, trust)
        return pairs - logsigmoid(-stranger.log_odds).mean() + calibration

    def doubled_loss(self, code: Gaussian, path: Poses, planned: Poses, reckoning: float = 1.0) -> Float[Tensor, ""]:
        """The loss of pairs of views that are two planned steps apart: what a doubled step shows, which few steps do.

        Each view is compared with the latest earlier one from near where two steps as planned would have led to it.
        `reckoning`: factor by which the weight of a pair shrinks with every planned move between its views. Steps no
        longer than `tolerance` do not count.
        """
        begun = self.space.difference(2 * planned, path)
        far = self.space.squared_lengths(self.space.difference(path[:, None], begun[:, :, None]))[0]
        near, t = self.settings.tolerance**2, torch.arange(path.shape[1], device=path.device)
        latest, index = torch.where((far <= near) & (t < t[:, None]), t, -1).max(-1)
        moves = (planned.square().sum(-1) > near).long()
        behind = moves.cumsum(1)
        weight = moves * (latest >= 0) * reckoning ** (behind - behind.gather(1, index))
        lookup = Lookup.of(code, code, index[..., None], (latest >= 0)[..., None])
        _, lost = self._pairs(self.step(code, code, lookup), lookup, path, path, MATCH_WEIGHT)
        return (lost[..., 0] * weight).sum() / weight.sum().clamp_min(1e-6)

    def _pairs(
        self, match: Match, lookup: Lookup, path: EntryPoses, here: Poses, match_weight: float = 0.0
    ) -> tuple[Float[Tensor, "batch time K D"], PerEntry]:
        """The error of the relative pose of each pair, and its loss; `here`: poses of the queries."""
        relative = self.space.displacement(gather(path, lookup.index), here[:, :, None])
        return relative - match.offset, self.loss(match.log_odds, match.offset, match.noise, relative, match_weight)

    def _calibration(
        self, match: Match, lookup: Lookup, error: Float[Tensor, "batch time K D"], stranger: Match, strange: Lookup,
        trust: PerEntry | None,
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Cross-entropy of the confidence that the best match of each query is right; in another walk it never is."""
        odds = match.log_odds.masked_fill(~lookup.there, -30.0)
        best = self.evidence(odds, match.noise).argmax(-1, keepdim=True)
        right = self.right(error.gather(2, best[..., None].expand(-1, -1, 1, error.shape[-1]))[:, :, 0])
        right = right & lookup.there.any(-1)
        confidence = [
            self.confidence(odds, match.noise, lookup.distance),
            self.confidence(stranger.log_odds, stranger.noise, strange.distance),
        ]
        truth = torch.cat([right, torch.zeros_like(right)], dim=1).to(confidence[0])
        weight = None
        if trust is not None:
            weight = torch.cat([trust.gather(-1, best)[..., 0], torch.ones_like(trust[..., 0])], dim=1)
        return binary_cross_entropy_with_logits(torch.cat(confidence, dim=1), truth, weight)

    def evidence(self, log_odds: Float[Tensor, "*n K"], noise: Float[Tensor, "*n K G"]) -> Float[Tensor, "*n K"]:
        """Log-odds of a match plus the log-probability that its relative pose is within tolerance."""
        near = -torch.expm1(-0.5 * self.settings.tolerance**2 / noise[..., 0])
        for g in range(1, len(self.space.groups)):  # the heading, if there is one
            near = near * torch.erf(math.radians(self.settings.tolerance_turn) / (2 * noise[..., g]).sqrt())
        return log_odds + near.clamp_min(1e-6).log()

    def confidence(
        self, log_odds: Float[Tensor, "*n K"], noise: Float[Tensor, "*n K G"], distance: Float[Tensor, "*n K"]
    ) -> Float[Tensor, "*n"]:
        """Log-odds that the best of K matches is right, by a small network trained for calibration alone."""
        evidence = self.evidence(log_odds, noise)
        best = evidence.argmax(-1, keepdim=True)
        chosen = [value.gather(-1, best)[..., 0] for value in (evidence, noise[..., 0].log(), (distance + 1e-4).log())]
        features = torch.stack([*chosen, torch.logsumexp(evidence, dim=-1)], dim=-1)
        sure: Tensor = self.trust(0.2 * features.clamp(-30.0, 30.0).detach())[..., 0]
        return sure

    def tolerances(self, like: Tensor) -> Float[Tensor, "D"]:
        """The maximum error that counts as recognised, for each coordinate of a pose."""
        turn = math.radians(self.settings.tolerance_turn)
        return like.new_tensor([self.settings.tolerance] * self.space.positions + [turn] * self.space.angles)

    def right(self, error: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether an error in pose is small enough to count as recognised."""
        wrapped = self.space.difference(torch.zeros_like(error), error)
        position, turn = wrapped[..., : self.space.positions], wrapped[..., self.space.positions :]
        turned = turn.abs() <= math.radians(self.settings.tolerance_turn)
        return (position.norm(dim=-1) <= self.settings.tolerance) & turned.all(-1)
