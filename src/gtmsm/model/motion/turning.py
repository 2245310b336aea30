"""Motions of an agent with a heading: its actions act in its own frame (sections 4.2, 4.2.1 and 4.2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.scans.glide_scan import GlideNetwork, glide_steps
from gtmsm.model.motion.base import Motion, MotionConfig, Paths, Scout
from gtmsm.pose import PlaneWithHeading, XYTurnPath
from gtmsm.tensors import Actions, State, States, applied, have_values

Carried: TypeAlias = tuple[Float[Tensor, "batch time 3"], Float[Tensor, "batch time V"]]
"""Displacements in the agent's frame, and the momentum after each action."""

SHARED = 1 << 15
"""Numbers up to which PyTorch leaves a pass over them to one thread."""


class Turning(Motion):
    """s_t = s_{t-1} + R(s_{t-1}^(3)) M a_t + noise, with s = (x, y, heading): eq. (lab_trans)."""

    state_size = 3
    space = PlaneWithHeading()

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        # M in two parameters: the scale of moves is free, turns are in radians. At first an agent does not move.
        self.move = nn.Parameter(torch.zeros(2, action_size))
        self.turn = nn.Parameter(0.03 * torch.randn(action_size))

    @property
    def M(self) -> Float[Tensor, "3 A"]:  # type: ignore[override]
        """The paper's M."""
        return torch.cat([self.move, self.turn[None]])

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """Both paths have the same displacements."""
        d = applied(self.M, a)
        mean, sample = self._two_paths(d, noise)
        return Paths(mean, sample, d)

    def _two_paths(self, d: XYTurnPath, noise: XYTurnPath) -> Float[Tensor, "2 batch time 3"]:
        """Poses without noise and with it, from the start on, by the same operations."""
        return self.space.path(self.start(len(d))[:, :3], d, torch.stack([torch.zeros_like(noise), noise]))

    def scout(self) -> Scout:
        """Search for the turn of every action; moves are learned later."""
        scout = Turning(self.settings, len(self.turn)).to(self.turn)
        scout.move.data.copy_(self.move.detach())
        return Scout(scout, ("turn",), angles=True)


class _WithMomentum(Turning, ABC):
    """The state is (x, y, heading, momentum)."""

    @abstractmethod
    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """Displacements in the agent's frame, and the momentum after each action."""

    def unroll(self, start: State, a: Actions, noise: States | None = None) -> States:
        """A scan for displacements, then running sums."""
        d, momentum = self._carry(start[:, 3:], a)
        poses = self.space.path(start[:, :3], d, None if noise is None else noise[..., :3])
        if momentum.requires_grad or momentum.is_contiguous():
            return torch.cat([poses, momentum], dim=-1)
        # Numbers of a kind stay side by side.
        return torch.cat([poses.permute(2, 1, 0), momentum.permute(2, 1, 0)]).permute(2, 1, 0)

    def unroll_twice(self, a: Actions, noise: States) -> Paths:
        """Noise moves the agent but not its momentum: one scan serves both paths."""
        d, momentum = self._carry(self.start(len(a))[:, 3:], a)
        mean, sample = torch.cat([self._two_paths(d, noise[..., :3]), momentum.expand(2, *momentum.shape)], dim=-1)
        return Paths(mean, sample, d)

    def settle(self, s: Float[Tensor, "*batch S"], pose: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch S"]:
        """An agent that got less far than planned is also slower, unless the correction is larger than one step."""
        short = self.space.displacement(s[..., :3], pose)[..., :2]
        believed = (-short.square().sum(-1, keepdim=True) / (2 * 0.2**2)).exp()
        slowed = s[..., 3:5] + believed * short
        return torch.cat([pose, slowed, s[..., 5:]], dim=-1)

    def scout(self) -> Scout:
        """Search for the move and turn of every action, without momentum.

        Distances between places mix positions and headings, so neither scale is free: agents turn by some tenths of a
        radian and move by some tenths of a unit a step.
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
        d = limit * torch.tanh(torch.sigmoid(self.friction) * s[..., 3:] / limit + applied(self.M, a))
        return torch.cat([self.space.step(s[..., :3], d), d], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Invert the tanh, with a limit of twice the largest step, and divide by how much momentum accumulates."""
        steps = torch.cat([found["move"], found["turn"][None]])
        limit = 2 * steps.abs().amax(1).clamp_min(1e-3)
        push = torch.atanh(steps / limit[:, None]) * (1 - torch.sigmoid(self.friction.detach()))[:, None]
        self.log_limit.data.copy_(limit.log())
        self.move.data.copy_(push[:2])
        self.turn.data.copy_(push[2])

    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """v_t = tanh(sigma(c_f) v_{t-1} + M a_t) with v = d / c_s, step by step."""
        limit, keep, push = self.log_limit.exp(), torch.sigmoid(self.friction), applied(self.M, a)
        v, velocities = momentum / limit, []
        for u in push.unbind(1):
            v = torch.tanh(torch.addcmul(u, keep, v))
            velocities.append(v)
        d = limit * torch.stack(velocities, dim=1) if velocities else torch.zeros_like(push)
        return d, d


class Gliding(_WithMomentum):
    """Momentum in the world's frame, as game engines have it, with a small network for friction and keys.

    Momentum is the velocity in the agent's frame, ahead and to its left. Not in the paper, whose momentum turns with
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
        """s + R(s^(3)) d(v, a); v becomes the velocity after the step, in the frame of the new heading."""
        u, turn = applied(self.move, a), (a * self.turn).sum(-1)
        d, v = self._network().step(s[..., 3:], u, turn.cos(), turn.sin(), a @ self.W_a.T + self.b)
        return torch.cat([self.space.step(s[..., :3], torch.cat([d, turn[..., None]], dim=-1)), v], dim=-1)

    def adopt(self, found: Mapping[str, Tensor]) -> None:
        """Divide moves by how much momentum accumulates, with `keep` where that was found as well."""
        self.turn.data.copy_(found["turn"])
        if "keep" in found:
            self.keep.data.copy_(found["keep"].logit(0.02))
        self.move.data.copy_(found["move"] * (1 - torch.sigmoid(self.keep.detach()))[:, None])

    def _network(self) -> GlideNetwork:
        # Weights are scaled down, so that a step of the optimiser changes the motion little.
        return GlideNetwork(torch.sigmoid(self.keep), self.W_v, 0.1 * self.V)

    def _carry(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """The glide scan."""
        if not torch.is_grad_enabled() and a.device.type == "cpu" and have_values(a, momentum):
            return self._carry_only(momentum, a)
        turn = (a * self.turn).sum(-1)
        pre = a @ self.W_a.T + self.b
        d, v = glide_steps(momentum, applied(self.move, a), turn.cos(), turn.sin(), pre, *self._network())
        return torch.cat([d, turn[..., None]], dim=-1), v

    @torch.autocast("cpu", enabled=False)  # poses are never rounded
    def _carry_only(self, momentum: Float[Tensor, "batch V"], a: Actions) -> Carried:
        """The glide scan for nothing but its numbers: a few products a step, half of the time for a thousand plans.

        Sequences lie side by side; of each step their velocity, action and a one lie below each other. A step makes
        hidden units of these, then what `GlideNetwork.step` adds up, and from that the velocity before the next one.
        """
        (count, steps, size), keep = a.shape, torch.sigmoid(self.keep).diag()
        into_units = torch.cat([self.W_v, self.W_a, self.b[:, None]], 1)
        linear, by_units = torch.cat([keep, self.move, torch.zeros_like(keep[:, :1])], 1), 0.1 * self.V
        turned = keep.new_tensor([[0.0, 1.0], [-1.0, 0.0]])  # by a right angle: what the sine of a turn adds
        linear = torch.cat([linear, linear, turned @ linear])
        by_units = torch.cat([by_units, turned @ by_units[2:]])
        told = a.new_ones(steps + 1, 3 + size, count)
        told[0, :2], told[:-1, 2:-1] = momentum.T, a.permute(1, 2, 0)
        turn = torch.matmul(self.turn, told[:-1, 2:-1])
        units, made = a.new_empty(len(self.b), count), a.new_empty(steps, 6, count)
        straight, aside, after = made[:, 2:4], made[:, 4:], told[1:, :2]
        each = (told[:-1], made, straight, aside, after, turn.cos(), turn.sin())
        # PyTorch would share products and more than 32,768 numbers among threads: to wait for these takes longer.
        parts = units.split(max(1, SHARED // max(1, count)))
        w, v, u, hidden, part = (x.numpy() for x in (into_units, by_units, linear, units, torch.empty_like(made[:1])))
        for before, found, left, right, velocity, c, s in zip(*(x.numpy() for x in each), strict=True):
            np.dot(w, before, out=hidden)
            for some in parts:
                some.relu_()
            np.dot(v, hidden, out=found)
            found += np.dot(u, before, out=part[0])
            np.multiply(left, c, out=velocity)
            velocity += np.multiply(right, s, out=part[0, :2])
        made[:, 2] = turn
        return made[:, :3].permute(2, 0, 1), after.permute(2, 0, 1)
