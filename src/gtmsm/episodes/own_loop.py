"""Record episodes from your own loop: a few lines around any environment, or around none.

>>> import gtmsm, numpy as np
>>> with gtmsm.Recorder("clips", ("left", "right", "forward")) as recorder:
...     recorder.reset(np.zeros((32, 32, 3), np.uint8), place="kitchen")  # what is seen before anything is done
...     for t in range(100):
...         recorder.step(t % 3, np.full((32, 32, 3), t, np.uint8))  # an action, and the frame that it led to

`gtmsm train own --data clips` trains on it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from gtmsm.config import is_whole, require
from gtmsm.episodes.actions import Actions
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store import Store
from gtmsm.errors import InputError, shown
from gtmsm.files import as_path

FEWEST = 2
"""Minimum number of steps of an episode that is stored."""


class Recorder:
    """Collects an episode step by step and stores it when it ends; steps that do not fit are refused at once."""

    def __init__(
        self, store: Store | Path | str, actions: Sequence[str] | int | gymnasium.Env[Any, Any] | Kind
    ) -> None:
        """Record into a store, or into the one at a path, which is created with the first episode.

        `actions` are the names of discrete actions, which are then given as numbers from 0; or the number of components
        of a continuous action; or an environment that has the actions. The shape of frames and whether there are poses
        is determined by the first `reset`, unless a `Kind` is given.
        """
        self._actions = actions if isinstance(actions, Kind) else _actions_of(actions)
        self._kind = actions if isinstance(actions, Kind) else None
        self._store = store if isinstance(store, Store) else None
        self._path = None if isinstance(store, Store) else as_path(store)
        self._episode: _Growing | None = None
        self._closed = False

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the last episode, and release the store for other writers; nothing can be recorded after it."""
        self.end()
        self._closed = True
        if self._store is not None:
            self._store.close()

    @property
    def kind(self) -> Kind:
        """What all episodes share."""
        if self._kind is None:
            raise InputError("there is no episode; call reset first")
        return self._kind

    def reset(self, frame: Any, pose: Any = None, *, place: object = "", seed: int = 0) -> None:
        """Begin an episode, and end the one before. The frame before the first action is checked but not stored."""
        require(not self._closed, "this recorder is closed, so that nothing would be stored; make another one")
        self.end()
        if self._kind is None:
            shape = (*np.shape(frame), 1)[:3]
            self._kind = replace(self._actions, frame_shape=shape, pose_size=0 if pose is None else np.size(pose))
        self._frame(frame)
        self._episode = _Growing(self._pose(pose), str(place), seed)

    def step(self, action: Any, frame: Any, pose: Any = None) -> None:
        """Add an action, and the frame and the pose that it led to."""
        if self._episode is None:
            raise InputError("there is no episode; call reset first")
        # All are checked before any is kept.
        row = self._action(action), self._frame(frame), self._pose(pose)
        self._episode.rows.append(row)

    def end(self) -> bool:
        """Store the episode; return False if it has fewer than two steps and is dropped."""
        episode = self.finished()
        if episode is not None:
            self.store.append(episode)
        return episode is not None

    def finished(self) -> Episode | None:
        """End the episode and return it without storing it; None if it has fewer than two steps."""
        growing, self._episode = self._episode, None
        if growing is None or len(growing.rows) < FEWEST:
            return None
        actions, frames, poses = zip(*growing.rows, strict=True)
        return Episode(
            np.stack(frames),
            np.array(actions, np.int64) if self.kind.discrete else np.stack(actions),
            np.stack(poses) if self.kind.pose_size else None,
            growing.start,
            growing.place,
            growing.seed,
        )

    @property
    def store(self) -> Store:
        """The store that episodes are written to."""
        if self._store is None:
            assert self._path is not None
            self._store = Store.create(self._path, self.kind)
        return self._store

    def _frame(self, frame: Any) -> np.ndarray:
        shape = self.kind.frame_shape
        fits = isinstance(frame, np.ndarray) and frame.dtype == np.uint8
        fits = fits and frame.shape in (shape, shape[: 3 if shape[2] == 3 else 2])
        if not fits:
            found = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else shown(frame)
            raise InputError(f"the frame is {found}; expected uint8 of shape {shape}")
        return np.array(frame).reshape(shape)  # a copy: many environments draw into the same array

    def _action(self, action: Any) -> Any:
        size = self.kind.action_size
        if self.kind.discrete:
            known = is_whole(action) or (
                isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu"
            )
            if not (known and -1 <= action < size):
                raise InputError(f"the action is {shown(action)}; expected 0 to {size - 1}, or -1 for none")
            return int(action)
        return _numbers("action", action, size)

    def _pose(self, pose: Any) -> np.ndarray | None:
        size = self.kind.pose_size
        if size:
            return _numbers("pose", pose, size)
        require(pose is None, f"the pose is {shown(pose)}; the episodes of this store have none: leave it out")
        return None


class _Growing:
    """The steps of an episode so far."""

    def __init__(self, start: np.ndarray | None, place: str, seed: int) -> None:
        self.start, self.place, self.seed = start, place, seed
        self.rows: list[tuple[Any, np.ndarray, np.ndarray | None]] = []


def _actions_of(given: Sequence[str] | int | gymnasium.Env[Any, Any]) -> Kind:
    """A `Kind` in which only the actions are known yet."""
    if isinstance(given, gymnasium.Env):
        actions = Actions(given)
        name = given.spec.id if given.spec else type(given.unwrapped).__name__
        return Kind((1, 1, 1), actions.names, actions.size, 0, name)
    if isinstance(given, int) and is_whole(given):
        return Kind((1, 1, 1), None, given)
    if isinstance(given, int | str) or not all(isinstance(name, str) for name in given):
        raise InputError(f"actions are {shown(given)}; give their names, how many numbers one has, or an environment")
    return Kind((1, 1, 1), tuple(given), len(given))


def _numbers(name: str, value: Any, size: int) -> np.ndarray:
    try:
        numbers = np.array(value, np.float32)
    except (TypeError, ValueError):
        numbers = np.empty(0, np.float32)
    if numbers.shape != (size,) or not np.isfinite(numbers).all():
        raise InputError(f"the {name} is {shown(value)}; expected {size} finite numbers")
    return numbers
