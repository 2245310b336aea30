"""Frames to codes of patches and back, by residual convolutions: no layer sees the whole frame.

Layers are PyTorch's, for their weights. Biases, SiLU and shortcuts are done together, since reading and writing what
lies between convolutions took longer than they did.
"""

from collections.abc import Iterable

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.kernels.choice import between_layers
from gtmsm.kernels.gradients.weighted import convolve
from gtmsm.kernels.layers.activation import activated, shortcut
from gtmsm.kernels.layers.edge_conv import edge_conv_out
from gtmsm.kernels.layers.frame_windows import frame_windows


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; at first nothing but the shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(
        self, x: Float[Tensor, "n channel height width"], active: Float[Tensor, "n channel height width"]
    ) -> tuple[Float[Tensor, "n channel height width"], Float[Tensor, "n channel height width"]]:
        """From x and SiLU(x), the block's result and SiLU of that."""
        inner = activated(_convolved(active, self.first), self.first.bias, "silu")
        return shortcut(x, _convolved(inner, self.second), self.second.bias, "silu")


class SpatialEncoder(nn.Sequential):
    """Two stages, each of half the resolution, and a linear map of every patch."""

    def __init__(self, channels: int, deep: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(channels, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2), nn.SiLU(),
            nn.Conv2d(deep // 2, deep, 4, stride=2, padding=1), _Residual(deep), _Residual(deep), nn.SiLU(),
            nn.Conv2d(deep, outputs, 1), nn.Flatten(),
        )  # fmt: skip

    def forward(
        self, x: Float[Tensor, "m channel height width"], rows: Int64[Tensor, "n"] | None = None
    ) -> Float[Tensor, "n both"]:
        """Means of all patches, channel by channel, and log-variances, of every frame or of those that `rows` names."""
        begin, *layers, last, _ = self
        assert isinstance(begin, nn.Conv2d)
        x, active = shortcut(_windows_convolved(x, begin, rows), None, begin.get_parameter("bias"), "silu")
        patches = _features(layers, x, active).permute(0, 2, 3, 1)  # channels lie last, so that a patch is a row
        made = F.linear(patches, _as_it_lies(last), last.get_parameter("bias"))
        return made.permute(0, 3, 1, 2).flatten(1)


class SpatialDecoder(nn.Sequential):
    """The same backwards."""

    def __init__(self, channels: int, deep: int, grid: tuple[int, int], inputs: int) -> None:
        super().__init__(
            nn.Unflatten(1, (inputs, *grid)),
            nn.Conv2d(inputs, deep, 3, padding=1), _Residual(deep), _Residual(deep), nn.SiLU(),
            nn.ConvTranspose2d(deep, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2), nn.SiLU(),
            nn.ConvTranspose2d(deep // 2, deep // 2, 4, stride=2, padding=1), _Residual(deep // 2), nn.SiLU(),
            nn.Conv2d(deep // 2, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, z: Float[Tensor, "n Z"]) -> Float[Tensor, "n channel height width"]:
        """Logits of pixels."""
        unflatten, *layers, last = self
        patches = unflatten(z)
        made = _features(layers, patches, patches)  # codes are not activated
        return edge_conv_out(made, last.get_parameter("weight"), last.get_parameter("bias"))


def _features(
    layers: Iterable[nn.Module],
    x: Float[Tensor, "n channel height width"],
    active: Float[Tensor, "n channel height width"],
) -> Float[Tensor, "n deep high wide"]:
    """What the last of these layers makes of x and SiLU(x), with its own SiLU."""
    for layer in layers:
        if isinstance(layer, _Residual):
            x, active = layer(x, active)
        elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            x, active = shortcut(_convolved(active, layer), None, layer.get_parameter("bias"), "silu")
        else:
            assert isinstance(layer, nn.SiLU)  # has been done with what it is applied to
    return active


def _convolved(
    x: Float[Tensor, "n inputs height width"], layer: nn.Conv2d | nn.ConvTranspose2d
) -> Float[Tensor, "n outputs high wide"]:
    """A layer without its bias."""
    return convolve(x, layer.weight, layer.stride[0], _padding(layer)[0], isinstance(layer, nn.ConvTranspose2d))


def _windows_convolved(
    x: Float[Tensor, "m channel height width"], layer: nn.Conv2d, rows: Int64[Tensor, "n"] | None
) -> Float[Tensor, "n outputs high wide"]:
    """A layer without its bias, as a product of all windows that it looks at in frames that `rows` names.

    For the first one: libraries are bad at convolving three channels, and windows of 4x4 pixels, two pixels apart, are
    only four times as many numbers.
    """
    (high, wide), (below, right) = layer.kernel_size, layer.stride
    windows = frame_windows(x, (high, wide), (below, right), _padding(layer), rows, between_layers(x))
    return F.linear(windows, _as_it_lies(layer)).permute(0, 3, 1, 2)


def _padding(layer: nn.Conv2d | nn.ConvTranspose2d) -> tuple[int, int]:
    """Above and beside a picture; PyTorch also knows words for it, which we do not use."""
    assert not isinstance(layer.padding, str)
    above, beside = layer.padding
    return above, beside


def _as_it_lies(layer: nn.Module) -> Float[Tensor, "outputs inputs"]:
    """The weight of a convolution as a matrix, its channels last: nothing is copied, nor is its gradient."""
    return layer.get_parameter("weight").permute(0, 2, 3, 1).flatten(1)
