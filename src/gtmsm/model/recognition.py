"""Memory read backwards: which entries look like what is seen now, and where the agent then is."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gtmsm.config import config, require
from gtmsm.tensors import LOG_TWO_PI, Gaussian, apart, coordinates, gather


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
    """Steps whose frames are not looked up since they were seen just now, the last one excepted: an agent that moves
    little by little would find nothing else."""
    steady: float = 0.05
    """Standard deviation of a step that goes as planned, in units of the pose space ..."""
    steady_turn: float = 0.01
    """... and of its heading, in radians; the paper's form takes the motion's own noise for both."""
    surprise: float = 0.1
    """Chance that a step does not go as planned."""
    stray: float = 1.0
    """Standard deviation of where such a step leads, in units of the pose space."""
    stray_turn: float = 0.2
    """The same of the heading, in radians."""
    closure: int = 0
    """Steps after which loops are closed: what was recognised since then corrects all poses of the walk so far, too.
    0: never, so that no pose depends on what was seen after it."""
    grain: float = 0.1
    """Standard deviation of a place that is recognised exactly, in the same units: no sight is surer than that."""
    doubt: float = 6.0
    """Nats that an opinion has to overcome before it is believed rather than the plan: K' opinions from one memory are
    not independent, and a plan is right more often than not. To close a loop, two thirds of it do."""
    reach: float = 4.0
    """How far apart two views of a walk usually are, in the same units: what an entry that tells nothing says."""
    tolerance: float = 0.5
    """How near a place must be found to count as recognised, in the same units ..."""
    tolerance_turn: float = 10.0
    """... and, where the agent has a heading, degrees."""

    def __post_init__(self) -> None:
        """Refuse what cannot be recognised with."""
        require(self.matches >= 1, f"matches is {self.matches}; look up at least 1 entry")
        require(self.closure >= 0, f"closure is {self.closure}; give a number of steps, or 0 for never")
        require(
            not self.closure or self.form != "paper",
            f"closure is {self.closure}, but the paper's form has no opinions to close loops with; use form bayes",
        )
        require(self.recent >= 1, f"recent is {self.recent}; the last frame is always looked up: give at least 1")
        require(self.width >= 8, f"width is {self.width}; give at least 8")
        require(0 < self.surprise < 1, f"surprise is {self.surprise}; give a probability between 0 and 1")
        for name in ("steady", "steady_turn", "stray", "stray_turn", "grain", "reach", "tolerance", "tolerance_turn"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive number")


@dataclass(frozen=True)
class Lookup:
    """The entries whose codes are nearest to each query's: memory, read backwards."""

    index: Int[Tensor, "batch time K"]
    """Of the entries; where there are fewer than K yet, `there` is false and the index means nothing."""
    there: Bool[Tensor, "batch time K"]
    distance: Float[Tensor, "batch time K"]
    """Mean squared distance of the codes, in units of their own variances."""


def look_up(entries: Gaussian, query: Gaussian, k: int, first: int | None = None, recent: int = 1) -> Lookup:
    """The `k` entries nearest to each query by code.

    With `first`, query t is entry first + t itself, sees only entries from `recent` steps before it, and the one just
    before it is always among them. Search is without gradients, for all queries at once: codes do not wait for poses.
    """
    with torch.no_grad():
        far = torch.cdist(query.mean, entries.mean, compute_mode="donot_use_mm_for_euclid_dist")
        if first is not None:
            entry = torch.arange(far.shape[-1], device=far.device)
            now = first + torch.arange(far.shape[-2], device=far.device)[:, None]
            far = far.masked_fill(entry > now - recent, math.inf).masked_fill(entry == now - 1, -1.0)
        found, index = far.topk(min(k, far.shape[-1]), dim=-1, largest=False)
        there = found < math.inf
        index = torch.where(there, index, 0)
    seen = entries.at(index)
    scale = seen.log_var.exp() + query.log_var.exp()[:, :, None]
    return Lookup(index, there, ((query.mean[:, :, None] - seen.mean).square() / scale).mean(-1))


Said: TypeAlias = tuple[Float[Tensor, "batch time K"], Float[Tensor, "batch time K D"], Float[Tensor, "batch time K G"]]
"""Log-odds, offset and variance: what a comparison says."""


class Comparison(nn.Module):
    """Two views, by their codes: are they of one place, from where was the second taken, and how sure is that?"""

    def __init__(self, settings: LandmarkConfig, code_size: int, has_heading: bool, pose_size: int) -> None:
        super().__init__()
        self.settings, self.has_heading, self.pose_size = settings, has_heading, pose_size
        self.position = pose_size - 1 if has_heading else pose_size
        width, said = settings.width, 1 + pose_size + (2 if has_heading else 1)
        # What can be said of a view alone is said once, not once for every view it is compared with.
        self.view = nn.Sequential(nn.Linear(code_size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.alike = nn.Linear(1, width, bias=False)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, said)
        )
        self.trust = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, entries: Gaussian, query: Gaussian, lookup: Lookup) -> Said:
        """Log-odds that entry k and the query show one place, the query's pose from the entry's, and its variance."""
        distance = lookup.distance.detach()[..., None]
        there = gather(self.first(self.view(entries.mean.detach())), lookup.index)
        here = self.second(self.view(query.mean.detach()))[:, :, None]
        said = self.net(there + here + self.alike((distance + 1e-4).log())).to(distance)
        log_odds, offset, log_noise = said.split([1, self.pose_size, said.shape[-1] - 1 - self.pose_size], dim=-1)
        # The same code is the same place, whatever the network has learned; it can tend to all the others.
        other = distance / (distance + 0.1)
        noise = self.settings.grain**2 + other * (2 * log_noise.clamp(-5.0, 3.0)).exp()
        return log_odds[..., 0], offset * other, noise

    @property
    def indifference(self) -> float:
        """Minus the log-density of a relative pose where an entry tells nothing, at its peak."""
        turn = LOG_TWO_PI if self.has_heading else 0.0
        return 0.5 * self.position * (LOG_TWO_PI + 2 * math.log(self.settings.reach)) + turn

    def loss(
        self,
        log_odds: Float[Tensor, "*n"],
        offset: Float[Tensor, "*n D"],
        noise: Float[Tensor, "*n G"],
        relative: Float[Tensor, "*n D"],
    ) -> Float[Tensor, "*n"]:
        """-log p(relative pose | both codes): what the network says where it is right, else anything within reach."""
        miss = apart(offset, relative)
        shown, anywhere = logsigmoid(log_odds), logsigmoid(-log_odds) - self.indifference
        for g, group in enumerate(coordinates(self.pose_size)):
            spread = miss[..., group].square().sum(-1) / noise[..., g]
            shown = shown - 0.5 * ((group.stop - group.start) * (LOG_TWO_PI + noise[..., g].log()) + spread)
        anywhere = anywhere - 0.5 * relative[..., : self.position].square().sum(-1) / self.settings.reach**2
        return -torch.logaddexp(shown, anywhere)

    def evidence(self, log_odds: Float[Tensor, "*n K"], noise: Float[Tensor, "*n K G"]) -> Float[Tensor, "*n K"]:
        """Log-odds of an opinion being right *and* near enough to count: a vague one is worth little."""
        near = -torch.expm1(-0.5 * self.settings.tolerance**2 / noise[..., 0])
        if self.has_heading:
            near = near * torch.erf(math.radians(self.settings.tolerance_turn) / (2 * noise[..., 1]).sqrt())
        return log_odds + near.clamp_min(1e-6).log()

    def confidence(
        self, log_odds: Float[Tensor, "*n K"], noise: Float[Tensor, "*n K G"], distance: Float[Tensor, "*n K"]
    ) -> Float[Tensor, "*n"]:
        """Log-odds that the best of K opinions is right, learned apart from them so that it can be believed."""
        evidence = self.evidence(log_odds, noise)
        best = evidence.argmax(-1, keepdim=True)
        chosen = [value.gather(-1, best)[..., 0] for value in (evidence, noise[..., 0].log(), (distance + 1e-4).log())]
        features = torch.stack([*chosen, torch.logsumexp(evidence, dim=-1)], dim=-1)
        sure: Tensor = self.trust(0.2 * features.clamp(-30.0, 30.0).detach())[..., 0]
        return sure

    def tolerances(self, like: Tensor) -> Float[Tensor, "D"]:
        """How near is near enough, in every coordinate of a pose."""
        near = [self.settings.tolerance] * self.position
        return like.new_tensor(near + [math.radians(self.settings.tolerance_turn)] * self.has_heading)

    def right(self, miss: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether an error in pose is within what counts as recognised."""
        near = miss[..., : self.position].norm(dim=-1) <= self.settings.tolerance
        if not self.has_heading:
            return near
        return near & (apart(torch.zeros_like(miss), miss)[..., 2].abs() <= math.radians(self.settings.tolerance_turn))
