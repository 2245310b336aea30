"""Who chooses the actions while an environment is recorded."""

from typing import Any, Protocol

import numpy as np

from gtmsm.episodes.actions import Actions
from gtmsm.episodes.engines import loaded
from gtmsm.episodes.pictures import Frame
from gtmsm.errors import InputError, did_you_mean

MEAN_REPEATS = 3.0
"""Of the Poisson number of repetitions after an action's first step, as in our own worlds."""


class Walker(Protocol):
    """Chooses what to do next in one episode."""

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """An action of the environment."""


class RandomWalker:
    """A new action at each step, uniformly."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Whatever is seen."""
        return self.actions.draw(rng)


class RepeatWalker(RandomWalker):
    """Each action is held for 1 + Poisson steps, or until nothing changes any more: it does not push against walls."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions)
        self._left, self._held, self._before = 0, None, np.empty(0, np.uint8)

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """The same as before, for a while."""
        if self._left == 0 or np.array_equal(frame, self._before):
            self._held, self._left = super().__call__(observation, frame, rng), 1 + int(rng.poisson(MEAN_REPEATS))
        self._left, self._before = self._left - 1, frame
        return self._held


class OwnWalker:
    """A user's function of the observation and a generator; a class is made anew for each episode."""

    def __init__(self, function: Any) -> None:
        self.function = function() if isinstance(function, type) else function

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """What the function says."""
        return self.function(observation, rng)


WALKERS: dict[str, type[RandomWalker]] = {"random": RandomWalker, "repeat": RepeatWalker}


def require_walker(name: str) -> None:
    """Refuse a word that names no walker; whether a module:function can be loaded is seen where it is used."""
    if name not in WALKERS and ":" not in name:
        raise InputError(f'unknown walker "{name}"; {did_you_mean(name, [*WALKERS, "module:function"])}')


def make_walker(name: str, actions: Actions) -> Walker:
    """A walker for one episode."""
    return WALKERS[name](actions) if name in WALKERS else OwnWalker(loaded(name, "--walker"))
