"""The recurrent state-space model of PlaNet and Dreamer (Hafner et al., 2019, 2020), with Gaussian states."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses

LEAST_SCALE = 0.1
"""Standard deviations of the stochastic state are at least this."""
TO_PRIOR, TO_POSTERIOR, FREE = 0.5, 0.1, 1.0
"""Of the divergence of the two, how much trains the prior and how much the posterior, above so many nats (DreamerV3).
With equal weights a state would cost as many nats as it saves, and would tell nothing."""


class Rssm(Rival):
    """h_t = GRU(h_{t-1}, (s_{t-1}, a_t)); prior p(s_t | h_t), posterior q(s_t | h_t, z_t); p(z_t | h_t, s_t).

    Memorised steps go by the posterior, and pay for it; steps of the plan by the prior. It loops over time, since it is
    a recurrence.
    """

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
        """Filter what was seen, then roll the prior out; without a generator by the means."""
        tau, steps = a.shape[1], a.shape[1] + plan.shape[1]
        size = (len(a), steps, self.settings.stochastic)
        noise = a.new_zeros(size) if generator is None else torch.randn(size, device=a.device, generator=generator)
        with torch.autocast(a.device.type, enabled=False):  # hundreds of roundings would add up
            h, s, believed = self.roll(code.mean, torch.cat([a, plan], dim=1), noise.to(a.dtype))
            expected = split(self.prior(h[:, :tau]))
            z = self.head(self.project(torch.cat([h, s], dim=-1)))
        costs = {"state_kl": balanced(believed, expected), "context_kl": code.divergence(z[:, :tau])}
        return Predicted(z[:, tau:], costs)

    def roll(
        self,
        seen: Float[Tensor, "batch tau Z"],
        actions: Float[Tensor, "batch time A"],
        noise: Float[Tensor, "batch time stochastic"],
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time stochastic"], Gaussian]:
        """Deterministic and stochastic states of all steps, and the posteriors of those that were seen."""
        h, s = actions.new_zeros(len(actions), self.settings.width), torch.zeros_like(noise[:, 0])
        deterministic, stochastic, means, log_vars = [], [], [], []
        for t, (action, drawn) in enumerate(zip(actions.unbind(1), noise.unbind(1), strict=True)):
            h = self.cell(F.elu(self.into(torch.cat([s, action], dim=-1))), h)
            if t < seen.shape[1]:
                belief = split(self.posterior(torch.cat([h, seen[:, t]], dim=-1)))
                means.append(belief.mean)
                log_vars.append(belief.log_var)
            else:
                belief = split(self.prior(h))
            s = belief.mean + drawn * (0.5 * belief.log_var).exp()
            deterministic.append(h)
            stochastic.append(s)
        posterior = Gaussian(torch.stack(means, 1), torch.stack(log_vars, 1))
        return torch.stack(deterministic, 1), torch.stack(stochastic, 1), posterior


def balanced(posterior: Gaussian, prior: Gaussian) -> Float[Tensor, "batch tau"]:
    """Their divergence, in parts that train the prior and the posterior."""
    held, aim = (Gaussian(part.mean.detach(), part.log_var.detach()) for part in (posterior, prior))
    to_prior, to_posterior = held.divergence(prior), posterior.divergence(aim)
    return TO_PRIOR * to_prior.clamp_min(FREE) + TO_POSTERIOR * to_posterior.clamp_min(FREE)


def split(both: Float[Tensor, "*batch two_states"]) -> Gaussian:
    """A Gaussian from its mean and what its scale is the softplus of."""
    mean, scale = both.chunk(2, dim=-1)
    return Gaussian(mean, 2 * F.softplus(scale).clamp_min(LEAST_SCALE).log())
