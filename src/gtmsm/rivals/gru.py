"""A GRU: all that was seen must fit into its state."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, TruePoses, as_tokens, token_size
from gtmsm.tensors import Actions, Gaussian


class Gru(Rival):
    """h_t = GRU(h_{t-1}, (z_t or nothing, a_t)); p(z_t | h_t). It loops over time, since it is a recurrence."""

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width = about.rival.width
        self.recurrence = nn.GRU(token_size(about), width, about.rival.layers, batch_first=True)
        self.head = GaussianHead(width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: Float[Tensor, "batch horizon A"],
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """The state after each action of the plan tells what is seen."""
        with torch.autocast(a.device.type, enabled=False):  # hundreds of roundings would add up
            h, _ = self.recurrence(as_tokens(code.mean, a, plan))
        return Predicted(self.head(h[:, a.shape[1] :]))
