"""Actions that go wrong at random: done twice, or not at all, while a clip records the action that was chosen."""

from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.errors import InputError
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.rooms import Filmed, Rooms
from gtmsm.worlds.world import ActionNumbers, Twice, Walk, World, one_step


@config
class SlipConfig:
    """How often actions go wrong, and how (App. D)."""

    probability: float = 0.0
    """That an action goes wrong; what a clip records is the action that was chosen."""
    repeat: float = 0.5
    """Share of these that are done twice before the frame; the others are dropped: the agent rests instead."""

    def __post_init__(self) -> None:
        """Refuse a share outside of 0 to 1."""
        for name in ("probability", "repeat"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; expected a share from 0 to 1")


Inner = TypeVar("Inner", ImageWalk, Rooms)
"""Worlds in which an action can be done twice, or rested through."""


class Slipping:
    """A world whose actions go wrong at random, by the generator of the last `reset`; without one they never do.

    With a CPU's generator a walk slips exactly as its steps would one by one; with a GPU's only as often.
    """

    def __init__(self, world: ImageWalk | Rooms, config: SlipConfig) -> None:
        """Let the agents of `world` slip."""
        if not isinstance(world, ImageWalk | Rooms):
            raise InputError(f"actions cannot slip in a {type(world).__name__}; give an ImageWalk or Rooms")
        self.world, self.config = world, config
        self.action_names, self.action_keys = world.action_names, world.action_keys
        self.frame_shape = world.frame_shape
        self.slipped = world.pose.new_zeros(world.agents, 0, dtype=torch.bool)
        """Whether the action went wrong, at each step that the agents last walked."""
        self._chance: torch.Generator | None = None

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Put `n` agents into places; the generator is kept, and slips are drawn from it as they happen."""
        self.world.reset(n, generator)
        self.slip_by(generator)

    def slip_by(self, generator: torch.Generator | None) -> None:
        """Draw slips from this generator from now on; for agents that were put into the inner world by `place`."""
        self._chance = generator
        self.slipped = self.world.pose.new_zeros(self.agents, 0, dtype=torch.bool)

    def step(self, action: Int[Tensor, "n"]) -> None:
        """Each agent does its action, if all goes well."""
        done, twice = self._what_happens(one_step(action))
        self.world.step(done[:, 0], None if twice is None else twice[:, 0])

    def walk(self, actions: ActionNumbers) -> Walk:
        """Many steps at once: the same as `step` and `look` in turn."""
        return self.world.walk(*self._what_happens(actions))

    def walk_bytes(self, actions: ActionNumbers) -> Filmed:
        """Frames as bytes and poses, where Rooms are inside."""
        if not isinstance(self.world, Rooms):
            raise InputError(f"{type(self.world).__name__} gives no bytes; use `walk`, or Rooms")
        return self.world.walk_bytes(*self._what_happens(actions))

    def look(self) -> Float[Tensor, "n channel height width"]:
        """What each agent sees now."""
        return self.world.look()

    @property
    def device(self) -> torch.device:
        """That of the inner world."""
        return self.world.device

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return self.world.agents

    @property
    def pose(self) -> Float[Tensor, "n D"]:
        """Where each agent really is."""
        return self.world.pose

    def _what_happens(self, actions: ActionNumbers) -> tuple[ActionNumbers, Twice]:
        """What is really done, and what of it twice."""
        if self._chance is None or self.config.probability == 0:
            self.slipped = torch.zeros_like(actions, dtype=torch.bool)
            return actions, None
        # Time first: a generator of a CPU then gives a walk the numbers that its steps would have drawn.
        chance = torch.rand(actions.shape[::-1], device=self._chance.device, generator=self._chance)
        chance = chance.T.to(actions.device)
        self.slipped = chance < self.config.probability
        twice = chance < self.config.probability * self.config.repeat
        return torch.where(self.slipped & ~twice, self.world.rest, actions), twice


def slipping(world: Inner, config: SlipConfig) -> Inner | Slipping:
    """The world as it is where nothing can go wrong, else with slips."""
    return Slipping(world, config) if config.probability > 0 else world


def unwrapped(world: World) -> World:
    """The world inside of slips, or the world itself."""
    return world.world if isinstance(world, Slipping) else world
