"""Encoder and decoder with a code for each patch, by residual convolutions: no layer sees the whole frame.

The layers of PyTorch only hold the weights. Biases, SiLU and shortcuts are applied together, in one pass.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.layers.activation import activated, shortcut
from gtmsm.kernels.layers.edge_conv import edge_conv_out
from gtmsm.model.mlp import between_layers


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; before training, the shortcut and a bias alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(
        self, x: Float[Tensor, "n channel height width"], active: Float[Tensor, "n channel height width"]
    ) -> tuple[Float[Tensor, "n channel height width"], Float[Tensor, "n channel height width"]]:
        """From x and SiLU(x), the block's result and SiLU of the result."""
        inner = activated(_convolved(active, self.first), self.first.get_parameter("bias"), "silu")
        return shortcut(x, _convolved(inner, self.second), self.second.get_parameter("bias"), "silu")


class SpatialEncoder(nn.Sequential):
    """Stages, each of half the resolution and twice the channels, and a linear map of each patch: two stages for 4x4
    pixels per patch, three for 8x8."""

    def __init__(self, channels: int, deep: int, outputs: int, patch: int = 4) -> None:
        layers: list[nn.Module] = []
        for halvings in reversed(range(_stages(patch))):
            width = deep >> halvings
            layers += [nn.Conv2d(channels, width, 4, stride=2, padding=1), _Residual(width), nn.SiLU()]
            channels = width
        layers.insert(-1, _Residual(deep))
        super().__init__(*layers, nn.Conv2d(deep, outputs, 1), nn.Flatten())
        _scale_stages(layers)

    def forward(self, x: Float[Tensor, "n channel height width"]) -> Float[Tensor, "n both"]:
        """Means of all patches, channel by channel, then log-variances; in the precision of x even under autocast."""
        start, *layers, last, _ = self
        assert isinstance(start, nn.Conv2d)
        y, active = shortcut(_windows_convolved(x, start), None, start.get_parameter("bias"), "silu")
        patches = _features(layers, y, active).permute(0, 2, 3, 1)  # channels lie last, so that a patch is a row
        with torch.autocast(x.device.type, enabled=False):
            codes = F.linear(patches.to(x.dtype), _as_matrix(last), last.get_parameter("bias"))
        return codes.permute(0, 3, 1, 2).flatten(1)


class SpatialDecoder(nn.Sequential):
    """The layers of the encoder in reverse, and a block at the resolution of the frame."""

    def __init__(self, channels: int, deep: int, grid: tuple[int, int], inputs: int, patch: int = 4) -> None:
        layers: list[nn.Module] = [nn.Conv2d(inputs, deep, 3, padding=1), _Residual(deep), _Residual(deep), nn.SiLU()]
        before = deep
        for doublings in range(_stages(patch)):
            # With patches of 8x8, a frame has four times the pixels, and half the channels there: twice the numbers.
            width = deep >> max(1, doublings)
            layers += [nn.ConvTranspose2d(before, width, 4, stride=2, padding=1), _Residual(width), nn.SiLU()]
            before = width
        super().__init__(nn.Unflatten(1, (inputs, *grid)), *layers, nn.Conv2d(before, channels, 3, padding=1))
        _scale_stages(layers)

    def forward(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n channel height width"]:
        """Logits of pixels."""
        unflatten, *layers, last = self
        patches = unflatten(z)
        features = _features(layers, patches, patches)  # codes are not activated
        return edge_conv_out(features, last.get_parameter("weight"), last.get_parameter("bias"))


def _stages(patch: int) -> int:
    """Number of times a frame is halved until a patch is a pixel."""
    return patch.bit_length() - 1


def _scale_stages(layers: Iterable[nn.Module]) -> None:
    """Initialise three stages or more with larger weights than PyTorch's, which keep the scale of activations.

    With PyTorch's, each stage divides the scale by three or more: after three stages, codes hardly depend on the frame
    at first. Two stages keep PyTorch's, so that a seed gives the same weights as ever.
    """
    stages = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)]
    if sum(max(layer.stride) > 1 for layer in stages) < 3:
        return
    for layer in stages:
        taps = math.prod(layer.kernel_size)
        if isinstance(layer, nn.ConvTranspose2d):
            taps //= math.prod(layer.stride)  # number of weights that reach a pixel
        nn.init.normal_(layer.weight, std=math.sqrt(2 / (layer.in_channels * taps)))


def _features(
    layers: Iterable[nn.Module],
    x: Float[Tensor, "n channel height width"],
    active: Float[Tensor, "n channel height width"],
) -> Float[Tensor, "n deep high wide"]:
    """The activated output of these layers, one after the other, for x and SiLU(x)."""
    for layer in layers:
        if isinstance(layer, _Residual):
            x, active = layer(x, active)
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            x, active = shortcut(_convolved(active, layer), None, layer.get_parameter("bias"), "silu")
        else:
            assert isinstance(layer, nn.SiLU)  # `active` is activated already
    return active


def _convolved(
    x: Float[Tensor, "n inputs height width"], layer: nn.Conv2d | nn.ConvTranspose2d
) -> Float[Tensor, "n outputs high wide"]:
    """The output of a layer without its bias."""
    convolve = F.conv_transpose2d if isinstance(layer, nn.ConvTranspose2d) else F.conv2d
    return convolve(x, layer.weight, None, layer.stride, _padding(layer))


def _windows_convolved(
    x: Float[Tensor, "n channel height width"], layer: nn.Conv2d
) -> Float[Tensor, "n outputs high wide"]:
    """The output of a layer without its bias, as one product of all its windows.

    For the first layer: libraries are slow at convolving three channels, and windows of 4x4 pixels, two pixels apart,
    are only four times as many numbers.
    """
    (high, wide), (below, right), (above, beside) = layer.kernel_size, layer.stride, _padding(layer)
    x = x.to(between_layers(x), memory_format=torch.channels_last)
    x = F.pad(x, (beside, beside, above, above))
    windows = x.unfold(2, high, below).unfold(3, wide, right).permute(0, 2, 3, 4, 5, 1).flatten(3)
    return F.linear(windows, _as_matrix(layer)).permute(0, 3, 1, 2)


def _padding(layer: nn.Conv2d | nn.ConvTranspose2d) -> tuple[int, int]:
    """Vertical and horizontal padding in pixels; PyTorch's padding by name is not used here."""
    assert not isinstance(layer.padding, str)
    above, beside = layer.padding
    return above, beside


def _as_matrix(layer: nn.Module) -> Float[Tensor, "outputs inputs"]:
    """The weight of a convolution as a matrix, its channels last, as they lie in memory: a view."""
    return layer.get_parameter("weight").permute(0, 2, 3, 1).flatten(1)
