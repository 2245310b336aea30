"""Memory read backwards: entries whose codes match what is seen now, and the relative pose that each implies."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from gtmsm.config import config, require
from gtmsm.pose import Space
from gtmsm.tensors import LOG_TWO_PI, EntryIndex, EntryPoses, Gaussian, PerEntry, Pose, Poses, Variance, gather


@config
class LandmarkConfig:
    """How the pose is corrected by what is seen."""

    form: Literal["off", "paper", "bayes"] = "off"
    """off: actions alone tell where the agent is (section 3.3); paper: App. D as it is written; bayes: beta by Bayes'
    rule from a network that compares two views, with a chance that a step goes otherwise (docs/deviations.md)."""
    matches: int = 12
    """K', the entries looked up by their codes (App. D); the last frame is always among them."""
    width: int = 256
    """Hidden units of the network that compares two views; App. D's own networks have 32."""
    recent: int = 1
    """The last steps, whose frames are not looked up (the very last one excepted): to an agent that moves slowly they
    are the nearest of all."""
    steady: float = 0.05
    """Standard deviation of a step that goes as planned, in units of the pose space ..."""
    steady_turn: float = 0.01
    """... and of its heading, in radians; the paper's form takes the motion's own noise for both."""
    surprise: float = 0.1
    """Chance that a step does not go as planned."""
    watch: bool = False
    """Whether the last frame is asked first how a step went: whether it was made as planned and, by itself, whether the
    agent turned as planned. Other places that are recognised then correct that, all that agree together. Step by step,
    without a fast scan."""
    surprise_turn: float = 0.05
    """With `watch`: chance that an agent does not turn as planned."""
    surprise_worth: float = 0.0
    """With `watch`: steps of a walk that tell as much of how often steps go wrong as these chances do. It is learned on
    the way, and memory keeps it. 0: it is not learned."""
    surprise_again: float = 0.0
    """With `surprise_worth`: least chance that a step does not go as planned after one that did not, but for turns."""
    stray: float = 1.0
    """Standard deviation of where such a step leads, in units of the pose space."""
    stray_turn: float = 0.2
    """The same of the heading, in radians."""
    closure: int = 0
    """Steps after which loops are closed: what was recognised since then also corrects all earlier poses of the walk.
    0: never, so that no pose depends on what was seen after it."""
    grain: float = 0.1
    """Least standard deviation of a relative pose, in the same units: that of two equal codes."""
    last_grain: float = 0.0
    """The same of positions between a view and the last one, which a network of its own then compares: a single step
    is seen more precisely, and less so how far it turned. 0: one network, and `grain`, for all."""
    doubt: float = 6.0
    """Nats subtracted from the log-odds of every match: K' matches from one memory are not independent, and a plan is
    right more often than not. Closing a loop subtracts two thirds of it."""
    reach: float = 4.0
    """Standard deviation of the distance between two views of a walk, in the same units: the density of the relative
    pose of views that do not match."""
    rendered: int = 0
    """Poses at which a walk may have begun, or a picture may have been taken, that are judged by what memory would show
    there, the best of them refined (`rendering.py`); for priors that make one view. 0: matches of codes alone tell."""
    tolerance: float = 0.5
    """Largest error of a position that counts as recognised, in the same units ..."""
    tolerance_turn: float = 10.0
    """... and of a heading, in degrees."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        require(self.matches >= 1, f"matches is {self.matches}; look up at least 1 entry")
        require(self.closure >= 0, f"closure is {self.closure}; give a number of steps, or 0 for never")
        require(
            not self.closure or self.form != "paper",
            f"closure is {self.closure}, but the paper's form cannot close loops; use form bayes",
        )
        require(self.rendered >= 0, f"rendered is {self.rendered}; give a number of poses, or 0 for none")
        require(self.recent >= 1, f"recent is {self.recent}; the last frame is always looked up: give at least 1")
        require(self.width >= 8, f"width is {self.width}; give at least 8")
        for name in ("surprise", "surprise_turn"):
            chance = getattr(self, name)
            require(0 < chance < 1, f"{name} is {chance}; give a probability between 0 and 1")
        require(self.surprise_worth >= 0, f"surprise_worth is {self.surprise_worth}; give a number of steps, or 0")
        require(self.last_grain >= 0, f"last_grain is {self.last_grain}; give a positive number, or 0 for none")
        again = self.surprise_again
        require(0 <= again < 1, f"surprise_again is {again}; give a probability from 0 to below 1")
        for name in ("steady", "steady_turn", "stray", "stray_turn", "grain", "reach", "tolerance", "tolerance_turn"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive number")


@dataclass(frozen=True)
class Lookup:
    """The K' entries whose codes are nearest to each query's."""

    index: EntryIndex
    """Of the entries; 0 where `there` is false."""
    there: Bool[Tensor, "batch time K"]
    """False where there are fewer than K entries yet."""
    distance: PerEntry
    """Mean squared distance of the codes, in units of their own variances."""
    after: Bool[Tensor, "batch time"] | None = None
    """Whether the first entry of a query is the frame just before it; None: it never is."""

    @property
    def first(self) -> "Lookup":
        """Of each query the first entry alone."""
        return Lookup(self.index[..., :1], self.there[..., :1], self.distance[..., :1], self.after)

    def begun_elsewhere(self) -> "Lookup":
        """The same if the entry before the first query is not the frame before it: it is not compared."""
        if self.after is None:
            return self
        there, after = self.there.clone(), self.after.clone()
        there[:, 0, :1] &= ~after[:, :1]
        after[:, 0] = False
        return Lookup(self.index, there, self.distance, after)

    def at(self, steps: Int[Tensor, "batch asked"]) -> "Lookup":
        """Of these queries alone."""
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

    With `first`, query t is entry first + t itself, sees only entries from `recent` steps before it, and the one just
    before it is always among them. `number` says which entries these are, where some were left out. The search is
    without gradients, and for all steps at once: codes do not depend on poses.
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
    seen = entries.at(index)
    scale = seen.log_var.exp() + query.log_var.exp()[:, :, None]
    distance = ((query.mean[:, :, None] - seen.mean).square() / scale).mean(-1)
    return Lookup(index, there, distance, None if first is None else (found < 0).any(-1))


class Match(NamedTuple):
    """What the comparison of an entry and a query says, for every pair of a lookup."""

    log_odds: PerEntry
    """That both show the same place."""
    offset: Float[Tensor, "batch time K D"]
    """The displacement from the entry's pose to the query's, in the frame of the entry."""
    noise: Float[Tensor, "batch time K G"]
    """Its variance."""


class Pairs(nn.Module):
    """A network of two codes and of how far apart they are."""

    def __init__(self, code_size: int, width: int, outputs: int) -> None:
        super().__init__()
        # Layers of one view alone are computed once per view, not once per pair.
        self.view = nn.Sequential(nn.Linear(code_size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.alike = nn.Linear(1, width, bias=False)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
        )

    def outputs(self, entries: Gaussian, query: Gaussian, lookup: Lookup) -> Float[Tensor, "batch time K outputs"]:
        """Of each query and the entries that were looked up for it; codes get no gradient."""
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
        """Compare each query with the frame just before it, which was looked up alone."""
        network, grain = (self, self.settings.grain) if self.last is None else (self.last, self.settings.last_grain)
        return self._match(network.outputs(entries, query, last), last, grain)

    def _match(self, made: Float[Tensor, "batch time K outputs"], lookup: Lookup, grain: float) -> Match:
        """What a network says of each pair, whose positions are known no better than `grain`."""
        log_odds, offset, log_noise = made.split([1, self.space.size, len(self.space.groups)], dim=-1)
        # Equal codes show the same place, whatever the network has learned.
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
        self, log_odds: Float[Tensor, "*batch"], offset: Pose, noise: Variance, relative: Pose
    ) -> Float[Tensor, "*batch"]:
        """-log p(relative pose | both codes): a mixture of what the match says and of a density as wide as `reach`."""
        far2 = self.space.squared_lengths(self.space.difference(offset, relative))
        shown, anywhere = logsigmoid(log_odds), logsigmoid(-log_odds) - self.indifference
        for g, group in enumerate(self.space.groups):
            spread = far2[g] / noise[..., g]
            shown = shown - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + noise[..., g].log()) + spread)
        anywhere = anywhere - 0.5 * relative[..., : self.space.positions].square().sum(-1) / self.settings.reach**2
        return -torch.logaddexp(shown, anywhere)

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

        Every walk is also compared with entries of another one, in which nothing can be recognised. `match` is that of
        the walk itself, if it has been computed already; `trust` weighs each pair by how sure its relative pose is.
        With `asked`, all that was looked up is compared at these steps, and the last frame at every step.
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

    def _pairs(
        self, match: Match, lookup: Lookup, path: EntryPoses, here: Poses
    ) -> tuple[Float[Tensor, "batch time K D"], PerEntry]:
        """How far off the relative pose of each pair is, and its loss; `here` are the poses of the queries."""
        relative = self.space.displacement(gather(path, lookup.index), here[:, :, None])
        return relative - match.offset, self.loss(match.log_odds, match.offset, match.noise, relative)

    def _calibration(
        self, match: Match, lookup: Lookup, error: Float[Tensor, "batch time K D"], stranger: Match, strange: Lookup,
        trust: PerEntry | None,
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Cross-entropy of the confidence that the best match of each query is right; those of strangers never are."""
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
        """The largest error that counts as recognised, in every coordinate of a pose."""
        turn = math.radians(self.settings.tolerance_turn)
        return like.new_tensor([self.settings.tolerance] * self.space.positions + [turn] * self.space.angles)

    def right(self, error: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether an error in pose is small enough to count as recognised."""
        wrapped = self.space.difference(torch.zeros_like(error), error)
        position, turn = wrapped[..., : self.space.positions], wrapped[..., self.space.positions :]
        turned = turn.abs() <= math.radians(self.settings.tolerance_turn)
        return (position.norm(dim=-1) <= self.settings.tolerance) & turned.all(-1)
