"""A selective state-space model, Mamba (Gu and Dao, 2023), by mambapy, which is plain PyTorch."""

from typing import Any

import torch
from torch import nn

from gtmsm.errors import InputError
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, as_tokens, token_size
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses


class Ssm(Rival):
    """Tokens (z_t or nothing, a_t), layers of Mamba by a parallel scan, p(z_t | tokens up to t)."""

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
        """The tokens of the plan, after the scan, tell what is seen."""
        with torch.autocast(a.device.type, enabled=False):  # its scan multiplies hundreds of numbers near 1
            h = self.layers(self.embed(as_tokens(code.mean, a, plan)))
        return Predicted(self.head(self.norm(h[:, a.shape[1] :])))


def build_mamba(width: int, layers: int) -> Any:
    """Layers of Mamba; refuses in one line where mambapy is not installed."""
    try:
        from mambapy.mamba import Mamba, MambaConfig
    except ImportError:
        raise InputError('the rival ssm needs mambapy, which is not installed; pip install "gtmsm[mamba]"') from None
    return Mamba(MambaConfig(d_model=width, n_layers=layers))
