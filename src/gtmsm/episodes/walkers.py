"""Walkers: policies that choose the actions while an environment is recorded."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from gtmsm.episodes.actions import Actions
from gtmsm.episodes.engines import loaded
from gtmsm.episodes.pictures import Frame
from gtmsm.errors import InputError, did_you_mean

MEAN_REPEATS = 3.0
"""Mean of the Poisson number of repetitions after an action's first step, as in our own worlds."""


class Walker(Protocol):
    """Chooses the actions of one episode."""

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Return an action of the environment."""


class RandomWalker:
    """Draws a new action at each step, uniformly."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Draw an action, whatever is seen."""
        return self.actions.draw(rng)


class RepeatWalker(RandomWalker):
    """Holds each action for 1 + Poisson steps, or until the frame no longer changes: it does not push against walls."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions)
        self._left, self._held, self._before = 0, None, np.empty(0, np.uint8)

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Return the action that is held, or a new one."""
        if self._left == 0 or np.array_equal(frame, self._before):
            self._held, self._left = super().__call__(observation, frame, rng), 1 + int(rng.poisson(MEAN_REPEATS))
        self._left, self._before = self._left - 1, frame
        return self._held


class OwnWalker:
    """Calls a user's function of the observation and a generator; a class is instantiated for each episode."""

    def __init__(self, function: Any) -> None:
        self.function = function() if isinstance(function, type) else function

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Return the action that the function chooses."""
        return self.function(observation, rng)


class SmoothWalker(RandomWalker):
    """Draws continuous actions that change a little at each step and reach their bounds at times; repeats others."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions)
        self._mood, self._otherwise = np.zeros(()), RepeatWalker(actions)

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Take a step of an Ornstein-Uhlenbeck process with a correlation time of about ten steps."""
        space = self.actions.space
        if not isinstance(space, spaces.Box):
            return self._otherwise(observation, frame, rng)
        self._mood = 0.9 * self._mood + 0.44 * rng.normal(size=space.shape)  # of variance 1
        middle, half = (space.high / 2.0 + space.low / 2.0), (space.high / 2.0 - space.low / 2.0)
        return middle + half * np.clip(0.7 * self._mood, -1, 1)


class TurnWalker(RandomWalker):
    """Turns on the spot, one way for a whole episode; if actions are continuous, at a speed that changes smoothly."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions)
        self._smooth, self._way = SmoothWalker(actions), 0

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Return a turn to the left or to the right."""
        self._way = self._way or (1 if rng.integers(2) else -1)
        if self.actions.names is not None:
            return self.actions.kept[self.actions.turns[self._way > 0]]
        drawn = np.asarray(self._smooth(observation, frame, rng))
        turn = np.zeros_like(drawn)
        turn[self.actions.turns[0]] = self._way * (0.75 + 0.25 * drawn[self.actions.turns[0]])
        return turn


class ExploreWalker(SmoothWalker):
    """Explores as the environment itself does, or as a `Wanderer`; if neither is possible, as a `SmoothWalker`."""

    def __init__(self, actions: Actions) -> None:
        super().__init__(actions)
        self._explore = actions.explorer()

    def __call__(self, observation: Any, frame: Frame, rng: np.random.Generator) -> Any:
        """Return the explorer's action, or else a smooth one."""
        return self._explore(rng) if self._explore else super().__call__(observation, frame, rng)


WALKERS: dict[str, Callable[[Actions], Walker]] = {
    "explore": ExploreWalker, "smooth": SmoothWalker, "repeat": RepeatWalker, "random": RandomWalker,
    "turn": TurnWalker,
}  # fmt: skip


def require_walker(name: str) -> None:
    """Refuse an unknown name; a module:function is only loaded where it is used."""
    if name not in WALKERS and ":" not in name:
        raise InputError(f'unknown walker "{name}"; {did_you_mean(name, [*WALKERS, "module:function"])}')


def make_walker(name: str, actions: Actions) -> Walker:
    """Make a walker for one episode."""
    if name == "turn" and len(actions.turns) != (2 if actions.names else 1):
        raise InputError(f"--walker turn needs actions named left and right, or turn; found {actions.told}")
    return WALKERS[name](actions) if name in WALKERS else OwnWalker(loaded(name, "--walker"))
