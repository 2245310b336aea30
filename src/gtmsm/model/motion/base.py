"""What every motion offers. A motion itself defines only its transition."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.model.landmark_filter import Past, Sights, Surprise, Track, filter_by_steps
from gtmsm.model.slips import Slips
from gtmsm.pose import Space
from gtmsm.tensors import Actions, Belief, PerStep, Place, Pose, Poses, State, States, Variance, applied, prefix_scan


@config
class MotionConfig:
    """How the pose moves."""

    kind: Literal["free", "walled", "turning", "drifting", "gliding", "rolling"] = "walled"
    """free: s + M a; walled: the displacement is gated by a network sigma_d (eq. nonlin_tr, section 4.1); turning: the
    agent has a heading, and moves along it (eq. lab_trans); drifting: and has momentum (section 4.2.2); gliding:
    momentum in the world's frame, with a small network for friction and acceleration (not in the paper); rolling: and
    turns have momentum, too (neither)."""
    state_size: int = 2
    """Dimensions of the pose s of free and walled motions (section 4.1); the others have their own."""
    noise: float = 1e-3
    """r, the standard deviation of a transition (App. A.1)."""
    hidden: int = 64
    """ReLU units of sigma_d, the network of the walls, or of the network of a gliding or rolling motion."""
    fence: float = 3.0
    """Distance from the start beyond which sigma_d is closed before it has learned anything. Walls that are too near
    are moved out by gradients; an open world is hard to close (docs/notebook.md). 0: no fence, for agents that learn
    which steps failed from true displacements or from landmarks."""
    open_bias: float = 3.0
    """Logit of sigma_d inside that fence."""
    literal: bool = False
    """drifting only: friction as section 4.2.2 writes it, on d itself, so that it depends on the unit of length."""

    def __post_init__(self) -> None:
        """Refuse what no motion can be built from."""
        require(self.state_size >= 1, f"state_size is {self.state_size}; a pose needs at least 1 dimension")
        require(self.noise >= 0, f"noise is {self.noise}; a standard deviation cannot be negative")
        require(
            self.fence >= 0, f"fence is {self.fence}; give the walls some distance from the start, or 0 for no fence"
        )
        require(self.hidden >= 1, f"hidden is {self.hidden}; a network needs at least 1 unit")
        require(not self.literal or self.kind == "drifting", f"literal is for drifting motions; kind is {self.kind}")

    @property
    def has_heading(self) -> bool:
        """Whether the pose is (x, y, heading): actions then act in the agent's own frame."""
        return self.kind in ("turning", "drifting", "gliding", "rolling")


@dataclass(frozen=True)
class Scout:
    """What prospecting searches with: a motion without the parameters that only gradients can find."""

    motion: "Motion"
    names: Sequence[str]
    """Names of its parameters to search for."""
    angles: bool = False
    """Whether they are angles per action: a score then has many peaks in each of them alone, so each is scanned over a
    full turn instead of drawn around the best so far."""
    spread: Sequence[float] | None = None
    """Standard deviation of each of those parameters before the search, where their scale has a meaning; None: scale
    and sign are free."""


class Paths(NamedTuple):
    """The mean path and a sampled path by the same actions."""

    mean: States
    sample: States
    step: Poses | None = None
    """d_t of every step of the mean path in the agent's own frame, where the motion has computed it already."""


class Motion(nn.Module, ABC):
    """A transition density N(step(s, a), r^2 I), and the marginals it implies."""

    walls: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters of the walls: they have their own learning rate."""
    state_size: int
    """Dimensions of s: those of the pose first, then velocities, which have no noise of their own."""
    space: Space
    """What poses lie in."""
    M: Tensor
    """The displacement of each action, in the agent's own frame where it has a heading."""

    def __init__(self, settings: MotionConfig) -> None:
        super().__init__()
        self.settings = settings
        self.noise = settings.noise

    @property
    def pose_size(self) -> int:
        """Dimensions of the pose, to which transitions add noise."""
        return self.space.size

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """The mean of p(s_t | s_{t-1} = s, a_t = a): the pose after the displacement M a."""
        return self.space.step(s, applied(self.M, a))

    def unroll(self, start: State, a: Actions, noise: States | None = None) -> States:
        """Poses after every action, by ancestral sampling with the given noise (none: the mean path)."""
        return self.space.path(start, applied(self.M, a), noise)

    def unroll_openly(self, start: State, a: Actions) -> States:
        """The mean path of `unroll`, without walls."""
        return self.unroll(start, a)

    @abstractmethod
    def scout(self) -> Scout:
        """A copy to prospect with."""

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Take over the parameters of the scout that a search has found."""
        for name, value in found.items():
            self.get_parameter(name).data.copy_(value)

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """The mean path and one sampled path from the start, side by side in one scan."""
        both = self.unroll(self.start(2 * len(a)), a.repeat(2, 1, 1), torch.cat([torch.zeros_like(noise), noise]))
        mean, sample = both.chunk(2)
        return Paths(mean, sample)

    def forward(self, start: State, a: Actions) -> Float[Tensor, "batch time P"]:
        """The places of the mean path: what prospecting judges a motion by."""
        return self.place(self.unroll(start, a))

    def place(self, s: Float[Tensor, "*batch S"]) -> Place:
        """Coordinates in which Euclidean distance tells how near two states are."""
        return self.space.place(s[..., : self.pose_size])

    def pose_at(self, place: Place) -> Pose:
        """The pose of a place."""
        return self.space.pose_at(place)

    def relative(self, place: Place, query: Place) -> Place:
        """A place in the frame of `query`: what a prior knows of where a view was taken."""
        return self.space.relative(place, query)

    def start(self, batch: int) -> State:
        """s_0: where every walk begins, the origin."""
        # Its own first, which are found in a fraction of the time: an explorer asks this twenty times a step.
        parameter = next((x for x in self._parameters.values() if x is not None), None)
        parameter = next(self.parameters()) if parameter is None else parameter
        return torch.zeros(batch, self.state_size, dtype=parameter.dtype, device=parameter.device)

    def draw_noise(self, a: Actions, generator: torch.Generator) -> States:
        """epsilon_t ~ N(0, r^2 I), for every step of `a`."""
        drawn = a.new_empty(*a.shape[:2], self.pose_size).normal_(0.0, self.noise, generator=generator)
        velocities = self.state_size - self.pose_size
        return nn.functional.pad(drawn, (0, velocities)) if velocities else drawn

    def displacement(self, poses: States) -> Poses:
        """d_t of every step of a walk from the start: what the regression of section 4.2.2 compares with the truth."""
        size = self.pose_size
        before = torch.cat([self.start(len(poses))[:, None], poses[:, :-1]], dim=1)
        return self.space.displacement(before[..., :size], poses[..., :size])

    def regret(self, before: States, a: Actions, steps: Poses) -> PerStep:
        """Distance between the planned steps from `before` and the steps made, some of which failed (App. D).

        Not squared: the minimum of a sum of distances is what most steps do, not a mean that no step does.
        """
        size = self.pose_size
        planned = self.space.displacement(before[..., :size], self.go(before, a)[..., :size])
        return ((planned - steps).square().sum(-1) + 1e-6).sqrt()

    def retrace(self, steps: Poses) -> Poses:
        """Poses after each of these displacements in the agent's own frame, from the start on."""
        return self.space.path(self.start(len(steps))[:, : self.pose_size], steps)

    def settle(self, s: Float[Tensor, "*batch S"], pose: Pose) -> Float[Tensor, "*batch S"]:
        """The state s with its pose corrected."""
        return torch.cat([pose, s[..., self.pose_size :]], dim=-1)

    def filter(
        self,
        start: State,
        a: Actions,
        variance: Variance,
        sights: Sights,
        past: Past,
        surprise: Surprise,
        walls: bool,
        slips: Slips | None = None,
    ) -> Track:
        """States and variances after every action, corrected by what was recognised (App. D), with or without walls."""
        go = self.step if walls else self.go
        return filter_by_steps(
            self.space, lambda s, t: go(s, a[:, t]), self.settle, start, variance, sights, past, surprise, slips
        )

    def among_walls(self, before: States, a: Actions, steps: Poses, surprise: float) -> tuple[State, Variance]:
        """The shift of a walk at which its steps fit the walls best, and its variance: 0 for a motion without walls."""
        return torch.zeros_like(before[:, 0]), torch.zeros_like(before[:, 0, : len(self.space.groups)])

    def is_open(self, pose: Float[Tensor, "*batch S"]) -> Bool[Tensor, "*batch"]:
        """Whether steps lead there as far as walls are known: everywhere for a motion without walls."""
        return torch.ones_like(pose[..., 0], dtype=torch.bool)

    def go(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """`step` without walls."""
        return self.step(s, a)

    def believe(self, here: Belief, a: Actions) -> Belief:
        """p*(s_t) of eq. (marg_s) for every step: mean path, and covariance by linearising along it.

        `here` without a covariance is known exactly. P_t = J_t P_{t-1} J_t' + r^2 I by one prefix scan.
        """
        mean = self.unroll(here.mean, a)
        before = torch.cat([here.mean[:, None], mean[:, :-1]], dim=1)
        jacobian = torch.func.vmap(torch.func.vmap(torch.func.jacrev(self.step)))(before, a)
        is_pose = torch.arange(self.state_size, device=mean.device) < self.pose_size
        fresh = torch.diag(self.noise**2 * is_pose.to(mean.dtype))
        carry, added = prefix_scan(_then, [jacobian, fresh.expand_as(jacobian)])
        if here.covariance is None:
            return Belief(mean, added)
        return Belief(mean, carry @ here.covariance[:, None] @ carry.mT + added)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """P -> J2 (J1 P J1' + Q1) J2' + Q2, again of the form J P J' + Q."""
    (j1, q1), (j2, q2) = earlier, later
    return j2 @ j1, j2 @ q1 @ j2.mT + q2
