"""Open any Gymnasium environment for recording: its pixels, its actions as they are stored, the pose of its agent."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from jaxtyping import Float32

from gtmsm.config import require
from gtmsm.episodes.actions import Actions
from gtmsm.episodes.engines import FAMILIES, AnyEnv, family, loaded, make
from gtmsm.episodes.episode import LONGEST_NAME, Kind
from gtmsm.episodes.pictures import Frame, channels_of, resized, white_of
from gtmsm.errors import InputError, did_you_mean, shortened, shown

SIZED = ("gtmsm/Rooms-v0", "gtmsm/Maze-v0", "gtmsm/Doom-v0", "gtmsm/MemoryMaze-v0")
"""Environments that can render frames of any size themselves."""
BEYOND = 1e-3
"""How far floats of a picture may exceed the range that its space says, as a fraction of it: errors of rounding."""
RENDER = "render"
"""Given instead of a key: pixels are what `render()` returns."""


@dataclass(frozen=True)
class Source:
    """Which environment is recorded, and how."""

    environment: str
    """Gymnasium id; `module:id` imports a module that registers it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`."""
    size: int = 32
    """Side of a frame in pixels; 0: as the environment gives it."""
    pixels: str = ""
    """Key of the observation that holds pixels, or "render"; empty: detected."""
    pose: str = ""
    """module:function that maps the unwrapped environment to the pose; empty: from `info` or a known environment."""
    actions: tuple[str, ...] = ()
    """Names or numbers of the actions that walkers choose from; empty: all."""
    steps: int = 300
    """Maximum number of steps of an episode."""

    @property
    def name(self) -> str:
        """The environment, its arguments, and what is recorded of it if that was chosen."""
        more = f" {json.dumps(dict(self.arguments), default=str)}" if self.arguments else ""
        chosen = {"--pixels": self.pixels, "--pose": self.pose}
        return f"{self.environment}{more}" + "".join(f" {flag} {value}" for flag, value in chosen.items() if value)


class Seen(NamedTuple):
    """Result of a reset or a step."""

    observation: Any
    frame: Frame
    pose: Float32[np.ndarray, "D"] | None
    place: str
    ended: bool
    blank: bool
    """Whether the frame shows nothing: ViZDoom has no picture once a game is over."""


class Environment:
    """Wraps an environment: frames of one size, actions as they are stored, and poses."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._pose = loaded(source.pose, "--pose") if source.pose else None
        self.env = self._made()
        self._known = family(self.env)
        self.pose_size: int | None = None
        self.note = ""
        """Says so if `info` has a pose of another form, which is not recorded."""
        try:
            self._find_pixels()
            self.actions = Actions(self.env, source.actions)
        except BaseException:
            self.close()
            raise

    def _made(self, **more: str) -> AnyEnv:
        drawn = {"pixels": self.source.size} if self.source.environment in SIZED and self.source.size else {}
        return make(self.source.environment, self.source.steps, {**drawn, **self.source.arguments, **more})

    def _find_pixels(self) -> None:
        """Find the source of pictures: the agent's view in MiniGrid, the observation or a part of it, or `render`."""
        wanted, space = self.source.pixels, self.env.observation_space
        plain: Any = self.env.unwrapped
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        pictures = [key for key, part in parts.items() if white_of(part)]
        known = [*filter(None, pictures), RENDER]
        if wanted and wanted not in known:
            raise InputError(f'--pixels is "{wanted}"; no such picture: {did_you_mean(wanted, known)}')
        self._white, self._in_bytes, self.channels = 255.0, True, 3
        self._shape: tuple[int, ...] | None = None
        if self._known is FAMILIES["minigrid"] and not wanted:  # its observation is an array of codes
            tile = max(8, math.ceil(self.source.size / plain.agent_view_size))
            self._look: Callable[[Any], Any] = lambda _: plain.get_pov_render(tile)
            return
        if not wanted and len(pictures) > 1:
            raise InputError(f"several entries of the observation are pictures; give --pixels: {', '.join(known)}")
        key = wanted or next(iter(pictures), RENDER)
        if key in pictures:
            box: Any = parts[key]
            self._look = (lambda observation: observation[key]) if key else (lambda observation: observation)
            self._white, self._in_bytes, self._shape = white_of(box), box.dtype == np.uint8, box.shape
            self.channels = channels_of(box.shape) or 3
            return
        if self.env.render_mode != "rgb_array":
            can = "rgb_array" in (self.env.metadata.get("render_modes") or ())
            found = shortened(str(space), 80)
            require(can, f"no pixels: the observation is {found}, and render() makes none; wrap the environment")
            self.close()
            self.env = self._made(render_mode="rgb_array")
        self._look = lambda _: self.env.render()

    def reset(self, seed: int) -> Seen:
        """Begin a new episode."""
        return self._seen(*self.env.reset(seed=seed), seed=seed)

    def step(self, action: Any) -> Seen:
        """Take an action of the environment; return what it led to."""
        observation, _, terminated, truncated, info = self.env.step(action)
        walks_on = self._known is not None and self._known.walks_on
        return self._seen(observation, info, ended=bool(truncated or (terminated and not walks_on)))

    def _seen(self, observation: Any, info: Any, seed: int = 0, ended: bool = False) -> Seen:
        info = info if isinstance(info, dict) else {}
        plain: Any = self.env.unwrapped
        in_doom = self._known is FAMILIES["vizdoom"]
        named = info.get("place", plain.game.get_doom_map() if in_doom else seed)
        place = "".join(letter for letter in str(named) if letter.isprintable())[:LONGEST_NAME]
        blank = ended and in_doom and plain.state is None
        return Seen(observation, self._frame(observation), self._where(info), place, ended, blank)

    def _frame(self, observation: Any) -> Frame:
        """The current picture, at the size to be stored."""
        found = self._look(observation)
        require(found is not None, "render() gave None")
        picture, in_bytes = np.asarray(found), self._in_bytes
        if self._shape is None and channels_of(picture.shape) == self.channels:
            self._shape = picture.shape  # the first rendered picture determines it
        fits = picture.shape == self._shape and (picture.dtype == np.uint8 if in_bytes else picture.dtype.kind == "f")
        if not fits:
            expected = f"{'uint8' if in_bytes else 'float'} of shape {self._shape or '(height, width, 3)'}"
            raise InputError(f"a picture of {picture.dtype} and shape {picture.shape}; expected {expected}")
        if not in_bytes:
            require(bool(np.isfinite(picture).all()), "a picture with numbers that are not finite")
            low, high, white = float(picture.min()), float(picture.max()), self._white
            said = f"a picture with numbers from {low:.3g} to {high:.3g}, and its space says 0 to {white:.0f}"
            require(-BEYOND * white <= low and high <= (1 + BEYOND) * white, f"{said}; mend one of them")
            picture = np.rint(np.clip(picture / white, 0, 1) * 255).astype(np.uint8)
        if picture.ndim == 2:
            picture = picture[..., None]
        elif picture.shape[-1] not in (1, 3):
            picture = picture.transpose(1, 2, 0)
        return resized(picture, self.source.size)

    def _where(self, info: dict[str, Any]) -> Float32[np.ndarray, "D"] | None:
        """Pose of the agent; the first call determines whether poses are known."""
        if self.pose_size == 0:
            return None
        env, look_up = self.env.unwrapped, self._known and self._known.pose
        found = self._pose(env) if self._pose else info["pose"] if "pose" in info else look_up and look_up(env)
        pose = np.empty(0, np.float32)
        with suppress(TypeError, ValueError):
            pose = np.asarray(found, np.float32)
        size = len(pose) if pose.shape in ((2,), (3,)) else 0
        pose = pose.reshape(-1)[:size]
        if self.pose_size is None:
            require(bool(size or not self._pose), f"--pose gave {shown(found)}; expected x, y or x, y, heading")
            self.pose_size = size
            if found is not None and not size:
                self.note = f'info["pose"] is {shown(found)}, not x, y or x, y, heading: no poses are recorded (--pose)'
        if size != self.pose_size or not np.isfinite(pose).all():
            raise InputError(f"the pose is {shown(found)}; expected {self.pose_size} finite numbers")
        return pose if size else None

    def kind(self, frame: Frame) -> Kind:
        """What all episodes share; known once one has begun."""
        return Kind(tuple(frame.shape), self.actions.names, self.actions.size, self.pose_size or 0, self.source.name)

    def close(self) -> None:
        """Close it; errors while closing are ignored."""
        with suppress(Exception):
            self.env.close()
