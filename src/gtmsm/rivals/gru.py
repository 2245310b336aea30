"""A GRU, whose state must hold all that was seen."""

import torch
from torch import nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, as_tokens, token_size
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses


class Gru(Rival):
    """h_t = GRU(h_{t-1}, (z_t or 0, a_t)); p(z_t | h_t). Being a recurrence, it loops over time."""

    context = "{layers} states of {width}"

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width = about.rival.width
        self.recurrence = nn.GRU(token_size(about), width, about.rival.layers, batch_first=True)
        inputs = width + about.action_size
        self.mix = nn.Sequential(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.head = GaussianHead(width, self.code_size)
        remember(self.recurrence)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; the prior is read from the state after each action of the plan."""
        with torch.autocast(a.device.type, enabled=False):  # rounding errors would add up over hundreds of steps
            h, _ = self.recurrence(as_tokens(code.mean, a, plan))
            h = self.mix(torch.cat([h[:, a.shape[1] :], plan], dim=-1))
        return Predicted(self.head(h))


@torch.no_grad()
def remember(recurrence: nn.RNNBase | nn.RNNCellBase) -> None:
    """Initialise the update gates so that they keep the state rather than replace it."""
    for name, bias in recurrence.named_parameters():
        if name.startswith("bias_hh"):
            _, update, _ = bias.chunk(3)
            update += 1
