"""Generative temporal models with memory (Gemici et al., 2017): an LSTM that reads the codes of earlier steps."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses


class Gtmm(Rival):
    """h_t = LSTM(h_{t-1}, (z_{t-1}, a_t, reads)); several reads of the codes before t, gated; p(z_t | h_t, reads).

    In a plan, the mean of the prior stands for the code: it is fed back and stored. It loops over time, since it is a
    recurrence.
    """

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width, reads = about.rival.width, about.rival.heads * self.code_size
        self.controller = nn.LSTMCell(self.code_size + about.action_size + reads, width)
        self.gate = nn.Linear(width, reads)
        self.mix, self.head = nn.Linear(width + reads, width), GaussianHead(width + reads, self.code_size)

    @abstractmethod
    def weigh(
        self, h: Float[Tensor, "batch width"], rows: Float[Tensor, "batch n Z"]
    ) -> Float[Tensor, "batch heads reached"]:
        """How much each head reads of each stored code; the latest code is the last row."""

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """Walk through what was seen, then through the plan."""
        with torch.autocast(a.device.type, enabled=False):  # hundreds of roundings would add up
            prior = self._walk(code.mean, a, plan)
        return Predicted(Gaussian(*(torch.stack(parts, dim=1) for parts in zip(*prior, strict=True))))

    def _walk(self, seen: Float[Tensor, "batch tau Z"], a: Actions, plan: FutureActions) -> list[tuple[Tensor, Tensor]]:
        """Mean and log-variance of the prior at each step of the plan."""
        tau, batch, prior = a.shape[1], len(a), []
        h = c = a.new_zeros(batch, self.settings.width)
        read, z, rows = a.new_zeros(batch, self.gate.out_features), torch.zeros_like(seen[:, 0]), seen[:, :0]
        for t, action in enumerate((*a.unbind(1), *plan.unbind(1))):
            h, c = self.controller(torch.cat([z, action, read], dim=-1), (h, c))
            if t > 0:
                found = (self.weigh(h, rows) @ rows[:, -self.reach :]).flatten(1)
                read = self.gate(h).sigmoid() * found
            if t < tau:
                z, rows = seen[:, t], seen[:, : t + 1]
                continue
            both = torch.cat([h, read], dim=-1)
            told = self.head(torch.cat([F.elu(self.mix(both)), read], dim=-1))
            prior.append((told.mean, told.log_var))
            z = told.mean
            rows = torch.cat([rows, z[:, None]], dim=1)
        return prior

    @property
    def reach(self) -> int:
        """How many of the latest codes can be read; 0: all."""
        return 0


class GtmmIntrospection(Gtmm):
    """Reads by age: the controller says how many steps ago to look."""

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        self.ages = nn.Linear(about.rival.width, about.rival.heads * about.rival.rows)

    def weigh(
        self, h: Float[Tensor, "batch width"], rows: Float[Tensor, "batch n Z"]
    ) -> Float[Tensor, "batch heads reached"]:
        """A softmax over the ages that there are."""
        ages = self.ages(h).unflatten(-1, (self.settings.heads, self.settings.rows))[..., : rows.shape[1]]
        return ages.flip(-1).softmax(-1)

    @property
    def reach(self) -> int:
        """Codes that are older are out of reach."""
        return self.settings.rows


class GtmmContent(Gtmm):
    """Reads by content: a key is compared with every stored code by its cosine, and a strength sharpens that."""

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        self.keys = nn.Linear(about.rival.width, about.rival.heads * (self.code_size + 1))

    def weigh(
        self, h: Float[Tensor, "batch width"], rows: Float[Tensor, "batch n Z"]
    ) -> Float[Tensor, "batch heads reached"]:
        """A softmax over similarities."""
        key, strength = self.keys(h).unflatten(-1, (self.settings.heads, -1)).split([self.code_size, 1], dim=-1)
        alike = F.normalize(key, dim=-1) @ F.normalize(rows, dim=-1).mT
        return ((1 + F.softplus(strength)) * alike).softmax(-1)
