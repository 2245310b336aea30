"""What every motion offers. A motion itself says only what is physically new."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.kernels.scans.landmark_scan import Sights, Surprise, landmark_scan_by_steps
from gtmsm.kernels.scans.prefix import prefix_scan
from gtmsm.tensors import Belief, felt, gather


@config
class MotionConfig:
    """How the pose moves."""

    kind: Literal["free", "walled", "turning", "drifting", "gliding"] = "walled"
    """free: s + M a; walled: the displacement is gated by a network sigma_d (eq. nonlin_tr, section 4.1); turning: the
    agent has a heading, and moves along it (eq. lab_trans); drifting: and has momentum (section 4.2.2); gliding: and
    its momentum survives a turn, with a small network for what friction and acceleration do (not in the paper)."""
    state_size: int = 2
    """Dimensions of the pose s of free and walled motions (section 4.1); the others know theirs."""
    noise: float = 1e-3
    """r, the standard deviation of a transition (App. A.1)."""
    hidden: int = 64
    """ReLU units of sigma_d, the network that knows the walls, or of a gliding motion's network."""
    fence: float = 3.0
    """Distance from the start beyond which sigma_d is closed before it has learned anything. Walls that are too near
    are pushed out by what is seen; a world believed to be open is hard to close (docs/notebook.md). 0: no fence, for
    agents that notice by themselves when a step has failed: by true displacements, or by landmarks."""
    open_bias: float = 3.0
    """Logit of sigma_d inside that fence."""

    def __post_init__(self) -> None:
        """Refuse what no motion can be built from."""
        require(self.state_size >= 1, f"state_size is {self.state_size}; a pose needs at least 1 dimension")
        require(self.noise >= 0, f"noise is {self.noise}; a standard deviation cannot be negative")
        require(
            self.fence >= 0, f"fence is {self.fence}; give the walls some distance from the start, or 0 for no fence"
        )
        require(self.hidden >= 1, f"hidden is {self.hidden}; a network needs at least 1 unit")

    @property
    def has_heading(self) -> bool:
        """Whether the pose is (x, y, heading): actions then act in the agent's own frame."""
        return self.kind in ("turning", "drifting", "gliding")


@dataclass(frozen=True)
class Scout:
    """What prospecting searches with: a motion free of what only gradients can find."""

    motion: "Motion"
    names: Sequence[str]
    """Of its parameters to search for."""
    angles: bool = False
    """Whether they are angles per action: a score is then many-peaked in each of them alone, so every one is scanned
    over a full turn instead of drawn around the best so far."""
    spread: Sequence[float] | None = None
    """How far from 0 each of those parameters may be expected, where their scale means something; None: it is free, and
    so is the sign of all of them together."""


class Paths(NamedTuple):
    """Two walks by the same actions."""

    mean: Float[Tensor, "batch time S"]
    sample: Float[Tensor, "batch time S"]
    step: Float[Tensor, "batch time D"] | None = None
    """d_t of every step of the mean path, in the agent's own frame, where it is known for nothing."""


class Motion(nn.Module, ABC):
    """A transition density N(step(s, a), r^2 I), and the marginals it implies."""

    walls: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that know the walls: they learn at a rate of their own."""
    state_size: int
    """Dimensions of s."""
    noisy: int
    """How many of them, counted from the first, are the pose, which transitions add noise to; the rest are velocities,
    which follow from the actions alone."""

    def __init__(self, settings: MotionConfig) -> None:
        super().__init__()
        self.settings = settings
        self.noise = settings.noise

    @abstractmethod
    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """The mean of p(s_t | s_{t-1} = s, a_t = a)."""

    @abstractmethod
    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """Poses after every action, by ancestral sampling with the given noise (none: the mean path)."""

    @abstractmethod
    def scout(self) -> Scout:
        """A copy to prospect with."""

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Take over the parameters of the scout that a search has found."""
        for name, value in found.items():
            self.get_parameter(name).data.copy_(value)

    def unroll_twice(self, a: Float[Tensor, "batch time A"], noise: Float[Tensor, "batch time S"]) -> Paths:
        """The mean path and one sampled path from the start, side by side in one scan."""
        both = self.unroll(self.start(2 * len(a)), a.repeat(2, 1, 1), torch.cat([torch.zeros_like(noise), noise]))
        mean, sample = both.chunk(2)
        return Paths(mean, sample)

    def forward(
        self, start: Float[Tensor, "batch S"], a: Float[Tensor, "batch time A"]
    ) -> Float[Tensor, "batch time P"]:
        """The places of the mean path: what prospecting judges a motion by."""
        return self.place(self.unroll(start, a))

    def place(self, s: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch P"]:
        """The coordinates in which poses are near or far: Euclidean, whatever the pose is made of."""
        return s

    def relative(
        self, place: Float[Tensor, "*batch P"], query: Float[Tensor, "*#batch P"]
    ) -> Float[Tensor, "*batch P"]:
        """A place as it lies from `query`: what a prior needs to know of where a view was taken."""
        return place - query

    def relative_at(
        self,
        place: Float[Tensor, "batch n P"],
        query: Float[Tensor, "batch m P"],
        index: Int64[Tensor, "batch m K"],
    ) -> Float[Tensor, "batch m K P"]:
        """`relative` of those places that each query has found."""
        return self.relative(gather(place, index), query[:, :, None])

    def start(self, batch: int) -> Float[Tensor, "batch S"]:
        """s_0: where every walk begins, the origin."""
        parameter = next(self.parameters())
        return torch.zeros(batch, self.state_size, dtype=parameter.dtype, device=parameter.device)

    def draw_noise(self, a: Float[Tensor, "batch time A"], generator: torch.Generator) -> Float[Tensor, "batch time S"]:
        """epsilon_t ~ N(0, r^2 I), for every step of `a`."""
        drawn = a.new_empty(*a.shape[:2], self.noisy).normal_(0.0, self.noise, generator=generator)
        velocities = self.state_size - self.noisy
        return nn.functional.pad(drawn, (0, velocities)) if velocities else drawn

    def displacement(self, poses: Float[Tensor, "batch time S"]) -> Float[Tensor, "batch time D"]:
        """d_t of every step of a walk from the start: what the regression of section 4.2.2 compares with the truth."""
        return poses - torch.cat([self.start(len(poses))[:, None], poses[:, :-1]], dim=1)

    def regret(
        self,
        before: Float[Tensor, "batch time S"],
        a: Float[Tensor, "batch time A"],
        steps: Float[Tensor, "batch time D"],
    ) -> Float[Tensor, "batch time"]:
        """How far the planned steps from `before` were from those made, where some went otherwise (App. D).

        Distances, not their squares: the least of their sum is what most steps do, not a mean that none does.
        """
        planned = felt(before[..., : self.noisy], self.go(before, a)[..., : self.noisy])
        return ((planned - steps).square().sum(-1) + 1e-6).sqrt()

    def retrace(self, steps: Float[Tensor, "batch time D"]) -> Float[Tensor, "batch time D"]:
        """Poses after each of these steps, as they were felt, from the start on."""
        return steps.cumsum(1)

    def settle(self, s: Float[Tensor, "*batch S"], pose: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch S"]:
        """The state s, once its pose is known to be another."""
        return torch.cat([pose, s[..., self.noisy :]], dim=-1)

    def pose_at(self, place: Float[Tensor, "*batch P"]) -> Float[Tensor, "*batch D"]:
        """The pose of a place."""
        return place

    def filter(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        variance: Float[Tensor, "batch G"],
        sights: Sights,
        past: tuple[Float[Tensor, "batch n D"], Float[Tensor, "batch n G"]],
        surprise: Surprise,
        walls: bool = True,
    ) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time G"]]:
        """States after every action, each corrected by what was recognised there (App. D), and variances of poses.

        Without `walls` the plan does not know of any.
        """
        go = self.step if walls else self.go
        return landmark_scan_by_steps(lambda s, t: go(s, a[:, t]), self.settle, start, variance, sights, past, surprise)

    def among_walls(
        self,
        before: Float[Tensor, "batch time S"],
        a: Float[Tensor, "batch time A"],
        steps: Float[Tensor, "batch time D"],
        surprise: float,
    ) -> tuple[Float[Tensor, "batch S"], Float[Tensor, "batch G"]]:
        """How far to move a walk so that its steps fit the walls that are known, and the variance of that.

        A motion that knows no walls leaves it where it is: any place is as good as any other.
        """
        return torch.zeros_like(before[:, 0]), torch.zeros_like(before[:, 0, : 2 if self.settings.has_heading else 1])

    def go(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """Where a step leads if nothing is in the way."""
        return self.step(s, a)

    def believe(self, here: Belief, a: Float[Tensor, "batch time A"]) -> Belief:
        """p*(s_t) of eq. (marg_s) for every step: mean path, and covariance by linearising along it.

        `here` without a covariance is known exactly. Exact where the motion is linear. Covariances follow
        P_t = J_t P_{t-1} J_t' + r^2 I, whose steps compose associatively, so all of them come from one prefix scan.
        """
        mean = self.unroll(here.mean, a)
        before = torch.cat([here.mean[:, None], mean[:, :-1]], dim=1)
        jacobian = torch.func.vmap(torch.func.vmap(torch.func.jacrev(self.step)))(before, a)
        shaken = torch.arange(self.state_size, device=mean.device) < self.noisy
        fresh = torch.diag(self.noise**2 * shaken.to(mean.dtype))
        carry, added = prefix_scan(_then, [jacobian, fresh.expand_as(jacobian)])
        if here.covariance is None:
            return Belief(mean, added)
        return Belief(mean, carry @ here.covariance[:, None] @ carry.mT + added)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """P -> J2 (J1 P J1' + Q1) J2' + Q2, again of the form J P J' + Q."""
    (j1, q1), (j2, q2) = earlier, later
    return j2 @ j1, j2 @ q1 @ j2.mT + q2
