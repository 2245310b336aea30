"""The recurrent state-space model of PlaNet and Dreamer (Hafner et al., 2019, 2020), with Gaussian states."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.recurrence import LoopLayer, by_time, fused, started, summed
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses

LEAST_SCALE = 0.1
"""Minimum standard deviation of the stochastic state."""
TO_PRIOR, TO_POSTERIOR, FREE = 0.5, 0.1, 1.0
"""Weights of the KL that trains the prior and of that which trains the posterior, and free nats (DreamerV3). With equal
weights a state would cost as many nats as it saves, so that it would carry no information."""


class Rssm(Rival):
    """h_t = GRU(h_{t-1}, (s_{t-1}, a_t)); prior p(s_t | h_t), posterior q(s_t | h_t, z_t); p(z_t | h_t, s_t).

    Memorised steps use the posterior, whose KL is a cost; steps of the plan use the prior. Being a recurrence, it loops
    over time.
    """

    context = "a state of {width} + {stochastic}"
    costs = ("state_kl", "context_kl")

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width, size = about.rival.width, about.rival.stochastic
        self.into = nn.Linear(size + about.action_size, width)
        self.cell = nn.GRUCell(width, width)
        self.prior = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, 2 * size))
        self.posterior = nn.Sequential(nn.Linear(width + self.code_size, width), nn.ELU(), nn.Linear(width, 2 * size))
        self.project = nn.Sequential(nn.Linear(width + size, width), nn.ELU())
        self.head = GaussianHead(width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; filter the memorised steps, then roll out the prior. Without a generator states are means."""
        tau, steps = a.shape[1], a.shape[1] + plan.shape[1]
        size = (len(a), steps, self.settings.stochastic)
        noise = a.new_zeros(size) if generator is None else torch.randn(size, device=a.device, generator=generator)
        with torch.autocast(a.device.type, enabled=False):  # rounding errors would add up over hundreds of steps
            h, s, believed = self.roll(code.mean, torch.cat([a, plan], dim=1), noise.to(a.dtype))
            expected = gaussian(*self.prior(h[:, :tau]).chunk(2, dim=-1))
            z = self.head(self.project(torch.cat([h, s], dim=-1)))
        costs = {"state_kl": balanced(believed, expected), "context_kl": code.divergence(z[:, :tau])}
        return Predicted(z[:, tau:], costs)

    def roll(
        self,
        seen: Float[Tensor, "batch tau Z"],
        actions: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time stochastic"],
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time stochastic"], Gaussian]:
        """Deterministic and stochastic states of all steps, and the posteriors of the memorised ones."""
        (batch, steps), tau, cell = actions.shape[:2], seen.shape[1], self.cell
        size, every = self.settings.stochastic, (steps, batch, -1)
        inward = self.into.weight[:, :size], self.into.weight[:, size:]
        into = LoopLayer(inward[0], F.linear(by_time(actions), inward[1], self.into.bias))
        gates = (
            LoopLayer(cell.weight_ih, cell.bias_ih.expand(every)),
            LoopLayer(cell.weight_hh, cell.bias_hh.expand(every)),
        )
        believe = (
            Believing(self.posterior, cell, by_time(seen)),
            Believing(self.prior, cell, by_time(actions[:, tau:, :0])),
        )
        step, weights = fused(one_step, actions.device), (inward[0].detach(), cell.weight_ih.detach())
        h, s, both = started(actions, cell.hidden_size), started(actions, size), started(actions, 4 * cell.hidden_size)
        told = []
        for t, drawn in enumerate(by_time(noise).unbind(0)):
            belief, k = believe[t >= tau], t - tau if t >= tau else t
            into.note(s)
            gates[1].note(h)
            added = into.added[t], gates[0].added[t], gates[1].added[t], belief.first.added[k], belief.second.added[k]
            h, s, both, mean, scale, x, hidden = step(h, s, both, drawn, *added, *weights, *belief.weights)
            gates[0].note(x)
            belief.first.note(h)
            belief.second.note(hidden)
            told.append((h, s, mean, scale))
        hs, states, means, scales = (torch.stack(parts, dim=1) for parts in zip(*told, strict=True))
        return hs, states, gaussian(means[:, :tau], scales[:, :tau])


class Believing:
    """The network of a posterior or a prior in the loop; its first product, by h, is computed with the GRU's."""

    def __init__(self, network: nn.Sequential, cell: nn.GRUCell, known: Float[Tensor, "time batch known"]) -> None:
        first, second = network[0], network[2]
        assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
        of_h, of_known = first.weight[:, : cell.hidden_size], first.weight[:, cell.hidden_size :]
        self.first = LoopLayer(of_h, F.linear(known, of_known, first.bias))
        self.second = LoopLayer(second.weight, second.bias.expand(*known.shape[:2], -1))
        self.weights = torch.cat([cell.weight_hh, of_h]).detach(), second.weight.detach()


def one_step(
    h: Float[Tensor, "batch width"],
    s: Float[Tensor, "batch stochastic"],
    both: Float[Tensor, "batch four_widths"],
    drawn: Float[Tensor, "batch stochastic"],
    into: Float[Tensor, "batch width"],
    by_input: Float[Tensor, "batch gates"],
    by_state: Float[Tensor, "batch gates"],
    first: Float[Tensor, "batch width"],
    second: Float[Tensor, "batch two_states"],
    W_into: Float[Tensor, "width stochastic"],
    W_input: Float[Tensor, "gates width"],
    W_both: Float[Tensor, "four_widths width"],
    W_second: Float[Tensor, "two_states width"],
) -> tuple[Tensor, ...]:
    """A step of the GRU and of the network after it; `both` is h times W_both, computed at the previous step.

    `into` to `second` are the parts of layers computed before the loop. Returns the next h, s and `both`, the network's
    mean and scale outputs, and the inputs of W_input and W_second.
    """
    x = F.elu(into + s @ W_into.mT)
    *state_parts, _ = both.chunk(4, dim=-1)
    i_reset, i_update, i_new = summed(by_input.chunk(3, dim=-1), (x @ W_input.mT).chunk(3, dim=-1))
    h_reset, h_update, h_new = summed(by_state.chunk(3, dim=-1), state_parts)
    new = (i_new + (i_reset + h_reset).sigmoid() * h_new).tanh()
    h = new + (i_update + h_update).sigmoid() * (h - new)
    both = h @ W_both.mT
    hidden = F.elu(first + both.chunk(4, dim=-1)[-1])
    mean, scale = summed(second.chunk(2, dim=-1), (hidden @ W_second.mT).chunk(2, dim=-1))
    return h, mean + drawn * scale_of(scale), both, mean, scale, x.detach(), hidden.detach()


def balanced(posterior: Gaussian, prior: Gaussian) -> Float[Tensor, "batch tau"]:
    """Balanced KL of posterior and prior: a part that trains the prior, and one that trains the posterior."""
    held, aim = (Gaussian(part.mean.detach(), part.log_var.detach()) for part in (posterior, prior))
    to_prior, to_posterior = held.divergence(prior), posterior.divergence(aim)
    return TO_PRIOR * to_prior.clamp_min(FREE) + TO_POSTERIOR * to_posterior.clamp_min(FREE)


def gaussian(mean: Float[Tensor, "*batch stochastic"], scale: Float[Tensor, "*batch stochastic"]) -> Gaussian:
    """The Gaussian given by a network's mean and scale outputs."""
    return Gaussian(mean, 2 * scale_of(scale).log())


def scale_of(told: Float[Tensor, "*batch stochastic"]) -> Float[Tensor, "*batch stochastic"]:
    """The standard deviation given by a network's scale output."""
    return F.softplus(told).clamp_min(LEAST_SCALE)
