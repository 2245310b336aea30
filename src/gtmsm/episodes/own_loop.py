"""Episodes from a loop of one's own: a few lines around any environment, or around none.

>>> recorder = Recorder(Kind((64, 64, 3), ("left", "right", "forward"), 3), Path("clips"))
>>> recorder.reset(frame, place="kitchen")
>>> recorder.step(action, frame)  # what the action led to
>>> recorder.end()
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from gtmsm.config import is_whole, require
from gtmsm.episodes.actions import Actions
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.pictures import picture_shape
from gtmsm.episodes.store import Store
from gtmsm.errors import InputError, shown
from gtmsm.files import as_path

FEWEST = 2
"""Steps of an episode that is worth storing."""


class Recorder:
    """Collects an episode step by step, refuses what does not fit at once, and stores it when it ends."""

    def __init__(self, kind: Kind | gymnasium.Env[Any, Any], store: Store | Path | str) -> None:
        """Into a store, or the one at a path, made with the first episode; the kind is given or an environment's.

        An environment says nothing about poses: whether there are any is settled by the first `reset`.
        """
        self._settled = isinstance(kind, Kind)
        self.kind = kind if isinstance(kind, Kind) else kind_of(kind)
        self._store = store if isinstance(store, Store) else None
        self._path = None if isinstance(store, Store) else as_path(store)
        self._episode: _Growing | None = None

    def reset(self, frame: Any, pose: Any = None, *, place: object = "", seed: int = 0) -> None:
        """An episode begins, and the one before it ends; the frame before the first action is looked at, not stored."""
        self.end()
        if not self._settled:
            self.kind, self._settled = replace(self.kind, pose_size=0 if pose is None else np.size(pose)), True
        self._frame(frame)
        self._episode = _Growing(self._pose(pose), str(place), seed)

    def step(self, action: Any, frame: Any, pose: Any = None) -> None:
        """An action, the frame and the pose that it led to."""
        if self._episode is None:
            raise InputError("there is no episode; call reset first")
        # All are checked before any is kept.
        row = self._action(action), self._frame(frame), self._pose(pose)
        self._episode.rows.append(row)

    def end(self) -> bool:
        """Store the episode; False where it has fewer than two steps, and is dropped."""
        episode = self.finished()
        if episode is not None:
            self.store.append(episode)
        return episode is not None

    def finished(self) -> Episode | None:
        """The episode, which ends here and is not stored; None where it has fewer than two steps."""
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
        """Where episodes go."""
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
    """An episode so far."""

    def __init__(self, start: np.ndarray | None, place: str, seed: int) -> None:
        self.start, self.place, self.seed = start, place, seed
        self.rows: list[tuple[Any, np.ndarray, np.ndarray | None]] = []


def kind_of(env: gymnasium.Env[Any, Any]) -> Kind:
    """Frames as the environment's observations are, its actions, and no poses."""
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    actions = Actions(env)
    return Kind(picture_shape(env.observation_space), actions.names, actions.size, 0, name)


def _numbers(name: str, value: Any, size: int) -> np.ndarray:
    try:
        numbers = np.array(value, np.float32)
    except (TypeError, ValueError):
        numbers = np.empty(0, np.float32)
    if numbers.shape != (size,) or not np.isfinite(numbers).all():
        raise InputError(f"the {name} is {shown(value)}; expected {size} finite numbers")
    return numbers
