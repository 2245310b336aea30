"""Generative temporal models with memory (Gemici et al., 2017): an LSTM that reads the codes of earlier steps."""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.recurrence import LoopLayer, Rows, Step, by_time, fused, started, summed
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses


class Gtmm(Rival):
    """h_t = LSTM(h_{t-1}, (z_{t-1}, a_t, reads)); several reads of the codes before t, gated; p(z_t | h_t, reads).

    In a plan the mean of the prior replaces the code: it is fed back and stored. As a recurrence it loops over time.
    """

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width, reads = about.rival.width, about.rival.heads * self.code_size
        self.controller = nn.LSTMCell(self.code_size + about.action_size + reads, width)
        self.gate = nn.Linear(width, reads)
        self.mix, self.head = nn.Linear(width + reads, width), GaussianHead(width + reads, self.code_size)

    control: ClassVar[Step]
    """A step of the LSTM, and its query to the memory."""

    @abstractmethod
    def asking(self, steps: int) -> tuple[Float[Tensor, "asked width"], Float[Tensor, "#time 1 asked"]]:
        """Weight and bias of the layer that makes queries from the LSTM's state, at each of `steps` steps."""

    @abstractmethod
    def remember(self, seen: Float[Tensor, "batch tau Z"], steps: int) -> Rows:
        """A memory of the codes seen, for `steps` steps in all."""

    @abstractmethod
    def add(self, z: Float[Tensor, "batch Z"], rows: Rows, there: int) -> None:
        """Store a code after the `there` codes stored already."""

    @abstractmethod
    def read(self, query: Float[Tensor, "batch heads any"], rows: Rows, there: int) -> Float[Tensor, "batch heads Z"]:
        """Weighted sums of the `there` stored codes."""

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; the loop runs through the memorised steps, then through the plan."""
        with torch.autocast(a.device.type, enabled=False):  # rounding errors would add up over hundreds of steps
            return Predicted(self.head(self._walk(code.mean, torch.cat([a, plan], dim=1))))

    def _walk(
        self, seen: Float[Tensor, "batch tau Z"], actions: Float[Tensor, "batch time A"]
    ) -> Float[Tensor, "batch horizon inputs"]:
        """Inputs of the head at each step of the plan."""
        (batch, tau, Z), steps, cell = seen.shape, actions.shape[1], self.controller
        asked, bias = self.asking(steps)
        W_z, W_a, W_read = cell.weight_ih.split([Z, self.action_size, self.gate.out_features], dim=1)
        W_state, W_told = torch.cat([cell.weight_hh, W_read, W_z], dim=1), torch.cat([self.gate.weight, asked])
        gates = LoopLayer(W_state, F.linear(by_time(actions), W_a, cell.bias_ih + cell.bias_hh))
        bias = torch.cat([self.gate.bias.expand(len(bias), 1, -1), bias], dim=-1)
        told = LoopLayer(W_told, bias.expand(steps, batch, -1))
        mix = LoopLayer(self.mix.weight, self.mix.bias.expand(steps - tau, batch, -1))
        mean = LoopLayer(self.head.weight[:Z], self.head.bias[:Z].expand(steps - tau, batch, -1))
        weights = W_state.detach(), W_told.detach()
        sizes = self.settings.heads, self.gate.out_features
        telling = self.mix.weight.detach(), self.head.weight[:Z].detach()

        control, keep, tell = (fused(step, seen.device) for step in (type(self).control, gated, predict_code))
        rows, codes = self.remember(seen, steps), by_time(seen).unbind(0)
        state, c = started(seen, W_state.shape[1]), started(seen, cell.hidden_size)
        given = []
        for t in range(steps):
            gates.note(state)
            h, c, gate, query = control(state, c, gates.added[t], told.added[t], *weights, *sizes)
            told.note(h)
            found = self.read(query, rows, t).flatten(1)
            if t < tau:
                state = keep(h, gate, found, codes[t])
                continue
            state, z, inputs = tell(h, gate, found, mix.added[t - tau], mean.added[t - tau], *telling)
            mix.note(state[:, :-Z])
            mean.note(inputs)
            given.append(inputs)
            self.add(z, rows, t)
        return torch.stack(given, dim=1)


def lstm(
    state: Float[Tensor, "batch inputs"],
    c: Float[Tensor, "batch width"],
    gates: Float[Tensor, "batch gates"],
    W_state: Float[Tensor, "gates inputs"],
) -> tuple[Float[Tensor, "batch width"], Float[Tensor, "batch width"]]:
    """The next h and c; `gates` is added to the product of the state and its weights."""
    enter, forget, new, leave = summed(gates.chunk(4, dim=-1), (state @ W_state.mT).chunk(4, dim=-1))
    c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def gated(
    h: Float[Tensor, "batch width"],
    gate: Float[Tensor, "batch reads"],
    found: Float[Tensor, "batch reads"],
    z: Float[Tensor, "batch Z"],
) -> Float[Tensor, "batch inputs"]:
    """Input of the LSTM's next step if z was seen."""
    return torch.cat([h, gate.sigmoid() * found, z], dim=-1)


def predict_code(
    h: Float[Tensor, "batch width"],
    gate: Float[Tensor, "batch reads"],
    found: Float[Tensor, "batch reads"],
    mix: Float[Tensor, "batch width"],
    mean: Float[Tensor, "batch Z"],
    W_mix: Float[Tensor, "width both"],
    W_mean: Float[Tensor, "Z both"],
) -> tuple[Tensor, Tensor, Tensor]:
    """If z was not seen: input of the LSTM's next step; the predicted z; and the features that it is predicted from."""
    read = gate.sigmoid() * found
    both = torch.cat([h, read], dim=-1)
    given = torch.cat([F.elu(mix + both @ W_mix.mT), read], dim=-1)
    z = mean + given @ W_mean.mT
    return torch.cat([both, z], dim=-1), z, given


def by_age(
    state: Tensor, c: Tensor, gates: Tensor, told: Tensor, W_state: Tensor, W_told: Tensor, heads: int, reads: int
) -> tuple[Tensor, ...]:
    """h and c, gates of the reads, and a softmax over ages for each head."""
    h, c = lstm(state, c, gates, W_state)
    sizes = [reads, told.shape[-1] - reads]
    gate, ages = summed(told.split(sizes, dim=-1), (h @ W_told.mT).split(sizes, dim=-1))
    return h, c, gate, ages.unflatten(-1, (heads, -1)).softmax(-1)


def by_content(
    state: Tensor, c: Tensor, gates: Tensor, told: Tensor, W_state: Tensor, W_told: Tensor, heads: int, reads: int
) -> tuple[Tensor, ...]:
    """h and c, gates of the reads, and a key for each head, whose norm is its strength."""
    h, c = lstm(state, c, gates, W_state)
    sizes = [reads, reads, heads]
    gate, key, strength = summed(told.split(sizes, dim=-1), (h @ W_told.mT).split(sizes, dim=-1))
    direction = F.normalize(key.unflatten(-1, (heads, -1)), dim=-1)
    return h, c, gate, (1 + F.softplus(strength))[..., None] * direction


def with_direction(z: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch row"]:
    """A code, and the same normalised."""
    return torch.cat([z, F.normalize(z, dim=-1)], dim=-1)


class GtmmIntrospection(Gtmm):
    """Reads by age: the controller chooses how many steps to look back."""

    context = "the latest {rows} codes, and a state of {width}"
    control = by_age

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        self.ages = nn.Linear(about.rival.width, about.rival.heads * about.rival.rows)

    def asking(self, steps: int) -> tuple[Float[Tensor, "asked width"], Float[Tensor, "#time 1 asked"]]:
        """The layer of the logits of ages; ages that do not exist yet get a bias of -inf."""
        per_head, reach = (self.settings.heads, self.settings.rows), self.reach(steps)
        weight, bias = (part.unflatten(0, per_head)[:, :reach] for part in (self.ages.weight, self.ages.bias))
        age, t = (torch.arange(most, device=bias.device) for most in (reach, steps))
        early = (age >= t[:, None]) & (t[:, None] > 0)  # not at step 0, where all rows are 0 whatever their weight
        every = bias.expand(steps, 1, *bias.shape).masked_fill(early[:, None, None], -torch.inf)
        return weight.flatten(0, 1), every.flatten(2)

    def reach(self, steps: int) -> int:
        """Number of latest codes that can be read."""
        return max(1, min(self.settings.rows, steps - 1))

    def remember(self, seen: Float[Tensor, "batch tau Z"], steps: int) -> Rows:
        """A memory of the codes seen, for `steps` steps in all."""
        return Rows(seen, steps, self.reach(steps))

    def add(self, z: Float[Tensor, "batch Z"], rows: Rows, there: int) -> None:
        """Store a code after the `there` codes stored already."""
        rows.write(z[:, None], there)

    def read(self, query: Float[Tensor, "batch heads any"], rows: Rows, there: int) -> Float[Tensor, "batch heads Z"]:
        """Sums of the latest codes, weighted by age."""
        return rows.times(query, there, slice(self.code_size))


class GtmmContent(Gtmm):
    """Reads by content: a softmax over the cosines of a key and the stored codes, times the key's strength."""

    context = "all codes, and a state of {width}"
    control = by_content

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        self.keys = nn.Linear(about.rival.width, about.rival.heads * (self.code_size + 1))

    def asking(self, steps: int) -> tuple[Float[Tensor, "asked width"], Float[Tensor, "#time 1 asked"]]:
        """The layer of keys, then of their strengths."""
        per_head = self.settings.heads, self.code_size + 1
        parts = (part.unflatten(0, per_head) for part in (self.keys.weight, self.keys.bias))
        weight, bias = (torch.cat([part[:, :-1].flatten(0, 1), part[:, -1]]) for part in parts)
        return weight, bias[None, None]

    def remember(self, seen: Float[Tensor, "batch tau Z"], steps: int) -> Rows:
        """A memory of the codes seen and their directions, for `steps` steps in all."""
        return Rows(with_direction(seen), steps, 1)

    def add(self, z: Float[Tensor, "batch Z"], rows: Rows, there: int) -> None:
        """Store a code after the `there` codes stored already."""
        rows.write(fused(with_direction, z.device)(z)[:, None], there)

    def read(self, query: Float[Tensor, "batch heads any"], rows: Rows, there: int) -> Float[Tensor, "batch heads Z"]:
        """Sums of the stored codes, weighted by a softmax over similarities; at the first step the empty row, 0."""
        Z = self.code_size
        alike = rows.alike(query, there, slice(Z, None), max(1, there))
        return rows.times(alike.softmax(-1), there, slice(Z))
