"""Dense layers with ELU between them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.kernels.layers.dense_layer import dense_layer


class Mlp(nn.Sequential):
    """Linear layers of these sizes, ELU after all but the last; pictures come in flat or not."""

    def __init__(self, *sizes: int, pictures: bool = False) -> None:
        layers: list[nn.Module] = [nn.Flatten()] if pictures else []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
        super().__init__(*layers[:-1])

    def forward(self, x: Float[Tensor, "m *inputs"], rows: Int64[Tensor, "n"] | None = None) -> Float[Tensor, "n out"]:
        """What comes out for every row of x, or for those that `rows` names, in the precision of x.

        Under autocast, products and what lies between layers are in half precision.
        """
        x = x.flatten(1)
        half = torch.is_autocast_enabled(x.device.type)
        layers = [layer for layer in self if isinstance(layer, nn.Linear)]
        precision = x.dtype if x.is_floating_point() else layers[0].weight.dtype
        for layer in layers:
            last = layer is layers[-1]
            made = torch.bfloat16 if half and not last else precision
            x = dense_layer(x, layer.weight, layer.bias, not last, rows, half, made)
            rows = None
        return x
