"""p(s_t | s_{t-1}, a_t): how actions move the pose. A motion says only what is physically new."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.kernels.prefix import prefix_scan
from gtmsm.kernels.walled_scan import Gate, walled_scan
from gtmsm.tensors import Belief


@config
class MotionConfig:
    """How the pose moves."""

    kind: Literal["free", "walled"] = "walled"
    """free: s + M a; walled: the displacement is gated by a network sigma_d (eq. nonlin_tr, section 4.1)."""
    state_size: int = 2
    """Dimensions of the pose s (section 4.1)."""
    noise: float = 1e-3
    """r, the standard deviation of a transition (App. A.1)."""
    hidden: int = 64
    """ReLU units of sigma_d, the network that knows the walls."""
    fence: float = 3.0
    """Distance from the start beyond which sigma_d is closed before it has learned anything. Walls that are too near
    are pushed out by what is seen; a world believed to be open is hard to close (docs/notebook.md)."""
    open_bias: float = 3.0
    """Logit of sigma_d inside that fence."""

    def __post_init__(self) -> None:
        """Refuse what no motion can be built from."""
        require(self.state_size >= 1, f"state_size is {self.state_size}; a pose needs at least 1 dimension")
        require(self.noise >= 0, f"noise is {self.noise}; a standard deviation cannot be negative")
        require(self.fence > 0, f"fence is {self.fence}; give the walls some distance from the start")
        require(self.hidden >= 1, f"hidden is {self.hidden}; sigma_d needs at least 1 unit")


class Motion(nn.Module, ABC):
    """A transition density N(step(s, a), r^2 I), and the marginals it implies."""

    def __init__(self, settings: MotionConfig) -> None:
        super().__init__()
        self.state_size = settings.state_size
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
    def scout(self) -> tuple["Motion", Sequence[str]]:
        """A copy to prospect with, free of what only gradients can find, and the names of its parameters to search."""

    def forward(
        self, start: Float[Tensor, "batch S"], a: Float[Tensor, "batch time A"]
    ) -> Float[Tensor, "batch time P"]:
        """The places of the mean path: what prospecting judges a motion by."""
        return self.place(self.unroll(start, a))

    def place(self, s: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch P"]:
        """The coordinates in which poses are near or far: Euclidean, whatever the pose is made of."""
        return s

    def start(self, batch: int) -> Float[Tensor, "batch S"]:
        """s_0: where every walk begins, the origin."""
        parameter = next(self.parameters())
        return torch.zeros(batch, self.state_size, dtype=parameter.dtype, device=parameter.device)

    def draw_noise(self, a: Float[Tensor, "batch time A"], generator: torch.Generator) -> Float[Tensor, "batch time S"]:
        """epsilon_t ~ N(0, r^2 I), for every step of `a`."""
        shape = (*a.shape[:2], self.state_size)
        return self.noise * torch.randn(shape, dtype=a.dtype, device=a.device, generator=generator)

    def believe(self, here: Belief, a: Float[Tensor, "batch time A"]) -> Belief:
        """p*(s_t) of eq. (marg_s) for every step: mean path, and covariance by linearising along it.

        `here` without a covariance is known exactly. Exact where the motion is linear. Covariances follow
        P_t = J_t P_{t-1} J_t' + r^2 I, whose steps compose associatively, so all of them come from one prefix scan.
        """
        mean = self.unroll(here.mean, a)
        before = torch.cat([here.mean[:, None], mean[:, :-1]], dim=1)
        jacobian = torch.func.vmap(torch.func.vmap(torch.func.jacrev(self.step)))(before, a)
        fresh = self.noise**2 * torch.eye(self.state_size, dtype=mean.dtype, device=mean.device)
        carry, added = prefix_scan(_then, [jacobian, fresh.expand_as(jacobian)])
        if here.covariance is None:
            return Belief(mean, added)
        return Belief(mean, carry @ here.covariance[:, None] @ carry.mT + added)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """P -> J2 (J1 P J1' + Q1) J2' + Q2, again of the form J P J' + Q."""
    (j1, q1), (j2, q2) = earlier, later
    return j2 @ j1, j2 @ q1 @ j2.mT + q2


class Free(Motion):
    """s_t = s_{t-1} + M a_t + noise: no walls, all transitions linear (section 4.1)."""

    def __init__(self, settings: MotionConfig, action_size: int) -> None:
        super().__init__(settings)
        self.settings = settings
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

    def scout(self) -> tuple[Motion, Sequence[str]]:
        """Search for M, unhindered."""
        free = Free(self.settings, self.M.shape[1]).to(self.M)
        free.load_state_dict({"M": self.M.detach()})
        return free, ("M",)


class Walled(Free):
    """s_t = s_{t-1} + M a_t sigma_d(s_{t-1} + M a_t) + noise: eq. (nonlin_tr), section 4.1."""

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


def build_motion(settings: MotionConfig, action_size: int) -> Motion:
    """The motion that the settings name."""
    return {"free": Free, "walled": Walled}[settings.kind](settings, action_size)
