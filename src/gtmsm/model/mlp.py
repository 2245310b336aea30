"""Dense layers with ELU between them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.layers.dense_layer import dense_layer


class Mlp(nn.Sequential):
    """Linear layers of these sizes, with ELU after all but the last; `pictures`: inputs are flattened first."""

    def __init__(self, *sizes: int, pictures: bool = False) -> None:
        layers: list[nn.Module] = [nn.Flatten()] if pictures else []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
        super().__init__(*layers[:-1])

    def forward(self, x: Float[Tensor, "n *inputs"], made: torch.dtype | None = None) -> Float[Tensor, "n out"]:
        """The last layer's output, in the type of x or in `made`; under autocast, hidden layers are in bfloat16."""
        x, made = x.flatten(1), made or x.dtype
        hidden = between_layers(x)
        *first, last = (layer for layer in self if isinstance(layer, nn.Linear))
        for layer in first:
            x = dense_layer(x, layer.weight, layer.bias, True, hidden)
        return dense_layer(x, last.weight, last.bias, False, made)


def between_layers(x: Tensor) -> torch.dtype:
    """The type of activations between layers: that of autocast, or else that of x."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.is_floating_point() else torch.float32


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """The two parameters of a linear layer, a convolution or a norm, typed."""
    return layer.get_parameter("weight"), layer.get_parameter("bias")
