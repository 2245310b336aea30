"""Motions whose actions act in the frame of the map itself: section 4.1."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gtmsm.kernels.layers.small_map import small_map
from gtmsm.kernels.scans.landmark_scan import Sights, Surprise, landmark_scan
from gtmsm.kernels.scans.walled_scan import Gate, walled_scan
from gtmsm.model.motion.base import Motion, MotionConfig, Scout

FURTHEST = 8.0
"""Units from the start up to which an agent without a fence looks out for walls from the beginning."""

DECIDED = 6.0
"""Logit at which sigma_d is as open or closed as it needs to be: a quarter of a per cent of a step."""


class Free(Motion):
    """s_t = s_{t-1} + M a_t + noise: no walls, all transitions linear (section 4.1)."""

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        self.state_size = self.noisy = settings.state_size
        self.M = nn.Parameter(0.3 * torch.randn(settings.state_size, action_size))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a."""
        return s + small_map(a, self.M)

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """A running sum of displacements."""
        moved = small_map(a, self.M)
        return start[:, None] + (moved if noise is None else moved + noise).cumsum(1)

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
        """The landmark scan."""
        d = small_map(a, self.M)
        return landmark_scan(start, d, self.gate if walls else None, variance, sights, past, surprise)

    @property
    def gate(self) -> Gate | None:
        """Nothing is in the way."""
        return None

    def scout(self) -> Scout:
        """Search for M, unhindered."""
        free = Free(self.settings, self.M.shape[1]).to(self.M)
        free.load_state_dict({"M": self.M.detach()})
        return Scout(free, ("M",))


class Walled(Free):
    """s_t = s_{t-1} + M a_t sigma_d(s_{t-1} + M a_t) + noise: eq. (nonlin_tr), section 4.1."""

    walls = ("W", "b", "v", "c")

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings, action_size)
        # Every unit is a plane that faces its own way: all at the fence's distance, they close the world off; at any
        # distance and without weight, they are there for whatever walls may be found.
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

    def regret(
        self,
        before: Float[Tensor, "batch time S"],
        a: Float[Tensor, "batch time A"],
        steps: Float[Tensor, "batch time D"],
    ) -> Float[Tensor, "batch time"]:
        """And how badly sigma_d foresaw which steps would be made: a hinge, which settles for what most steps do.

        A squashed sigma_d that is wrong hardly learns from distances any more; a hinge never tires.
        """
        d, made, moves = self._attempts(a, steps)
        foreseen = torch.relu(DECIDED - made * self.gate.logit(before + d)) / DECIDED
        return super().regret(before, a, steps) + foreseen * moves

    def among_walls(
        self,
        before: Float[Tensor, "batch time S"],
        a: Float[Tensor, "batch time A"],
        steps: Float[Tensor, "batch time D"],
        surprise: float,
    ) -> tuple[Float[Tensor, "batch S"], Float[Tensor, "batch 1"]]:
        """The mean over all places to begin at, each as likely as sigma_d says that just these steps are made there."""
        d, made, moves = self._attempts(a, steps)
        axis = torch.arange(-FURTHEST, FURTHEST + 0.5, 0.5, device=d.device, dtype=d.dtype)
        places = torch.cartesian_prod(*[axis] * self.state_size).view(-1, self.state_size)
        # However sure sigma_d is, something else may be in the way.
        most = math.log((1 - surprise) / surprise)
        log_likelihood = torch.stack(
            [
                (logsigmoid(made * self.gate.logit(before + d + place).clamp(-most, most)) * moves).sum(1)
                for place in places
            ],
            dim=1,
        )
        weight = torch.softmax(log_likelihood + logsigmoid(self.gate.logit(places)), dim=1)
        mean = weight @ places
        spread = (weight[..., None] * (places - mean[:, None]).square()).sum(1)
        return mean, spread.mean(-1, keepdim=True)

    def _attempts(
        self, a: Float[Tensor, "batch time A"], steps: Float[Tensor, "batch time D"]
    ) -> tuple[Float[Tensor, "batch time S"], Float[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
        """The steps that actions try, whether they were made (1) or not (-1), and which tried to move at all."""
        d = (small_map(a, self.M)).detach()
        length2 = d.square().sum(-1)
        made = torch.where((steps * d).sum(-1) > 0.5 * length2, 1.0, -1.0).to(d)
        return d, made, length2 > 0.1 * length2.max()

    def go(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a."""
        return super().step(s, a)

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a sigma_d(s + M a)."""
        d = small_map(a, self.M)
        return s + d * self.gate(s + d)[..., None]

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """The walled scan."""
        d = small_map(a, self.M)
        return walled_scan(start, d, noise, self.gate)
