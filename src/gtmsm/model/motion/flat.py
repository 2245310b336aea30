"""Motions whose actions act in the frame of the map (section 4.1)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gtmsm.kernels.scans.walled_scan import Gate, walled_poses
from gtmsm.model.landmark_filter import Past, Sights, Surprise, Track, filter_positions
from gtmsm.model.motion.base import Motion, MotionConfig, Scout
from gtmsm.model.slips import Slips
from gtmsm.pose import Plane
from gtmsm.tensors import Actions, PerStep, Poses, State, States, Variance, applied

FURTHEST = 8.0
"""Largest initial distance of units of sigma_d from the start without a fence; range of shifts in `among_walls`."""

DECIDED = 6.0
"""Logit beyond which sigma_d is not trained to be more open or more closed: a quarter of a per cent of a step."""


class Free(Motion):
    """s_t = s_{t-1} + M a_t + noise: no walls, all transitions linear (section 4.1)."""

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        self.state_size = settings.state_size
        self.space = Plane(self.state_size)
        self.M = nn.Parameter(0.3 * torch.randn(settings.state_size, action_size))

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
        """The landmark scan; step by step with `watch`."""
        if surprise.habits is not None:
            return super().filter(start, a, variance, sights, past, surprise, walls, slips)
        d = applied(self.M, a)
        return filter_positions(start, d, self.gate if walls else None, variance, sights, past, surprise)

    @property
    def gate(self) -> Gate | None:
        """No walls."""
        return None

    def scout(self) -> Scout:
        """Search for M without walls."""
        free = Free(self.settings, self.M.shape[1]).to(self.M)
        free.load_state_dict({"M": self.M.detach()})
        return Scout(free, ("M",))


class Walled(Free):
    """s_t = s_{t-1} + M a_t sigma_d(s_{t-1} + M a_t) + noise: eq. (nonlin_tr), section 4.1."""

    walls = ("W", "b", "v", "c")

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        # Each unit is a half-plane with a direction of its own. With a fence, all lie at its distance and enclose the
        # world; without one, they lie at random distances and have zero weight.
        facing = nn.functional.normalize(torch.randn(settings.hidden, settings.state_size), dim=-1)
        distance = settings.fence if settings.fence else FURTHEST * torch.rand(settings.hidden)
        self.W = nn.Parameter(0.7 * facing)
        self.b = nn.Parameter(0.3 * torch.randn(settings.hidden) - 0.7 * distance)
        self.v = nn.Parameter(-torch.ones(settings.hidden) * (settings.fence > 0))
        self.c = nn.Parameter(torch.tensor(settings.open_bias))

    @property
    def gate(self) -> Gate:
        """sigma_d."""
        return Gate(self.W, self.b, self.v, self.c)

    def regret(self, before: States, a: Actions, steps: Poses) -> PerStep:
        """`Motion.regret` plus a hinge loss of sigma_d as a classifier of which steps succeed.

        Where sigma_d is saturated and wrong, the gradient of distances almost vanishes; that of the hinge does not.
        """
        d, made, moves = self._attempts(a, steps)
        foreseen = torch.relu(DECIDED - made * self.gate.logit(before + d)) / DECIDED
        return super().regret(before, a, steps) + foreseen * moves

    def among_walls(
        self, before: States, a: Actions, steps: Poses, surprise: float
    ) -> tuple[State, Float[Tensor, "batch 1"]]:
        """Mean and variance of shifts on a grid, weighted by the likelihood under sigma_d of which steps succeeded."""
        d, made, moves = self._attempts(a, steps)
        axis = torch.arange(-FURTHEST, FURTHEST + 0.5, 0.5, device=d.device, dtype=d.dtype)
        places = torch.cartesian_prod(*[axis] * self.state_size).view(-1, self.state_size)
        # However certain sigma_d is, a step may fail for another reason.
        most = math.log((1 - surprise) / surprise)
        logits = (self.gate.logit(before + d + place).clamp(-most, most) for place in places)
        log_likelihood = torch.stack([(logsigmoid(made * logit) * moves).sum(1) for logit in logits], dim=1)
        weight = torch.softmax(log_likelihood + logsigmoid(self.gate.logit(places)), dim=1)
        mean = weight @ places
        spread = (weight[..., None] * (places - mean[:, None]).square()).sum(1)
        return mean, spread.mean(-1, keepdim=True)

    def _attempts(self, a: Actions, steps: Poses) -> tuple[States, PerStep, Bool[Tensor, "batch time"]]:
        """The planned displacements, whether each step succeeded (1) or failed (-1), and which ones are not about 0."""
        d = applied(self.M, a).detach()
        length2 = d.square().sum(-1)
        made = torch.where((steps * d).sum(-1) > 0.5 * length2, 1.0, -1.0).to(d)
        return d, made, length2 > 0.1 * length2.max()

    def is_open(self, pose: Float[Tensor, "*batch S"]) -> Bool[Tensor, "*batch"]:
        """Whether sigma_d is at least 0.5."""
        return self.gate.logit(pose) >= 0

    def go(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a."""
        return super().step(s, a)

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a sigma_d(s + M a)."""
        d = applied(self.M, a)
        return s + d * self.gate(s + d)[..., None]

    def unroll_openly(self, start: State, a: Actions) -> States:
        """Sums of displacements."""
        return super().unroll(start, a)

    def unroll(self, start: State, a: Actions, noise: States | None = None) -> States:
        """The walled scan."""
        d = applied(self.M, a)
        return walled_poses(start, d, noise, *self.gate)
