"""The interface that all motions share; a motion itself defines only its transition."""

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
    """free: s + M a; walled: a network sigma_d gates the displacement (eq. nonlin_tr, section 4.1); turning: the agent
    has a heading and moves along it (eq. lab_trans); drifting: turning with momentum (section 4.2.2); gliding: momentum
    in the world's frame, with a small network for friction and acceleration (not in the paper); rolling: gliding with
    momentum of turns (not in the paper)."""
    state_size: int = 2
    """Dimensions of the pose s of free and walled motions (section 4.1); fixed for the others."""
    noise: float = 1e-3
    """r, the standard deviation of a transition (App. A.1)."""
    hidden: int = 64
    """ReLU units of sigma_d, or of the network of a gliding or rolling motion."""
    fence: float = 3.0
    """Distance from the start beyond which sigma_d is initially closed. Gradients move out walls that are too near, but
    hardly close an open world (docs/notebook.md). 0: no fence, for agents that learn which steps failed from true
    displacements or from landmarks."""
    open_bias: float = 3.0
    """Initial logit of sigma_d inside the fence."""
    literal: bool = False
    """drifting only: friction on d itself, as section 4.2.2 writes it, so that it depends on the unit of length."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
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
    """The motion that prospecting searches with: it lacks the parameters that only gradients can find."""

    motion: "Motion"
    names: Sequence[str]
    """Names of the parameters to search for."""
    angles: bool = False
    """Whether these are angles, one per action. The score has many peaks along each of them, so each is scanned over a
    full turn instead of drawn around the best value so far."""
    spread: Sequence[float] | None = None
    """Standard deviation of each parameter before the search, if their scale is known; None: scale and sign are
    free."""


class Paths(NamedTuple):
    """The mean path and a sampled path of the same actions."""

    mean: States
    sample: States
    step: Poses | None = None
    """d_t of each step of the mean path in the agent's own frame, if the motion has computed it already."""


class Motion(nn.Module, ABC):
    """A transition density N(step(s, a), r^2 I), and the marginals it implies."""

    walls: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters of the walls, which have their own learning rate."""
    state_size: int
    """Dimensions of s: the pose first, then velocities, which have no noise of their own."""
    space: Space
    """The space of poses."""
    M: Tensor
    """The displacement of each action, in the agent's own frame if it has a heading."""

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
        """States after each action, by ancestral sampling with the given noise (None: the mean path)."""
        return self.space.path(start, applied(self.M, a), noise)

    def unroll_openly(self, start: State, a: Actions) -> States:
        """The mean path of `unroll`, without walls."""
        return self.unroll(start, a)

    @abstractmethod
    def scout(self) -> Scout:
        """A copy for prospecting."""

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Copy the parameters that a search has found with the scout."""
        for name, value in found.items():
            self.get_parameter(name).data.copy_(value)

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """The mean path and one sampled path from the start, computed in one scan."""
        both = self.unroll(self.start(2 * len(a)), a.repeat(2, 1, 1), torch.cat([torch.zeros_like(noise), noise]))
        mean, sample = both.chunk(2)
        return Paths(mean, sample)

    def forward(self, start: State, a: Actions) -> Float[Tensor, "batch time P"]:
        """The places of the mean path, by which prospecting scores a motion."""
        return self.place(self.unroll(start, a))

    def place(self, s: Float[Tensor, "*batch S"]) -> Place:
        """Coordinates whose Euclidean distance measures how near two states are."""
        return self.space.place(s[..., : self.pose_size])

    def pose_at(self, place: Place) -> Pose:
        """The pose of a place."""
        return self.space.pose_at(place)

    def relative(self, place: Place, query: Place) -> Place:
        """`place` in the frame of `query`: the form in which priors are given the places of entries."""
        return self.space.relative(place, query)

    def start(self, batch: int) -> State:
        """s_0, where every walk begins: the origin."""
        # Its own parameters first, found in a fraction of the time: an explorer calls this twenty times per step.
        parameter = next((x for x in self._parameters.values() if x is not None), None)
        parameter = next(self.parameters()) if parameter is None else parameter
        return torch.zeros(batch, self.state_size, dtype=parameter.dtype, device=parameter.device)

    def draw_noise(self, a: Actions, generator: torch.Generator) -> States:
        """epsilon_t ~ N(0, r^2 I), for each step of `a`."""
        drawn = a.new_empty(*a.shape[:2], self.pose_size).normal_(0.0, self.noise, generator=generator)
        velocities = self.state_size - self.pose_size
        return nn.functional.pad(drawn, (0, velocities)) if velocities else drawn

    def displacement(self, poses: States) -> Poses:
        """d_t of each step of a walk from the start, which the regression of section 4.2.2 compares with the truth."""
        size = self.pose_size
        before = torch.cat([self.start(len(poses))[:, None], poses[:, :-1]], dim=1)
        return self.space.displacement(before[..., :size], poses[..., :size])

    def regret(self, before: States, a: Actions, steps: Poses) -> PerStep:
        """Distance between the planned steps from `before` and the actual `steps`, some of which failed (App. D).

        Not squared: a sum of distances is minimal at what most steps do, a sum of squares at a mean that no step does.
        """
        size = self.pose_size
        planned = self.space.displacement(before[..., :size], self.go(before, a)[..., :size])
        return ((planned - steps).square().sum(-1) + 1e-6).sqrt()

    def retrace(self, steps: Poses) -> Poses:
        """Poses from the start on, after each of these displacements in the agent's own frame."""
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
        """States and variances after each action, corrected by recognised entries (App. D), with or without walls."""
        go = self.step if walls else self.go
        return filter_by_steps(
            self.space, lambda s, t: go(s, a[:, t]), self.settle, start, variance, sights, past, surprise, slips
        )

    def among_walls(self, before: States, a: Actions, steps: Poses, surprise: float) -> tuple[State, Variance]:
        """The shift of a walk at which its steps fit the walls best, and its variance; 0 for a motion without walls."""
        return torch.zeros_like(before[:, 0]), torch.zeros_like(before[:, 0, : len(self.space.groups)])

    def is_open(self, pose: Float[Tensor, "*batch S"]) -> Bool[Tensor, "*batch"]:
        """Whether steps can lead to `pose` according to the learned walls; True for a motion without walls."""
        return torch.ones_like(pose[..., 0], dtype=torch.bool)

    def go(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """`step` without walls."""
        return self.step(s, a)

    def believe(self, here: Belief, a: Actions) -> Belief:
        """p*(s_t) of eq. (marg_s) for each step: the mean path, and covariances by linearising along it.

        Without a covariance, `here` is known exactly. P_t = J_t P_{t-1} J_t' + r^2 I by one prefix scan.
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
