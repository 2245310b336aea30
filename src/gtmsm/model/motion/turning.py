"""Motions of an agent with a heading: its actions act in its own frame (sections 4.2, 4.2.1 and 4.2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.scans.glide_scan import GlideNetwork, glide_steps, glide_walk
from gtmsm.model.motion.base import Motion, MotionConfig, Paths, Scout
from gtmsm.pose import PlaneWithHeading, XYTurnPath
from gtmsm.tensors import Actions, State, States, applied

Carried: TypeAlias = tuple[Float[Tensor, "batch time 3"], Float[Tensor, "batch time V"]]
"""Displacements in the agent's frame, and the momentum after each action."""

SPIN_UNITS = 16
"""Hidden units of the network for turns with momentum."""


class Turning(Motion):
    """s_t = s_{t-1} + R(s_{t-1}^(3)) M a_t + noise, with s = (x, y, heading): eq. (lab_trans)."""

    state_size = 3
    space = PlaneWithHeading()

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        # M in two parameters: the scale of moves is free, turns are in radians. Initially an agent does not move.
        self.move = nn.Parameter(torch.zeros(2, action_size))
        self.turn = nn.Parameter(0.03 * torch.randn(action_size))

    @property
    def M(self) -> Float[Tensor, "3 A"]:  # type: ignore[override]
        """The paper's M."""
        return torch.cat([self.move, self.turn[None]])

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """Both paths, from the same displacements."""
        d = applied(self.M, a)
        mean, sample = self._two_paths(d, noise)
        return Paths(mean, sample, d)

    def _two_paths(self, d: XYTurnPath, noise: XYTurnPath) -> Float[Tensor, "2 batch time 3"]:
        """Poses from the start on, without noise and with it, by the same operations."""
        return self.space.path(self.start(len(d))[:, :3], d, torch.stack([torch.zeros_like(noise), noise]))

    def scout(self) -> Scout:
        """Search for the turn of each action; moves are learned later."""
        scout = Turning(self.settings, len(self.turn)).to(self.turn)
        scout.move.data.copy_(self.move.detach())
        return Scout(scout, ("turn",), angles=True)


class _WithMomentum(Turning, ABC):
    """Motions whose state is (x, y, heading, momentum)."""

    @abstractmethod
    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """Displacements in the agent's frame, and the momentum after each action."""

    def unroll(self, start: State, a: Actions, noise: States | None = None) -> States:
        """A scan for displacements, then running sums."""
        d, momentum = self._carry(start[:, 3:], a)
        poses = self.space.path(start[:, :3], d, None if noise is None else noise[..., :3])
        return torch.cat([poses, momentum], dim=-1)

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """Noise moves the agent but not its momentum: one scan serves both paths."""
        d, momentum = self._carry(self.start(len(a))[:, 3:], a)
        mean, sample = torch.cat([self._two_paths(d, noise[..., :3]), momentum.expand(2, *momentum.shape)], dim=-1)
        return Paths(mean, sample, d)

    def settle(self, s: Float[Tensor, "*batch S"], pose: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch S"]:
        """An agent that moved less far than planned is also slowed, unless the correction is larger than one step."""
        short = self.space.displacement(s[..., :3], pose)[..., :2]
        believed = (-short.square().sum(-1, keepdim=True) / (2 * 0.2**2)).exp()
        slowed = s[..., 3:5] + believed * short
        return torch.cat([pose, slowed, s[..., 5:]], dim=-1)

    def scout(self) -> Scout:
        """Search for the move and turn of each action, without momentum.

        Distances between places mix positions and headings, so neither scale is free: agents turn by some tenths of a
        radian and move by some tenths of a unit per step.
        """
        actions = len(self.turn)
        scout = Turning(self.settings, actions).to(self.turn)
        return Scout(scout, ("turn", "move"), spread=(0.2,) * actions + (0.1,) * 2 * actions)


class Drifting(_WithMomentum):
    """Momentum, friction and saturation in the agent's frame: section 4.2.2.

    Momentum is the displacement d itself, damped in units of its own limit c_s (docs/deviations.md says why), or, with
    `literal`, as the paper writes it.
    """

    state_size = 6

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        self.move.data.normal_(std=0.3)
        self.turn.data.normal_(std=0.3)
        self.friction = nn.Parameter(torch.zeros(3))
        self.log_limit = nn.Parameter(torch.full((3,), -1.8))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + R(s^(3)) d, with d = c_s tanh(sigma(c_f) d_before / c_s + M a); literal: sigma(c_f) d_before."""
        limit = self.log_limit.exp()
        d = limit * torch.tanh(self._kept * s[..., 3:] / limit + applied(self.M, a))
        return torch.cat([self.space.step(s[..., :3], d), d], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Invert the tanh for a limit of twice the largest step, and divide by the factor that momentum adds."""
        steps = torch.cat([found["move"], found["turn"][None]])
        limit = 2 * steps.abs().amax(1).clamp_min(1e-3)
        self.log_limit.data.copy_(limit.log())
        push = torch.atanh(steps / limit[:, None]) * (1 - self._kept.detach())[:, None]
        self.move.data.copy_(push[:2])
        self.turn.data.copy_(push[2])

    @property
    def _kept(self) -> Float[Tensor, "3"]:
        """The fraction of d / c_s that is kept from one step to the next, before the tanh."""
        keep = torch.sigmoid(self.friction)
        return keep * self.log_limit.exp() if self.settings.literal else keep

    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """v_t = tanh(kept v_{t-1} + M a_t) with v = d / c_s.

        A loop over time: the tanh makes the recurrence nonlinear, so that no prefix scan computes it. It has no kernel,
        since no preset uses this motion.
        """
        limit, keep, push = self.log_limit.exp(), self._kept, applied(self.M, a)
        v, velocities = momentum / limit, []
        for u in push.unbind(1):
            v = torch.tanh(torch.addcmul(u, keep, v))
            velocities.append(v)
        d = limit * torch.stack(velocities, dim=1) if velocities else torch.zeros_like(push)
        return d, d


class Gliding(_WithMomentum):
    """Momentum in the world's frame, as in game engines, with a small network for friction and acceleration.

    The state holds it as the velocity in the agent's frame, ahead and to its left. Not in the paper, where momentum
    turns with the agent: see docs/deviations.md.
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
        """s + R(s^(3)) d(v, a); v becomes the velocity after the step, in the frame of the new heading."""
        u, turn = applied(self.move, a), (a * self.turn).sum(-1)
        d, v = self._network().step(s[..., 3:], u, turn.cos(), turn.sin(), a @ self.W_a.T + self.b)
        return torch.cat([self.space.step(s[..., :3], torch.cat([d, turn[..., None]], dim=-1)), v], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Divide moves by the factor that momentum adds; take over `keep` if the search found it as well."""
        self.turn.data.copy_(found["turn"])
        if "keep" in found:
            self.keep.data.copy_(found["keep"].logit(0.02))
        self.move.data.copy_(found["move"] * (1 - torch.sigmoid(self.keep.detach()))[:, None])

    def _network(self) -> GlideNetwork:
        # Weights are scaled down, so that one step of the optimiser changes the motion little.
        return GlideNetwork(torch.sigmoid(self.keep), self.W_v, 0.1 * self.V)

    def unroll(self, start: State, a: Actions, noise: States | None = None) -> States:
        """One operator if there is no noise."""
        if noise is not None:
            return super().unroll(start, a, noise)
        return glide_walk(start, a, self.move, self.turn, self.W_a, self.b, *self._network())

    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """The glide scan."""
        turn, u = (a * self.turn).sum(-1), applied(self.move, a)
        d, v = glide_steps(momentum, u, turn.cos(), turn.sin(), a @ self.W_a.T + self.b, *self._network())
        return torch.cat([d, turn[..., None]], dim=-1), v


class Rolling(Gliding):
    """Gliding with momentum of turns as well: a body with inertia, as in MuJoCo.

    The state ends with an angular velocity. From it and the action, a second small network predicts the turn of a step
    and the angular velocity after it; the rest is as in `Gliding`.
    """

    state_size = 6

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        self.spin_keep = nn.Parameter(torch.full((2,), -2.0))
        self.spin_W = nn.Parameter(5.0 * torch.randn(SPIN_UNITS, 1 + action_size))
        self.spin_W.data[:, 1:] *= 0.1
        self.spin_b = nn.Parameter(0.5 * torch.randn(SPIN_UNITS))
        self.spin_V = nn.Parameter(torch.zeros(2, SPIN_UNITS))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """As `Gliding.step`, with the turn of `_spin`."""
        turn, spin = self._spin(s[..., 5], (a * self.turn).sum(-1), self._spin_input(a))
        d, v = self._network().step(s[..., 3:5], applied(self.move, a), turn.cos(), turn.sin(), a @ self.W_a.T + self.b)
        pose = self.space.step(s[..., :3], torch.cat([d, turn[..., None]], dim=-1))
        return torch.cat([pose, v, spin[..., None]], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """As `Gliding.adopt`; turns are also divided by the factor that momentum adds while an action is held."""
        super().adopt(found)
        now, later = torch.sigmoid(self.spin_keep.detach())
        self.turn.data.div_(1 + now / (1 - later))

    unroll = _WithMomentum.unroll

    def _spin_input(self, a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch H"]:
        return a @ self.spin_W[:, 1:].T + self.spin_b

    def _spin(
        self, spin: Float[Tensor, "*batch"], push: Float[Tensor, "*batch"], pre: Float[Tensor, "*batch H"]
    ) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """The turn of a step, and the angular velocity after it: linear, plus one layer of ReLUs."""
        hidden = torch.relu(torch.addcmul(pre, spin[..., None], self.spin_W[:, 0]))
        turn, left = (hidden @ (0.1 * self.spin_V).T + spin[..., None] * torch.sigmoid(self.spin_keep)).unbind(-1)
        return turn + push, left + push

    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """Turns step by step, then the glide scan.

        A loop over time: the angular velocity passes a layer of ReLUs at each step, so that no prefix scan computes it,
        and the turn of a step must be known before the glide scan can rotate the velocity by it. `glide_steps` has one
        friction for displacement and velocity, where turns have two.
        """
        push, pre, spin = (a * self.turn).sum(-1), self._spin_input(a), momentum[:, 2]
        turns, spins = [push[:, :0]], [push[:, :0]]
        for t in range(a.shape[1]):
            turn, spin = self._spin(spin, push[:, t], pre[:, t])
            turns.append(turn[:, None])
            spins.append(spin[:, None])
        turn = torch.cat(turns, 1)
        velocity, u = momentum[:, :2].contiguous(), applied(self.move, a)
        d, v = glide_steps(velocity, u, turn.cos(), turn.sin(), a @ self.W_a.T + self.b, *self._network())
        return torch.cat([d, turn[..., None]], dim=-1), torch.cat([v, torch.cat(spins, 1)[..., None]], dim=-1)
