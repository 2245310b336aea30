"""A GRU: all that was seen must fit into its state."""

import torch
from torch import nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, as_tokens, token_size
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses


class Gru(Rival):
    """h_t = GRU(h_{t-1}, (z_t or nothing, a_t)); p(z_t | h_t). It loops over time, since it is a recurrence."""

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
        """The state after each action of the plan tells what is seen."""
        with torch.autocast(a.device.type, enabled=False):  # hundreds of roundings would add up
            h, _ = self.recurrence(as_tokens(code.mean, a, plan))
            h = self.mix(torch.cat([h[:, a.shape[1] :], plan], dim=-1))
        return Predicted(self.head(h))


@torch.no_grad()
def remember(recurrence: nn.RNNBase | nn.RNNCellBase) -> None:
    """Begin with update gates that rather keep the state than replace it."""
    for name, bias in recurrence.named_parameters():
        if name.startswith("bias_hh"):
            _, update, _ = bias.chunk(3)
            update += 1
