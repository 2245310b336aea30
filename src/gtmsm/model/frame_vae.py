"""q(z|x) and p(x|z): the encoder and decoder of single frames."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.kernels.layers.activation import activated
from gtmsm.kernels.layers.edge_conv import edge_conv_in, edge_conv_out
from gtmsm.model.mlp import Mlp, between_layers, weight_and_bias
from gtmsm.model.spatial_coder import SpatialDecoder, SpatialEncoder
from gtmsm.tensors import LOG_TWO_PI, Gaussian

LOWEST, HIGHEST = -10.0, 4.0
"""Bounds of log-variances, far outside anything useful, so that an early overshoot cannot become a NaN."""
AT_ONCE = 4_096
"""Frames encoded or decoded at once without gradients, fewer if they are larger than `USUAL`: activations take at most
some 2 GB."""
USUAL = 32 * 32
"""Pixels of a frame up to which `AT_ONCE` holds."""
PATCHES = (4, 8)
"""Possible sides of a patch in pixels."""


@config
class FrameVAEConfig:
    """How a frame is coded."""

    coder: Literal["dense", "conv", "spatial"] = "dense"
    """dense: fully connected; conv: three convolutions (App. A.1 names both and finds that either suffices); spatial:
    a code for each patch of the frame, by residual convolutions (not in the paper)."""
    patch: int = 4
    """Side of a patch in pixels, 4 or 8, for coder spatial: with 8, frames of 64x64 have as many patches as frames of
    32x32 with 4."""
    width: int = 256
    """Hidden units of the dense coder; convolutions have at most half as many channels."""
    code_size: int = 16
    """Dimensions of z (App. A.1); for coder spatial, of all patches together."""
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    """p(x|z): Gaussian with one learned sigma, or Bernoulli (section 3.1)."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.width >= 8, f"width is {self.width}; a coder needs at least 8 units")
        require(self.patch in PATCHES, f"patch is {self.patch}; a patch has a side of 4 or 8 pixels: give one of these")
        require(self.code_size >= 1, f"code_size is {self.code_size}; a code needs at least 1 dimension")


class FrameVAE(nn.Module):
    """The variational auto-encoder of single frames; its prior comes from memory."""

    def __init__(self, settings: FrameVAEConfig, frame_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.settings = settings
        self.frame_shape = frame_shape
        build = {"dense": _dense, "conv": _convolutional, "spatial": _spatial}[settings.coder]
        self.encoder, self.decoder = build(frame_shape, settings)
        if settings.coder != "dense":
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.likelihood == "gaussian":
            self.log_sigma = nn.Parameter(torch.tensor(-1.5))

    def encode(
        self, x: Float[Tensor, "*batch channel height width"], rows: Int64[Tensor, "n"] | None = None
    ) -> Gaussian:
        """q(z|x) of all frames, or of the frames `rows` of a flat batch; in the precision of x even under autocast."""
        if rows is not None:
            x = x.index_select(0, rows)
        both = self._in_portions(self.encoder, x.reshape(-1, *self.frame_shape))
        mean, log_var = both.reshape(*x.shape[:-3], both.shape[-1]).chunk(2, dim=-1)
        return Gaussian(mean, F.hardtanh(log_var, LOWEST, HIGHEST))  # as clamp, but its backward pass is one launch

    def decode(self, z: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """The mean of p(x|z), in [0, 1]."""
        return torch.sigmoid(self.logits(z))

    def log_likelihood(
        self,
        x: Float[Tensor, "*batch channel height width"],
        logits: Float[Tensor, "*batch channel height width"],
    ) -> Float[Tensor, "*batch"]:
        """log p(x|z), summed over the frame."""
        if self.settings.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((-3, -2, -1))
        spread = -math.prod(self.frame_shape) * (self.log_sigma + 0.5 * LOG_TWO_PI)
        return torch.addcmul(spread, self.error2(x, logits), (-2 * self.log_sigma).exp(), value=-0.5)

    def error2(
        self,
        x: Float[Tensor, "*batch channel height width"],
        logits: Float[Tensor, "*batch channel height width"],
    ) -> Float[Tensor, "*batch"]:
        """Squared error of each frame decoded from `logits`, summed over the frame."""
        return F.mse_loss(torch.sigmoid(logits), x, reduction="none").sum((-3, -2, -1))

    def logits(self, z: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """The decoder before its sigmoid."""
        logits = self._in_portions(self.decoder, z.reshape(-1, z.shape[-1]))
        return logits.to(z.dtype).reshape(*z.shape[:-1], *self.frame_shape)

    def _in_portions(self, coder: Callable[[Tensor], Tensor], x: Float[Tensor, "n *any"]) -> Float[Tensor, "n *out"]:
        """`coder(x)`; without gradients, a bounded number of frames at a time, since activations are large."""
        at_once = max(1, AT_ONCE * USUAL // max(USUAL, math.prod(self.frame_shape[1:])))
        if torch.is_grad_enabled() or len(x) <= at_once:
            return coder(x)
        return torch.cat([coder(some) for some in x.split(at_once)])


def _dense(frame: tuple[int, int, int], settings: FrameVAEConfig) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers in encoder and decoder each."""
    pixels, width, code_size = math.prod(frame), settings.width, settings.code_size
    return Mlp(pixels, width, width, 2 * code_size, pictures=True), Mlp(code_size, width, width, pixels)


class _ConvEncoder(nn.Sequential):
    """Three convolutions with ELU, the last two halving the resolution, and a linear layer.

    The layers of PyTorch only hold the weights. Biases and ELU are applied together, in one pass.
    """

    def __init__(self, channels: int, deep: int, small: tuple[int, int], outputs: int) -> None:
        super().__init__(
            nn.Conv2d(channels, deep // 4, 3, padding=1), nn.ELU(),
            nn.Conv2d(deep // 4, deep // 2, 4, stride=2, padding=1), nn.ELU(),
            nn.Conv2d(deep // 2, deep, 4, stride=2, padding=1), nn.ELU(),
            nn.Flatten(), nn.Linear(deep * math.prod(small), outputs),
        )  # fmt: skip
        self.deep, self.small = deep, small

    def forward(self, x: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n out"]:
        """The last layer's output, in the precision of x even under autocast."""
        h = edge_conv_in(x, *weight_and_bias(self[0]), between_layers(x))
        for layer, made in ((self[2], None), (self[4], x.dtype)):
            weight, bias = weight_and_bias(layer)
            h = activated(F.conv2d(h, weight, None, stride=2, padding=1), bias, "elu", made)
        # Channels lie last in h: the few weights are permuted to match, rather than all of h.
        weight, bias = weight_and_bias(self[7])
        turned = weight.unflatten(1, (self.deep, *self.small)).permute(0, 2, 3, 1).flatten(1)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(h.permute(0, 2, 3, 1).flatten(1), turned, bias)


class _ConvDecoder(nn.Sequential):
    """The layers of the encoder in reverse."""

    def __init__(self, channels: int, deep: int, small: tuple[int, int], inputs: int) -> None:
        super().__init__(
            nn.Linear(inputs, deep * math.prod(small)), nn.ELU(), nn.Unflatten(1, (deep, *small)),
            nn.ConvTranspose2d(deep, deep // 2, 4, stride=2, padding=1), nn.ELU(),
            nn.ConvTranspose2d(deep // 2, deep // 4, 4, stride=2, padding=1), nn.ELU(),
            nn.Conv2d(deep // 4, channels, 3, padding=1),
        )  # fmt: skip
        self.deep, self.small = deep, small

    def forward(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n channel height width"]:
        """Logits of pixels."""
        size = (self.deep, *self.small)
        weight, bias = (part.unflatten(0, size).movedim(0, 2).flatten(0, 2) for part in weight_and_bias(self[0]))
        h = activated(F.linear(z, weight), bias, "elu").unflatten(1, (*self.small, self.deep)).permute(0, 3, 1, 2)
        for layer in (self[3], self[5]):
            weight, bias = weight_and_bias(layer)
            h = activated(F.conv_transpose2d(h, weight, None, stride=2, padding=1), bias, "elu")
        return edge_conv_out(h, *weight_and_bias(self[7]))


def _convolutional(frame: tuple[int, int, int], settings: FrameVAEConfig) -> tuple[nn.Module, nn.Module]:
    """Three convolutions in encoder and decoder each; two of them halve or double the resolution."""
    channels, height, width_px = frame
    require(
        height % 4 == 0 and width_px % 4 == 0,
        f"the conv coder halves a frame twice, and {height}x{width_px} does not divide by 4; use coder dense",
    )
    deep, small, code_size = settings.width // 2, (height // 4, width_px // 4), settings.code_size
    return _ConvEncoder(channels, deep, small, 2 * code_size), _ConvDecoder(channels, deep, small, code_size)


def patch_grid(frame: tuple[int, int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of the patches of a spatial code."""
    return frame[1] // patch, frame[2] // patch


def _spatial(frame: tuple[int, int, int], settings: FrameVAEConfig) -> tuple[nn.Module, nn.Module]:
    """Residual convolutions down to patches and up again."""
    (channels, height, width_px), patch, code_size = frame, settings.patch, settings.code_size
    grid = patch_grid(frame, patch)
    patches = math.prod(grid)
    require(
        height % patch == 0 and width_px % patch == 0,
        f"patches of the spatial coder are {patch}x{patch} pixels, and {height}x{width_px} does not divide by {patch}; "
        f"use frames whose sides do, such as {8 * patch}x{8 * patch}" + (", or patch 4" if patch > 4 else ""),
    )
    require(
        code_size % patches == 0,
        f"code_size is {code_size}; a spatial code of {grid[0]}x{grid[1]} patches needs a multiple of {patches}",
    )
    deep, each = settings.width // 2, code_size // patches
    return SpatialEncoder(channels, deep, 2 * each, patch), SpatialDecoder(channels, deep, grid, each, patch)
