"""Dense layers with ELU between them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.kernels.dense_layer import dense_layer


class Mlp(nn.Sequential):
    """Linear layers of these sizes, ELU after all but the last; pictures come in flat or not."""

    def __init__(self, *sizes: int, pictures: bool = False) -> None:
        layers: list[nn.Module] = [nn.Flatten()] if pictures else []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
        super().__init__(*layers[:-1])

    def forward(self, x: Float[Tensor, "m *inputs"], rows: Int64[Tensor, "n"] | None = None) -> Float[Tensor, "n out"]:
        """What comes out for every row of x, or for those that `rows` names; in half precision under autocast."""
        x = x.flatten(1)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        layers = [layer for layer in self if isinstance(layer, nn.Linear)]
        for layer in layers:
            x = dense_layer(x, layer.weight, layer.bias, layer is not layers[-1], rows)
            rows = None
        return x
