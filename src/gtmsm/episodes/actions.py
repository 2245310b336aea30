"""Convert actions of any environment to the form in which they are stored."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium import spaces
from jaxtyping import Float32

from gtmsm.config import require
from gtmsm.episodes.engines import AnyEnv, action_names, explorer, family
from gtmsm.errors import InputError, did_you_mean, shortened, shown

WAYS = ("right", "left")
UNBOUNDED = 1e6
"""A continuous action counts as unbounded where the magnitude of its bound exceeds this."""


class Actions:
    """Converts between actions as walkers choose them and as they are stored: numbers if discrete, otherwise vectors.

    A vector is what Gymnasium's `flatten` makes: several discrete choices become one-hot blocks, numbers are unchanged.
    """

    def __init__(self, env: AnyEnv, chosen: tuple[str, ...] = ()) -> None:
        space = env.action_space
        self.space: spaces.Space[Any] = space
        self.names: tuple[str, ...] | None = None
        """Names of discrete actions; None if actions are continuous."""
        self._env = env
        if isinstance(space, spaces.Discrete):
            names, known = action_names(env, int(space.n)), family(env)
            if known is not None and set(known.actions) <= set(names):
                chosen = chosen or known.actions
            for name in chosen:
                is_there = name in names or name in map(str, range(len(names)))
                require(is_there, f'--actions: there is no "{name}"; {did_you_mean(name, names)}')
            kept = [names.index(name) if name in names else int(name) for name in chosen] or list(range(len(names)))
            self.kept = [int(space.start) + i for i in kept]
            self.names, self.size = tuple(names[i] for i in kept), len(kept)
            return
        require(not chosen, "--actions chooses from discrete actions; these are not")
        self.space, self.size = _bounded(space), spaces.flatdim(space)
        self._numbers = action_names(env, self.size)

    def explorer(self) -> Callable[[np.random.Generator], Any] | None:
        """A policy that explores one episode; None if the environment is not known well enough."""
        return explorer(self._env, self.names or ())

    @property
    def turns(self) -> list[int]:
        """Numbers of the actions that turn right and left on the spot; of vectors, the component that turns."""
        if self.names is None:
            return [i for i, name in enumerate(self._numbers) if name == "turn"]
        ways = [[i for i, name in enumerate(self.names) if name in (way, f"turn {way}", f"turn_{way}")] for way in WAYS]
        return [way[0] for way in ways if way]

    @property
    def told(self) -> str:
        """Names of all actions, for messages."""
        return shortened(", ".join(self.names or self._numbers), 80)

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw an action uniformly."""
        if self.names is not None:
            return self.kept[int(rng.integers(self.size))]
        self.space.seed(int(rng.integers(2**31)))
        return self.space.sample()

    def taken(self, action: Any) -> Any:
        """Convert a walker's action to the environment's type; a continuous one is clipped to its bounds."""
        space = self.space
        if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
            with suppress(TypeError, ValueError, OverflowError):
                action = np.asarray(action, space.dtype).reshape(space.shape)
        if isinstance(space, spaces.Box) and isinstance(action, np.ndarray):
            action = np.clip(action, space.low, space.high)
        if not space.contains(action) or (self.names is not None and int(action) not in self.kept):
            raise InputError(f"the walker chose {shown(action)}; expected one of {shortened(str(space), 80)}")
        return action

    def stored(self, action: Any) -> int | Float32[np.ndarray, "A"]:
        """Convert an action of the environment to its stored form."""
        if self.names is not None:
            return self.kept.index(int(action))
        return np.asarray(spaces.flatten(self.space, action), np.float32)


def _bounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The same space with finite bounds to draw from: -1 and 1 where it has none."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _bounded(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_bounded(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return space
    if not isinstance(space, spaces.Box):
        kinds = "Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of them"
        raise InputError(f"actions are {shortened(str(space), 80)}; expected {kinds}: wrap the environment")
    no_low, no_high = ~(np.abs(space.low) <= UNBOUNDED), ~(np.abs(space.high) <= UNBOUNDED)
    low = np.where(no_low, np.where(no_high, -1, np.minimum(-1, space.high - 1)), space.low)
    high = np.where(no_high, np.maximum(1, low + 1), space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
