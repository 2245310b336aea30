"""What is known of other people's environments: how they are made, what actions are called, where their agent is."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, TypeAlias

import gymnasium

from gtmsm.config import require
from gtmsm.errors import InputError, shortened, shown

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]

PACKAGES = {
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "MiniWorld-": ("miniworld", "miniworld"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
    "MemoryMaze-": ("memory_maze", 'memory-maze "mujoco<4"'),
    "ALE/": ("ale_py", "ale-py"),
}
"""How ids begin; the module that registers them, since Gymnasium loads no plugins; what to install."""


def make(name: str, steps: int, arguments: Mapping[str, Any]) -> AnyEnv:
    """An environment whose episodes last as long as is asked for; our own checks replace Gymnasium's."""
    if ":" in name and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for start, (module, install) in PACKAGES.items():
        if name.startswith(start):
            os.environ.setdefault("PYGLET_HEADLESS", "true")
            try:
                importlib.import_module(module)
            except ImportError as problem:
                raise InputError(f"{name} cannot be made ({said(problem)}): pip install {install}") from None
    try:
        return gymnasium.make(name, max_episode_steps=steps, disable_env_checker=True, **dict(arguments))
    except gymnasium.error.UnregisteredEnv:
        close = get_close_matches(name[:100], list(gymnasium.registry), n=1)
        hint = (
            f'did you mean "{close[0]}"?'
            if close
            else "give a Gymnasium id, or module:ID of a module that registers it"
        )
        raise InputError(f'unknown environment "{shortened(name, 100)}"; {hint}') from None
    except Exception as problem:
        raise InputError(f"{shortened(name, 100)} cannot be made: {said(problem)}") from None


def loaded(name: str, flag: str) -> Any:
    """What `module:function` names; modules of the working folder are found, too."""
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
    """What an environment calls its actions, or else their numbers."""
    plain: Any = env.unwrapped
    names: list[str] = []
    with suppress(Exception):
        if isinstance(found := getattr(plain, "action_names", None), tuple | list):
            names = [str(name) for name in found]
        elif hasattr(plain, "get_action_meanings"):
            names = [str(name).lower() for name in plain.get_action_meanings()]
        elif family(env) == "vizdoom":
            buttons = [button.name.lower() for button in plain.game.get_available_buttons()]
            pressed = [[b for b, on in zip(buttons, row, strict=True) if on] for row in plain.button_map]
            names = [" and ".join(row) or "nothing" for row in pressed]
        else:
            names = [action.name for action in plain.actions]
    return names[:count] if len(names) >= count else [str(i) for i in range(count)]


def family(env: AnyEnv) -> str:
    """The known package that an environment's class, or one that it extends, comes from."""
    roots = (base.__module__.split(".")[0] for base in type(env.unwrapped).__mro__)
    return next((root for root in roots if root in POSES), "")


def _minigrid(env: Any) -> tuple[float, float, float]:
    x, y = env.agent_pos  # y points down, and so do turns
    return x, -y, -env.agent_dir * math.pi / 2


def _miniworld(env: Any) -> tuple[float, float, float]:
    return env.agent.pos[0], -env.agent.pos[2], env.agent.dir


def _vizdoom(env: Any) -> tuple[float, float, float]:
    variable = importlib.import_module("vizdoom").GameVariable
    x, y, angle = (env.game.get_game_variable(v) for v in (variable.POSITION_X, variable.POSITION_Y, variable.ANGLE))
    return x, y, math.radians(angle)


POSES: dict[str, Callable[[Any], Any]] = {"minigrid": _minigrid, "miniworld": _miniworld, "vizdoom": _vizdoom}
"""Where the agent is in environments that do not say so, by the package they come from: x, y, heading."""
