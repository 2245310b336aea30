"""Who chooses the actions."""

import math
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gtmsm.config import config, require


@runtime_checkable
class Walker(Protocol):
    """Chooses what `n` agents do for the next `steps`, without looking."""

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """The index of an action for every agent and step, on the generator's device."""


@config
class PoissonWalkerConfig:
    """Random actions, each held for a while to get around (section 4.1)."""

    mean_repeats: float = 3.0
    """Mean of the Poisson number of repetitions after an action's first step (section 4.1 names no value)."""

    def __post_init__(self) -> None:
        """Refuse what is no mean, or holds an action for longer than any clip lasts."""
        require(
            math.isfinite(self.mean_repeats) and 0 <= self.mean_repeats <= 1000,
            f"mean_repeats is {self.mean_repeats}; expected a number from 0 (never repeat) to 1000",
        )


class PoissonWalker:
    """Uniformly random actions, each held for 1 + Poisson(mean_repeats) steps."""

    def __init__(self, config: PoissonWalkerConfig | None = None, actions: int = 5) -> None:
        """Choose among `actions` actions."""
        require(actions >= 1, f"asked for {actions} actions; a walker needs at least 1 to choose from")
        self.config = config or PoissonWalkerConfig()
        self.actions = actions

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Draw `steps` runs per agent (enough if none is repeated), then find the run of each step."""
        device = generator.device
        choices = torch.randint(self.actions, (n, steps), generator=generator, device=device)
        uniform = torch.rand(n, steps, dtype=torch.float64, generator=generator, device=device)
        repeats = torch.searchsorted(poisson_cdf(self.config.mean_repeats, device), uniform, right=True)
        ends = (1 + repeats).cumsum(1)
        time = torch.arange(steps, device=device).repeat(n, 1)
        return choices.gather(1, torch.searchsorted(ends, time, right=True))


@lru_cache(maxsize=64)
def poisson_cdf(mean: float, device: torch.device) -> Float64[Tensor, "counts"]:
    """P(count <= k) for every k whose tail a float64 can tell from zero: inverting it samples the Poisson.

    torch.poisson would do, but not inside a CUDA graph; a table and uniform numbers can be captured.
    """
    counts = torch.arange(40 + math.ceil(mean + 12 * math.sqrt(mean)), dtype=torch.float64, device=device)
    log_probability = torch.xlogy(counts, torch.full_like(counts, mean)) - mean - torch.lgamma(counts + 1)
    cumulative = log_probability.exp().cumsum(0)
    return cumulative / cumulative[-1]
