"""Who chooses the actions."""

import math
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.errors import InputError
from gtmsm.kernels.walks.held_actions import held_actions
from gtmsm.worlds.physics import IDLE
from gtmsm.worlds.scavenger import ScavengerWalker, ScavengerWalkerConfig
from gtmsm.worlds.world import World

__all__ = [
    "PoissonWalker",
    "PoissonWalkerConfig",
    "ScavengerWalker",
    "ScavengerWalkerConfig",
    "SpinWalker",
    "SpinWalkerConfig",
    "Walker",
]


@runtime_checkable
class Walker(Protocol):
    """Chooses what the agents of a world do next."""

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """The index of an action for every agent and step, on the generator's device.

        The agents stand where they will start; a walker may look around there, but leaves the world as it is.
        """


@config
class PoissonWalkerConfig:
    """Random actions, each held for a while to get around (section 4.1)."""

    mean_repeats: float = 3.0
    """Mean of the Poisson number of repetitions after an action's first step (section 4.1 names no value)."""
    look_first: bool = False
    """Whether a walk begins with a step on the spot: whoever sets out without a look at the start cannot tell that
    something was in the way of the first step."""

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

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Draw `steps` choices per agent (enough if none is repeated), then hold each for as long as it lasts."""
        choices = torch.randint(self.actions, (world.agents, steps), generator=generator, device=generator.device)
        uniform = torch.rand(choices.shape, dtype=torch.float64, generator=generator, device=generator.device)
        actions = held_actions(choices, uniform, poisson_cdf(self.config.mean_repeats, generator.device))
        if self.config.look_first:
            actions[:, 0] = action_named(world, "stay")
        return actions


@config
class SpinWalkerConfig:
    """Turning on the spot (section 4.2.1)."""

    pauses: bool = False
    """Whether to pause now and then, and to turn back."""
    mean_run: float = 12.0
    """With pauses: mean steps of turning one way, or of pausing, before the next decision."""

    def __post_init__(self) -> None:
        """Refuse what is no mean."""
        require(
            math.isfinite(self.mean_run) and 1 <= self.mean_run <= 1000,
            f"mean_run is {self.mean_run}; expected a number of steps from 1 to 1000",
        )


class SpinWalker:
    """Turns left or right, by a coin for each agent, for as long as the clip lasts."""

    def __init__(self, config: SpinWalkerConfig | None = None) -> None:
        """Turn as told."""
        self.config = config or SpinWalkerConfig()

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """One coin per agent; with pauses, one for every run: a quarter pause, a quarter turn the other way."""
        left, right = (action_named(world, name) for name in ("turn left", "turn right"))
        n, device = world.agents, generator.device
        turns_right = torch.randint(2, (n, 1), generator=generator, device=device).expand(n, steps)
        if not self.config.pauses:
            return left + (right - left) * turns_right
        uniform = torch.rand(n, steps, dtype=torch.float64, generator=generator, device=device)
        mood = torch.rand(n, steps, generator=generator, device=device)
        turns_back = ((mood >= 0.25) & (mood < 0.5)).long().cumsum(1) % 2
        action = left + (right - left) * (turns_right ^ turns_back)
        runs = torch.where(mood < 0.25, IDLE, action)
        return held_actions(runs, uniform, poisson_cdf(self.config.mean_run - 1, device))


def action_named(world: World, name: str) -> int:
    """The number of an action of a world that must have it."""
    if name not in world.action_names:
        raise InputError(
            f'this walker needs the action "{name}"; the world has {", ".join(world.action_names)}; '
            "choose another walker"
        )
    return world.action_names.index(name)


@lru_cache(maxsize=64)
def poisson_cdf(mean: float, device: torch.device) -> Float64[Tensor, "counts"]:
    """P(count <= k) for every k whose tail a float64 can tell from zero: inverting it samples the Poisson.

    torch.poisson would do, but not inside a CUDA graph; a table and uniform numbers can be captured.
    """
    counts = torch.arange(40 + math.ceil(mean + 12 * math.sqrt(mean)), dtype=torch.float64, device=device)
    log_probability = torch.xlogy(counts, torch.full_like(counts, mean)) - mean - torch.lgamma(counts + 1)
    cumulative = log_probability.exp().cumsum(0)
    return cumulative / cumulative[-1]
