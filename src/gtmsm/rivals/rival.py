"""The base class of rivals: frame coder, a prior over codes, and files of weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import as_plain, config, require, require_whole
from gtmsm.files import as_path, write_tensors
from gtmsm.kernels.operator import load_operators
from gtmsm.model.frame_vae import HIGHEST, LOWEST, FrameVAE, FrameVAEConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.settings import require_sizes
from gtmsm.tensors import Actions, Codes, Frames, FutureActions, FutureFrames, Gaussian, PerStep, TruePoses

Kind: TypeAlias = Literal[
    "gru", "rssm", "transformer", "ssm", "gtmm-introspection", "gtmm-content", "context-poses", "grid-map"
]


@config
class RivalConfig:
    """Kind and sizes of a rival; docs/rivals.md says how they were chosen."""

    kind: Kind = "gru"
    width: int = 256
    """Units of a layer or of a recurrent state; size of a token."""
    layers: int = 2
    """Number of layers of recurrence or attention."""
    heads: int = 4
    """Number of attention heads, or of reads of a memory at each step."""
    neighbours: int = 8
    """Memorised frames retrieved for each step (context-poses)."""
    rows: int = 512
    """Number of latest codes that can be read by their age (gtmm-introspection)."""
    stochastic: int = 32
    """Dimensions of the stochastic state (rssm)."""
    cells: int = 32
    """Cells of the map along each axis (grid-map)."""
    rate: float = 1.0
    """Learning rate relative to the experiment's."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        for name, most in (("width", 4_096), ("layers", 100), ("heads", 64), ("neighbours", 1_024), ("rows", 100_000)):
            require_whole(name, getattr(self, name), most=most)
        require_whole("stochastic", self.stochastic, most=4_096)
        require_whole("cells", self.cells, least=2, most=256)
        require(self.rate > 0, f"rate is {self.rate}; give a positive one")
        wide = 4 * self.heads
        require(self.width % wide == 0, f"width is {self.width}; {self.heads} heads need a multiple of {wide}")


@config
class RivalDescription:
    """Settings of a rival that are stored with its weights."""

    rival: RivalConfig
    vae: FrameVAEConfig
    frame_shape: tuple[int, int, int]
    action_size: int
    pose_size: int
    motion: MotionConfig = MotionConfig()
    """Settings of the motion borrowed from a GTM-SM (grid-map)."""

    def __post_init__(self) -> None:
        """Refuse invalid sizes."""
        require_sizes(self.frame_shape, self.action_size)
        require_whole("pose_size", self.pose_size, least=0, most=3)


@dataclass(frozen=True)
class Predicted:
    """A rival's prediction of the steps of a plan."""

    prior: Gaussian
    """p(z_t | memorised frames, actions), `batch horizon Z`."""
    costs: dict[str, PerStep] = field(default_factory=dict)
    """Additional terms of its loss, by the names in `Rival.costs`: at each memorised step, in nats."""


class Rival(nn.Module, ABC):
    """A model that is given tau frames with their actions, and predicts the frames along a plan of actions.

    It uses GTM-SM's frame coder, and returns p(z_t | memorised frames, actions up to t) for every step of the plan. It
    is never given the frames of the plan.
    """

    context: ClassVar[str]
    """How much of the memorised frames a prediction can use, in words, with sizes by their names in `RivalConfig`."""
    privileges: tuple[str, ...] = ()
    """Information that it is given and GTM-SM is not, in words."""
    needs_poses: bool = False
    """Whether it is given true poses, in training and at test."""
    costs: ClassVar[tuple[str, ...]] = ()
    """Names of the terms that its training adds to the bound."""

    def __init__(self, about: RivalDescription) -> None:
        super().__init__()
        load_operators()
        self.about, self.settings = about, about.rival
        self.frame_shape, self.action_size = about.frame_shape, about.action_size
        self.vae = FrameVAE(about.vae, about.frame_shape)

    @property
    def code_size(self) -> int:
        """Dimensions of z."""
        return self.about.vae.code_size

    @abstractmethod
    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """The prior of every step of `plan`, given the codes and actions of memorised frames.

        `generator` draws samples, if the rival uses any; without one means are used.
        """

    @torch.no_grad()
    def forecast(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> FutureFrames:
        """Predicted frames along `plan`: the decoded means of the prior."""
        require(len(x) == len(a) == len(plan), f"got {len(x)} walks, {len(a)} of actions and {len(plan)} plans")
        require(x.shape[1] == a.shape[1] >= 1, f"got {x.shape[1]} frames, {a.shape[1]} actions; give as many of each")
        fits = tuple(x.shape[2:]) == self.frame_shape and a.shape[2] == plan.shape[2] == self.action_size
        require(fits, f"frames are {tuple(x.shape[2:])}, actions of size {a.shape[2]} and {plan.shape[2]}; this rival "
                f"was made for {self.frame_shape} and {self.action_size}")  # fmt: skip
        kind = self.settings.kind
        needed = f"{kind} needs true poses of the memorised steps and of the plan, and got none"
        require(poses is not None or not self.needs_poses, needed)
        require(poses is None or self.needs_poses, f"{kind} is given true poses, but has no such privilege")
        return self.vae.decode(self.predict(self.vae.encode(x), a, plan, poses).prior.mean)

    @property
    def weights(self) -> int:
        """Number of learned parameters, including those of the coder."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    def save(self, path: str | Path) -> None:
        """Write weights and settings to one safetensors file, atomically."""
        write_tensors(as_path(path), self.state_dict(), as_plain(self.about))


class GaussianHead(nn.Linear):
    """N(z | mean, variance) from features: a linear layer whose log-variances are bounded."""

    def __init__(self, inputs: int, code_size: int) -> None:
        super().__init__(inputs, 2 * code_size)

    def forward(self, h: Float[Tensor, "*batch inputs"]) -> Gaussian:  # type: ignore[override]
        """The distribution, computed in the precision of the weights also under autocast."""
        with torch.autocast(h.device.type, enabled=False):
            mean, log_var = F.linear(h.to(self.weight.dtype), self.weight, self.bias).chunk(2, dim=-1)
        return Gaussian(mean, F.hardtanh(log_var, LOWEST, HIGHEST))


def as_tokens(code: Codes, a: Actions, plan: FutureActions) -> Float[Tensor, "batch time inputs"]:
    """Tokens of all steps: code, action, and 1 if the frame was seen. For steps of the plan code and flag are 0."""
    seen = F.pad(torch.cat([code, torch.ones_like(code[..., :1])], dim=-1), (0, 0, 0, plan.shape[1]))
    return torch.cat([seen, torch.cat([a, plan], dim=1)], dim=-1)


def token_size(about: RivalDescription) -> int:
    """Size of a token of `as_tokens`."""
    return about.vae.code_size + about.action_size + 1
