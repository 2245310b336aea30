"""Policies that choose the actions of a walk."""

import math
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gtmsm.config import config, require, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.physics import IDLE
from gtmsm.worlds.world import World


@runtime_checkable
class Walker(Protocol):
    """Chooses what the agents of a world do next."""

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """The index of an action for every agent and step, on the world's device; the world itself does not change.

        Random numbers are drawn on the generator's device. So a CPU's generator gives the same actions on any device.
        """


@config
class PoissonWalkerConfig:
    """Random actions, each held for a while to get around (section 4.1)."""

    mean_repeats: float = 3.0
    """Mean of the Poisson number of repetitions after an action's first step (section 4.1 names no value)."""
    look_first: bool = False
    """Whether the first action is "stay": an agent that has not seen its start cannot tell that its first step was
    blocked."""

    def __post_init__(self) -> None:
        """Refuse a negative mean, and one that is longer than any clip."""
        require(
            math.isfinite(self.mean_repeats) and 0 <= self.mean_repeats <= 1000,
            f"mean_repeats is {self.mean_repeats}; expected a number from 0 (never repeat) to 1000",
        )


class PoissonWalker:
    """Uniformly random actions, each held for 1 + Poisson(mean_repeats) steps."""

    def __init__(self, config: PoissonWalkerConfig | None = None, actions: int = 5) -> None:
        """Choose among `actions` actions."""
        require_whole("number of actions", actions)
        self.config = config or PoissonWalkerConfig()
        self.actions = actions

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Draw `steps` choices per agent (enough if none is repeated), then hold each for as long as it lasts."""
        choices = torch.randint(self.actions, (world.agents, steps), generator=generator, device=generator.device)
        uniform = torch.rand(choices.shape, dtype=torch.float64, generator=generator, device=generator.device)
        actions = held_actions(choices, uniform, poisson_lower(self.config.mean_repeats, generator.device))
        if self.config.look_first:
            actions[:, 0] = action_named(world, "stay")
        return actions.to(world.device)


@config
class SpinWalkerConfig:
    """Turning on the spot (section 4.2.1)."""

    pauses: bool = False
    """Whether to pause now and then, and to turn back."""
    mean_run: float = 12.0
    """With pauses: mean steps of turning one way, or of pausing, before the next decision."""

    def __post_init__(self) -> None:
        """Refuse a mean below one step, and one that is longer than any clip."""
        require(
            math.isfinite(self.mean_run) and 1 <= self.mean_run <= 1000,
            f"mean_run is {self.mean_run}; expected a number of steps from 1 to 1000",
        )


class SpinWalker:
    """Each agent turns left or right, at random, for the whole clip."""

    def __init__(self, config: SpinWalkerConfig | None = None) -> None:
        """Turn by these settings."""
        self.config = config or SpinWalkerConfig()

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """One direction per agent; with pauses, a quarter of the runs are pauses, a quarter change the direction."""
        left, right = (action_named(world, name) for name in ("turn left", "turn right"))
        n, device = world.agents, generator.device
        turns_right = torch.randint(2, (n, 1), generator=generator, device=device).expand(n, steps)
        if not self.config.pauses:
            return (left + (right - left) * turns_right).to(world.device)
        uniform = torch.rand(n, steps, dtype=torch.float64, generator=generator, device=device)
        mood = torch.rand(n, steps, generator=generator, device=device)
        turns_back = ((mood >= 0.25) & (mood < 0.5)).long().cumsum(1) % 2
        action = left + (right - left) * (turns_right ^ turns_back)
        runs = torch.where(mood < 0.25, IDLE, action)
        return held_actions(runs, uniform, poisson_lower(self.config.mean_run - 1, device)).to(world.device)


def action_named(world: World, name: str) -> int:
    """The number of an action of a world that must have it."""
    if name not in world.action_names:
        raise InputError(
            f'this walker needs the action "{name}"; the world has {", ".join(world.action_names)}; '
            "choose another walker"
        )
    return world.action_names.index(name)


def held_actions(
    choices: Int64[Tensor, "n time"], uniform: Float64[Tensor, "n time"], lower: Float64[Tensor, "counts"]
) -> Int64[Tensor, "n time"]:
    """The action of every step where each choice is done once, and then repeated a random number of times.

    `uniform` are numbers from [0, 1), one for each choice; `lower` is P(repeats < k) for k = 0, 1, ...

    >>> coin = torch.tensor([0, 0.5, 1]).double()  # repeated once with probability 1/2
    >>> held_actions(torch.tensor([[7, 8, 9]]), torch.tensor([[0.6, 0.1, 0.9]]).double(), coin).tolist()
    [[7, 7, 8]]
    """
    ends = torch.searchsorted(lower, uniform, right=True).cumsum(1)
    time = torch.arange(choices.shape[1], device=choices.device).repeat(len(choices), 1)
    return choices.gather(1, torch.searchsorted(ends, time, right=True))


@lru_cache(maxsize=64)
def poisson_lower(mean: float, device: torch.device) -> Float64[Tensor, "counts"]:
    """P(count < k) of a Poisson number for k = 0, 1, ... until float64 cannot tell it from 1: inverting it samples.

    torch.poisson cannot be captured in a CUDA graph; a table and uniform numbers can.
    """
    counts = torch.arange(40 + math.ceil(mean + 12 * math.sqrt(mean)), dtype=torch.float64, device=device)
    log_probability = torch.xlogy(counts, torch.full_like(counts, mean)) - mean - torch.lgamma(counts + 1)
    cumulative = torch.cat([counts.new_zeros(1), log_probability.exp().cumsum(0)])
    return cumulative / cumulative[-1]
