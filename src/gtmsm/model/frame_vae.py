"""q(z|x) and p(x|z): one frame to a code and back."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.tensors import LOG_TWO_PI, Gaussian

AT_ONCE = 4_096
"""Frames coded at once where no gradients are wanted: at most some 2 GB between layers."""


@config
class FrameVAEConfig:
    """How a frame is coded."""

    coder: Literal["dense", "conv", "spatial"] = "dense"
    """Fully connected, or three convolutions; App. A.1 names both and finds that either does. spatial: a code for every
    4x4 patch of the frame, by residual convolutions (not in the paper)."""
    width: int = 256
    """Hidden units of the dense coder; the convolutions have half as many channels where they have most."""
    code_size: int = 16
    """Dimensions of z (App. A.1), of all patches together where the code is spatial."""
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """p(x|z): Gaussian with one learned sigma, or Bernoulli (section 3.1)."""

    def __post_init__(self) -> None:
        """Refuse what no coder can be built from."""
        require(self.width >= 8, f"width is {self.width}; a coder needs at least 8 units")
        require(self.code_size >= 1, f"code_size is {self.code_size}; a code needs at least 1 dimension")


class FrameVAE(nn.Module):
    """The variational auto-encoder of single frames; its prior comes from memory."""

    def __init__(self, settings: FrameVAEConfig, frame_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.settings = settings
        self.frame_shape = frame_shape
        build = {"dense": _dense, "conv": _convolutional, "spatial": _spatial}[settings.coder]
        self.encoder, self.decoder = build(frame_shape, settings.width, settings.code_size)
        if settings.coder != "dense":
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.likelihood == "gaussian":
            self.log_sigma = nn.Parameter(torch.tensor(-1.5))

    def encode(self, x: Float[Tensor, "*batch channel height width"]) -> Gaussian:
        """q(z|x)."""
        lead = x.shape[:-3]
        flat = x.reshape(-1, *self.frame_shape)
        if self.settings.coder != "dense":
            flat = flat.contiguous(memory_format=torch.channels_last)  # convolutions are faster so
        both = _in_portions(self.encoder, flat).to(x.dtype)
        mean, log_var = both.reshape(*lead, both.shape[-1]).chunk(2, dim=-1)
        # Bounds far outside anything useful, so that an early overshoot cannot become a NaN.
        return Gaussian(mean, log_var.clamp(-10, 4))

    def decode(self, z: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """The mean of p(x|z), in [0, 1]."""
        return torch.sigmoid(self._logits(z))

    def log_likelihood(
        self, x: Float[Tensor, "*batch channel height width"], z: Float[Tensor, "*batch Z"]
    ) -> Float[Tensor, "*batch"]:
        """log p(x|z), summed over the frame."""
        logits = self._logits(z)
        if self.settings.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((-3, -2, -1))
        error2 = (x - torch.sigmoid(logits)).square().sum((-3, -2, -1))
        pixels = math.prod(self.frame_shape)
        return -0.5 * (error2 * (-2 * self.log_sigma).exp() + pixels * (2 * self.log_sigma + LOG_TWO_PI))

    def _logits(self, z: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """The decoder before its sigmoid."""
        flat = z.reshape(-1, z.shape[-1])
        return _in_portions(self.decoder, flat).to(z.dtype).reshape(*z.shape[:-1], *self.frame_shape)


def _in_portions(coder: nn.Module, x: Float[Tensor, "n *any"]) -> Float[Tensor, "n *out"]:
    """A bounded number of frames at a time where nobody learns from it: what lies between layers is large."""
    if torch.is_grad_enabled() or len(x) <= AT_ONCE:
        return coder(x)
    return torch.cat([coder(some) for some in x.split(AT_ONCE)])


def _dense(frame: tuple[int, int, int], width: int, code_size: int) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers each way."""
    pixels = math.prod(frame)
    encoder = [nn.Flatten(), nn.Linear(pixels, width), nn.ELU(), nn.Linear(width, width), nn.ELU()]
    decoder = [nn.Linear(code_size, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, pixels)]
    return nn.Sequential(*encoder, nn.Linear(width, 2 * code_size)), nn.Sequential(*decoder)


def _convolutional(frame: tuple[int, int, int], width: int, code_size: int) -> tuple[nn.Module, nn.Module]:
    """Three convolutions each way, the last two halving the resolution."""
    channels, height, width_px = frame
    require(
        height % 4 == 0 and width_px % 4 == 0,
        f"the conv coder halves a frame twice, and {height}x{width_px} does not divide by 4; use coder dense",
    )
    deep, small = width // 2, (height // 4, width_px // 4)
    encoder = [
        nn.Conv2d(channels, deep // 4, 3, padding=1), nn.ELU(),
        nn.Conv2d(deep // 4, deep // 2, 4, stride=2, padding=1), nn.ELU(),
        nn.Conv2d(deep // 2, deep, 4, stride=2, padding=1), nn.ELU(),
        nn.Flatten(), nn.Linear(deep * math.prod(small), 2 * code_size),
    ]  # fmt: skip
    decoder = [
        nn.Linear(code_size, deep * math.prod(small)), nn.ELU(), nn.Unflatten(1, (deep, *small)),
        nn.ConvTranspose2d(deep, deep // 2, 4, stride=2, padding=1), nn.ELU(),
        nn.ConvTranspose2d(deep // 2, deep // 4, 4, stride=2, padding=1), nn.ELU(),
        nn.Conv2d(deep // 4, channels, 3, padding=1),
    ]  # fmt: skip
    return nn.Sequential(*encoder), nn.Sequential(*decoder)


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; at first nothing but the shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n channel height width"]:
        return x + self.second(F.silu(self.first(F.silu(x))))


def patch_grid(frame: tuple[int, int, int]) -> tuple[int, int]:
    """Rows and columns of the patches of a spatial code."""
    return frame[1] // 4, frame[2] // 4


def _spatial(frame: tuple[int, int, int], width: int, code_size: int) -> tuple[nn.Module, nn.Module]:
    """Residual convolutions down to patches of 4x4 pixels and up again; no layer sees the whole frame."""
    channels, height, width_px = frame
    grid = patch_grid(frame)
    patches = math.prod(grid)
    require(
        height % 4 == 0 and width_px % 4 == 0,
        f"the spatial coder halves a frame twice, and {height}x{width_px} does not divide by 4; "
        "use frames whose sides do, such as 32x32",
    )
    require(
        code_size % patches == 0,
        f"code_size is {code_size}; a spatial code of {grid[0]}x{grid[1]} patches needs a multiple of {patches}",
    )
    deep, each = width // 2, code_size // patches
    encoder = [
        nn.Conv2d(channels, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2),
        nn.SiLU(), nn.Conv2d(deep // 2, deep, 4, stride=2, padding=1), _Residual(deep), _Residual(deep),
        nn.SiLU(), nn.Conv2d(deep, 2 * each, 1), nn.Flatten(),
    ]  # fmt: skip
    decoder = [
        nn.Unflatten(1, (each, *grid)), nn.Conv2d(each, deep, 3, padding=1), _Residual(deep), _Residual(deep),
        nn.SiLU(), nn.ConvTranspose2d(deep, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2),
        nn.SiLU(), nn.ConvTranspose2d(deep // 2, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2),
        nn.SiLU(), nn.Conv2d(deep // 2, channels, 3, padding=1),
    ]  # fmt: skip
    return nn.Sequential(*encoder), nn.Sequential(*decoder)
