"""The GQN prior of App. A.2: the view at the query pose, predicted from the retrieved views and their poses."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.model.mlp import Mlp, between_layers
from gtmsm.model.recall import Prior, RecallConfig, Retrieved, SingleView
from gtmsm.tensors import Gaussian


class QueryNetwork(Prior):
    """h = f({s_i, z_i}), then mean and variance from h and s_t.

    Poses are given relative to s_t, so that the same room seen from another start is the same task. With `poses`
    absolute they are given as they are, and s_t beside h, as in App. A.2. The mean is a correction of the weighted mean
    of the codes, so that a revisit is recalled even before training.
    """

    def __init__(self, settings: RecallConfig, code_size: int, place_size: int) -> None:
        super().__init__()
        width = settings.width
        self.absolute = settings.poses == "absolute"
        self.embed = Mlp(2 * code_size + place_size + 2, width, width, width)
        self.view = Mlp(2 * width + (place_size if self.absolute else 0), width, width, 2 * code_size)
        last = self.view[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, retrieved: Retrieved) -> SingleView:
        """Embed each view, pool them evenly and by nearness, and predict the code at the query pose."""
        code, log_weight = retrieved.code, retrieved.log_weight
        near = (retrieved.neighbours.distance2 + retrieved.delta).log()
        place, asked = self._poses(retrieved)
        entry = [code.mean, 0.1 * code.log_var, place, log_weight[..., None], 0.1 * near[..., None]]
        entries = torch.cat(entry, dim=-1).flatten(0, -2)
        h = self.embed(entries, between_layers(entries)).unflatten(0, log_weight.shape)
        weight = log_weight.exp()[..., None]
        pooled = torch.cat([h.mean(-2), (weight * h).sum(-2), *asked], dim=-1)
        change, log_var = self.view(pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2]).chunk(2, dim=-1)
        mean = (weight * code.mean).sum(-2) + change
        # Bounds far outside anything useful, so that an early overshoot cannot become a NaN.
        return SingleView(Gaussian(mean, F.hardtanh(log_var.to(mean.dtype), -8.0, 4.0)), retrieved.neighbours)

    def _poses(
        self, retrieved: Retrieved
    ) -> tuple[Float[Tensor, "batch time K P"], list[Float[Tensor, "batch time P"]]]:
        """Places of the entries; and that of the query in a list, which is empty if the entries are relative to it."""
        if not self.absolute:
            return retrieved.relative, []
        assert retrieved.find_absolute is not None
        place, asked = retrieved.find_absolute()
        return place, [asked]
