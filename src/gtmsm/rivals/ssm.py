"""A selective state-space model, Mamba (Gu and Dao, 2023), as implemented by mambapy in plain PyTorch."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.errors import InputError
from gtmsm.rivals.recurrence import by_time, fused, started
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, as_tokens, token_size
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses

TOGETHER = 8
"""Steps of a scan that are compiled together."""


class Ssm(Rival):
    """Tokens (z_t or 0, a_t), layers of Mamba, p(z_t | tokens up to t)."""

    context = "{layers} states of {width} x 32"

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width = about.rival.width
        self.embed, self.layers = nn.Linear(token_size(about), width), build_mamba(width, about.rival.layers)
        self.norm, self.head = nn.LayerNorm(width), GaussianHead(width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; the prior is read from the plan's tokens after the scan."""
        with torch.autocast(a.device.type, enabled=False):  # the scan multiplies hundreds of numbers near 1
            h = self.layers(self.embed(as_tokens(code.mean, a, plan)))
        return Predicted(self.head(self.norm(h[:, a.shape[1] :])))


def build_mamba(width: int, layers: int) -> Any:
    """Layers of Mamba that use `selective_scan`; raises an error if mambapy is not installed."""
    try:
        from mambapy.mamba import Mamba, MambaConfig
    except ImportError:
        raise InputError('the rival ssm needs mambapy, which is not installed; pip install "gtmsm[mamba]"') from None
    made = Mamba(MambaConfig(d_model=width, n_layers=layers))
    for layer in made.layers:
        layer.mixer.selective_scan = selective_scan
    return made


def selective_scan(
    x: Float[Tensor, "batch time size"],
    delta: Float[Tensor, "batch time size"],
    decay: Float[Tensor, "size states"],
    b: Float[Tensor, "batch time states"],
    c: Float[Tensor, "batch time states"],
    skip: Float[Tensor, "size"],
) -> Float[Tensor, "batch time size"]:
    """h_t = exp(delta_t decay) h_t-1 + delta_t x_t b_t, y_t = c_t h_t + skip x_t, as a loop over time.

    Mambapy's own scan gives the same result, but keeps the states of all steps in memory, which fills a GPU, and reads
    them many times.
    """
    time = x.shape[1]
    none = -time % TOGETHER  # padding that changes no state, so that no shorter block has to be compiled
    parts = [F.pad(by_time(one), (0, 0, 0, 0, 0, none)).split(TOGETHER) for one in (delta, delta * x, b, c)]
    some_steps, y = fused(_some_steps, x.device), list[Tensor]()
    h = started(x, decay.numel()).view(len(x), *decay.shape)
    for some in zip(*parts, strict=True):
        h, seen = some_steps(h, decay, *some)
        y.append(seen)
    return torch.cat(y)[:time].transpose(0, 1) + skip * x


def _some_steps(h: Tensor, decay: Tensor, delta: Tensor, push: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The state after these steps, and the output y at each of them."""
    y = []
    for d, p, from_x, to_y in zip(delta.unbind(), push.unbind(), b.unbind(), c.unbind(), strict=True):
        h = (d[..., None] * decay).exp() * h + p[..., None] * from_x[:, None]
        y.append((h * to_y[:, None]).sum(-1))
    return h, torch.stack(y)
