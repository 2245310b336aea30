"""Motions whose actions act in the frame of the map itself: section 4.1."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.walled_scan import Gate, walled_scan
from gtmsm.model.motion.base import Motion, MotionConfig, Scout


class Free(Motion):
    """s_t = s_{t-1} + M a_t + noise: no walls, all transitions linear (section 4.1)."""

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        self.state_size = self.noisy = settings.state_size
        self.M = nn.Parameter(0.3 * torch.randn(settings.state_size, action_size))

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a."""
        return s + a @ self.M.T

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """A running sum of displacements."""
        moved = a @ self.M.T
        return start[:, None] + (moved if noise is None else moved + noise).cumsum(1)

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
        # Every unit is a plane at the fence's distance, facing its own way; together they close the world off.
        facing = nn.functional.normalize(torch.randn(settings.hidden, settings.state_size), dim=-1)
        self.W = nn.Parameter(0.7 * facing)
        self.b = nn.Parameter(0.3 * torch.randn(settings.hidden) - 0.7 * settings.fence)
        self.v = nn.Parameter(-torch.ones(settings.hidden))
        self.c = nn.Parameter(torch.tensor(settings.open_bias))

    @property
    def gate(self) -> Gate:
        """sigma_d."""
        return Gate(self.W, self.b, self.v, self.c)

    def step(self, s: Float[Tensor, "*batch S"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch S"]:
        """s + M a sigma_d(s + M a)."""
        d = a @ self.M.T
        return s + d * self.gate(s + d)[..., None]

    def unroll(
        self,
        start: Float[Tensor, "batch S"],
        a: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time S"] | None = None,
    ) -> Float[Tensor, "batch time S"]:
        """The walled scan."""
        d = a @ self.M.T
        return walled_scan(start, d, torch.zeros_like(d) if noise is None else noise, self.gate)
