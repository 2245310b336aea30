"""Motions of an agent with a heading: its actions act in its own frame (sections 4.2, 4.2.1 and 4.2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.kernels.layers.small_map import small_map
from gtmsm.kernels.scans.compose import compose
from gtmsm.kernels.scans.drift_scan import drift_scan
from gtmsm.kernels.scans.glide_scan import GlideNetwork, glide_scan
from gtmsm.kernels.search.relative import relative, seen_from
from gtmsm.model.motion.base import Motion, MotionConfig, Paths, Scout
from gtmsm.tensors import as_place, felt, stepped

LEAP = 0.2
"""Units: a pose corrected by more than this was wrong for longer than one step, and that tells nothing of its speed."""


class Turning(Motion):
    """s_t = s_{t-1} + R(s_{t-1}^(3)) M a_t + noise, with s = (x, y, heading): eq. (lab_trans)."""

    state_size = 3
    noisy = 3

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        # M, its rows for moving and for turning apart: the one has a free scale, the other is in radians. An agent
        # stands still until it is shown otherwise.
        self.move = nn.Parameter(torch.zeros(2, action_size))
        self.turn = nn.Parameter(0.03 * torch.randn(action_size))

    @property
    def M(self) -> Float[Tensor, "3 A"]:
        """The paper's M."""
        return torch.cat([self.move, self.turn[None]])

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + R(s^(3)) M a."""
        return stepped(s, small_map(a, self.M))

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """Running sums: of turns, then of moves along the headings they lead to."""
        return compose(start, small_map(a, self.M), noise)

    def unroll_twice(self, a: Float[Tensor, "batch time A"], noise: Float[Tensor, "batch time S"]) -> Paths:
        """Both paths try the same steps."""
        start, d = self.start(len(a)), small_map(a, self.M)
        return Paths(compose(start, d, None), compose(start, d, noise), d)

    def displacement(self, poses: Float[Tensor, "batch time S"]) -> Float[Tensor, "batch time 3"]:
        """In the agent's own frame."""
        before = torch.cat([self.start(len(poses))[:, None], poses[:, :-1]], dim=1)
        return felt(before[..., :3], poses[..., :3])

    def retrace(self, steps: Float[Tensor, "batch time 3"]) -> Float[Tensor, "batch time 3"]:
        """Along the headings that they lead to."""
        return compose(self.start(len(steps))[:, :3], steps, None)

    def place(self, s: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch 4"]:
        """(x, y, cos, sin)."""
        return as_place(s[..., :3])

    def pose_at(self, place: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3"]:
        """x, y, heading."""
        return torch.cat([place[..., :2], torch.atan2(place[..., 3:], place[..., 2:3])], dim=-1)

    def relative(
        self, place: Float[Tensor, "*batch 4"], query: Float[Tensor, "*#batch 4"]
    ) -> Float[Tensor, "*batch 4"]:
        """Where it lies ahead and to the left of an agent at `query`, and cos and sin of how far it is turned."""
        return seen_from(place, query)

    def relative_at(
        self,
        place: Float[Tensor, "batch n 4"],
        query: Float[Tensor, "batch m 4"],
        index: Int64[Tensor, "batch m K"],
    ) -> Float[Tensor, "batch m K 4"]:
        """The same of those places that each query has found, all at once."""
        return relative(place, query, index)

    def scout(self) -> Scout:
        """Search for the turn of every action; how far it moves comes after."""
        scout = Turning(self.settings, len(self.turn)).to(self.turn)
        scout.move.data.copy_(self.move.detach())
        return Scout(scout, ("turn",), angles=True)


class _WithMomentum(Turning, ABC):
    """The state is (x, y, heading, momentum): where the agent goes depends on how it moves."""

    @abstractmethod
    def _carry(
        self, momentum: Float[Tensor, "batch V"], a: Float[Tensor, "batch time A"]
    ) -> tuple[Float[Tensor, "batch time 3"], Float[Tensor, "batch time V"]]:
        """Displacements in the agent's frame, and the momentum after each action."""

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """A scan for displacements, then running sums."""
        d, momentum = self._carry(start[:, 3:], a)
        shaken = None if noise is None else noise[..., :3]
        return torch.cat([compose(start[:, :3], d, shaken), momentum], dim=-1)

    def unroll_twice(self, a: Float[Tensor, "batch time A"], noise: Float[Tensor, "batch time S"]) -> Paths:
        """Noise moves the agent but not its momentum: one scan serves both paths."""
        start = self.start(len(a))
        d, momentum = self._carry(start[:, 3:], a)
        mean, sample = (compose(start[:, :3], d, shaken) for shaken in (None, noise[..., :3]))
        return Paths(torch.cat([mean, momentum], dim=-1), torch.cat([sample, momentum], dim=-1), d)

    def settle(self, s: Float[Tensor, "*batch S"], pose: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch S"]:
        """Whoever got less far than planned is slower, too, unless it is somewhere else altogether."""
        short = felt(s[..., :3], pose)[..., :2]
        believed = (-short.square().sum(-1, keepdim=True) / (2 * LEAP**2)).exp()
        slowed = s[..., 3:5] + believed * short
        return torch.cat([pose, slowed, s[..., 5:]], dim=-1)

    def scout(self) -> Scout:
        """Search for what every action does, as if there were no momentum.

        An agent that walks turns by some tenths of a radian and moves by some tenths of a unit a step: with headings
        in the distance, neither scale is free.
        """
        actions = len(self.turn)
        scout = Turning(self.settings, actions).to(self.turn)
        return Scout(scout, ("turn", "move"), spread=(0.2,) * actions + (0.1,) * 2 * actions)


class Drifting(_WithMomentum):
    """Momentum, friction and saturation in the agent's frame: section 4.2.2.

    Momentum is the displacement d itself, damped in units of its own limit c_s (docs/deviations.md says why).
    """

    state_size = 6

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        self.move.data.normal_(std=0.3)
        self.turn.data.normal_(std=0.3)
        self.friction = nn.Parameter(torch.zeros(3))
        self.log_limit = nn.Parameter(torch.full((3,), -1.8))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + R(s^(3)) d, with d = c_s tanh(sigma(c_f) d_before / c_s + M a)."""
        limit = self.log_limit.exp()
        d = limit * torch.tanh(torch.sigmoid(self.friction) * s[..., 3:] / limit + small_map(a, self.M))
        return torch.cat([stepped(s[..., :3], d), d], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """What the scout does at once, here passes a tanh, which must leave room for the fastest, and adds up."""
        steps = torch.cat([found["move"], found["turn"][None]])
        limit = 2 * steps.abs().amax(1).clamp_min(1e-3)
        push = torch.atanh(steps / limit[:, None]) * (1 - torch.sigmoid(self.friction.detach()))[:, None]
        self.log_limit.data.copy_(limit.log())
        self.move.data.copy_(push[:2])
        self.turn.data.copy_(push[2])

    def _carry(
        self, momentum: Float[Tensor, "batch V"], a: Float[Tensor, "batch time A"]
    ) -> tuple[Float[Tensor, "batch time 3"], Float[Tensor, "batch time V"]]:
        """The drift scan."""
        limit = self.log_limit.exp()
        d = limit * drift_scan(momentum / limit, small_map(a, self.M), torch.sigmoid(self.friction))
        return d, d


class Gliding(_WithMomentum):
    """Momentum as engines have it: it survives a turn, and what friction and keys do to it is a small network.

    Momentum is the velocity as the agent feels it, ahead and to its left. Not in the paper, whose momentum turns with
    the agent: see docs/deviations.md.
    """

    state_size = 5

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        hidden = settings.hidden
        self.move.data.normal_(std=0.03)
        self.keep = nn.Parameter(torch.ones(2))
        self.W_v = nn.Parameter(5.0 * torch.randn(hidden, 2))
        self.W_a = nn.Parameter(0.5 * torch.randn(hidden, action_size))
        self.b = nn.Parameter(0.5 * torch.randn(hidden))
        self.V = nn.Parameter(torch.zeros(4, hidden))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + R(s^(3)) d(v, a); v is what is left of the velocity after the step, seen from the new heading."""
        u, turn = small_map(a, self.move), small_map(a, self.turn[None])[..., 0]
        d, v = self._network().step(s[..., 3:], u, turn.cos(), turn.sin(), a @ self.W_a.T + self.b)
        return torch.cat([stepped(s[..., :3], torch.cat([d, turn[..., None]], dim=-1)), v], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """What the scout moves at once, here adds up over several steps."""
        self.turn.data.copy_(found["turn"])
        self.move.data.copy_(found["move"] * (1 - torch.sigmoid(self.keep.detach()))[:, None])

    def _network(self) -> GlideNetwork:
        # Small corrections in large numbers: a step of the optimiser must not make the motion run away.
        return GlideNetwork(torch.sigmoid(self.keep), self.W_v, 0.1 * self.V)

    def _carry(
        self, momentum: Float[Tensor, "batch V"], a: Float[Tensor, "batch time A"]
    ) -> tuple[Float[Tensor, "batch time 3"], Float[Tensor, "batch time V"]]:
        """The glide scan."""
        turn = small_map(a, self.turn[None])[..., 0]
        pre = a @ self.W_a.T + self.b
        d, v = glide_scan(momentum, small_map(a, self.move), turn.cos(), turn.sin(), pre, self._network())
        return torch.cat([d, turn[..., None]], dim=-1), v
