"""Third-party environments: how to make them, what their actions are called, where their agent is."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from gtmsm.config import require
from gtmsm.errors import InputError, shortened, shown

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]

ASIDE, BUMPS = 0.2, 0.1
"""Probabilities that a wanderer turns aside at a step, and that it walks on although something is in its way."""

PACKAGES = {
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
    "ALE/": ("ale_py", "ale-py"),
}
"""Prefix of the ids; the module that registers them, since Gymnasium loads no plugins; the package to install."""


HEADLESS = {"PYGLET_HEADLESS": "true", "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
"""Environment variables for rendering without a screen."""


def make(name: str, steps: int, arguments: Mapping[str, Any]) -> AnyEnv:
    """Make an environment whose episodes may last `steps` steps; our own checks replace Gymnasium's."""
    if ":" in name and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for variable, value in HEADLESS.items():
        os.environ.setdefault(variable, value)
    for start, (module, install) in PACKAGES.items():
        if name.startswith(start):
            try:
                importlib.import_module(module)
            except ImportError as problem:
                raise InputError(f"{name} cannot be made ({said(problem)}): pip install {install}") from None
    try:
        env = gymnasium.make(name, max_episode_steps=steps, disable_env_checker=True, **dict(arguments))
        if (known := family(env)) is not None and known.limit:
            setattr(env.unwrapped, known.limit, steps + 1)
        return env
    except gymnasium.error.UnregisteredEnv:
        module, colon, asked = name.rpartition(":")
        close = get_close_matches(asked[:100], list(gymnasium.registry), n=1)
        hint = (
            f'did you mean "{shortened(module, 100)}{colon}{close[0]}"?'
            if close
            else "give a Gymnasium id, or module:ID of a module that registers it"
        )
        raise InputError(f'unknown environment "{shortened(name, 100)}"; {hint}') from None
    except Exception as problem:
        raise InputError(f"{shortened(name, 100)} cannot be made: {said(problem)}") from None


def loaded(name: str, flag: str) -> Any:
    """Import the function that `module:function` names; modules in the working folder are found, too."""
    module, colon, function = name.partition(":")
    require(bool(module and colon and function), f'{flag} is "{name}"; give module:function')
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as problem:
        raise InputError(f"{flag} {name} cannot be loaded: {said(problem)}") from None
    require(callable(found), f"{flag} {name} is {shown(found)}; expected a function")
    return found


def said(problem: BaseException) -> str:
    """An exception in one line."""
    text = shortened(" ".join(str(problem).split()), 200)
    return text if isinstance(problem, InputError) else f"{type(problem).__name__}: {text}".removesuffix(": ")


def action_names(env: AnyEnv, count: int) -> list[str]:
    """Names of the actions of an environment, or else their numbers."""
    plain: Any = env.unwrapped
    names: list[str] = []
    with suppress(Exception):
        if isinstance(found := getattr(plain, "action_names", None), tuple | list):
            names = [str(name) for name in found]
        elif hasattr(plain, "get_action_meanings"):
            names = [str(name).lower() for name in plain.get_action_meanings()]
        elif family(env) is FAMILIES["vizdoom"]:
            buttons = [button.name.lower() for button in plain.game.get_available_buttons()]
            pressed = [[b for b, on in zip(buttons, row, strict=True) if on] for row in plain.button_map]
            names = [" and ".join(row) or "nothing" for row in pressed]
        else:
            names = [action.name for action in plain.actions]
    return names[:count] if len(names) >= count else [str(i) for i in range(count)]


def _minigrid(env: Any) -> tuple[float, float, float]:
    x, y = env.agent_pos  # y points down, and so do turns
    return x, -y, -env.agent_dir * math.pi / 2


def _minigrid_clear(env: Any) -> int:
    ahead = env.grid.get(*env.front_pos)
    return int(ahead is None or ahead.can_overlap())


def _miniworld(env: Any) -> tuple[float, float, float]:
    return env.agent.pos[0], -env.agent.pos[2], env.agent.dir


def _miniworld_clear(env: Any) -> int:
    agent, most = env.agent, FAMILIES["miniworld"].far
    spots = ((steps, agent.pos + agent.dir_vec * steps * env.max_forward_step) for steps in range(2, most + 1, 2))
    return next((steps - 2 for steps, spot in spots if env.intersect(agent, spot, agent.radius)), most)


def _vizdoom(env: Any) -> tuple[float, float, float]:
    variable = importlib.import_module("vizdoom").GameVariable
    x, y, angle = (env.game.get_game_variable(v) for v in (variable.POSITION_X, variable.POSITION_Y, variable.ANGLE))
    return x, y, math.radians(angle)


@dataclass(frozen=True)
class Family:
    """What is known of the environments of a package."""

    pose: Callable[[Any], Any]
    """Function for the pose of the agent (x, y, heading), used where `info` does not have it."""
    limit: str = ""
    """Attribute that holds the environment's own limit of steps."""
    walks_on: bool = False
    """Whether the agent can continue after an episode has terminated: reaching the goal changes nothing."""
    actions: tuple[str, ...] = ()
    """Actions that turn left, turn right and go ahead, then others that move the agent; empty: all do."""
    clear: Callable[[Any], int] | None = None
    """Function for the number of clear steps ahead of the agent, up to `far`."""
    turn_steps: int = 1
    """Steps of a quarter turn."""
    near: int = 1
    """Distance in steps at which an agent turns aside from an obstacle: nearer, it would see nothing but a wall."""
    far: int = 1
    """Number of clear steps ahead at which the agent has turned enough."""


FAMILIES = {
    "minigrid": Family(_minigrid, "max_steps", True, ("left", "right", "forward"), _minigrid_clear),
    "miniworld": Family(
        _miniworld, "max_episode_steps", True, ("turn_left", "turn_right", "move_forward", "move_back"),
        _miniworld_clear, 6, 12, 24,
    ),
    "vizdoom": Family(_vizdoom),
}  # fmt: skip
"""By the package they come from."""


def family(env: AnyEnv) -> Family | None:
    """Look up the family of an environment by the package of its class or of a base class."""
    roots = (base.__module__.split(".")[0] for base in type(env.unwrapped).__mro__)
    return next((FAMILIES[root] for root in roots if root in FAMILIES), None)


def explorer(env: AnyEnv, names: Sequence[str]) -> Callable[[np.random.Generator], Any] | None:
    """The environment's own exploring policy, or a `Wanderer`; None if neither is possible."""
    own, known = getattr(env.unwrapped, "explore", None), family(env)
    if callable(own):
        return own  # type: ignore[no-any-return]
    if known is not None and known.clear is not None and set(known.actions[:3]) <= set(names):
        return Wanderer(env, known)
    return None


class Wanderer:
    """Policy for one episode: walks ahead, turns aside at random, and mostly turns before it bumps into something."""

    def __init__(self, env: AnyEnv, known: Family) -> None:
        assert known.clear is not None
        self._env, self._clear, self._known = env.unwrapped, known.clear, known
        names = action_names(env, int(getattr(env.action_space, "n", 0)))
        *self._turns, self._ahead = (names.index(name) for name in known.actions[:3])
        self._turn, self._steps, self._turned = 0, 0, 0

    def __call__(self, rng: np.random.Generator) -> int:
        """The number of the next action."""
        known = self._known
        wants, dares, goes_left = rng.random(3) < (ASIDE / known.turn_steps, BUMPS, 0.5)
        if not self._steps:
            clear = self._clear(self._env)
            stops, looks_on = clear < known.near and not dares, 0 < self._turned < 4 * known.turn_steps
            if wants or stops:
                if not (self._turned and clear < known.near):  # otherwise keep the direction of the turn
                    self._turn = self._turns[int(goes_left)]
                self._steps = int(rng.integers(1, 2 * known.turn_steps + 1))
            elif looks_on and known.near <= clear < known.far:
                self._steps = 1
        self._turned = self._turned + 1 if self._steps else 0
        self._steps = max(0, self._steps - 1)
        return self._turn if self._turned else self._ahead
