"""A recorded episode, and what all episodes of a store have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from gtmsm.config import is_whole, require, require_whole
from gtmsm.errors import InputError, shortened, shown

LONGEST_SIDE = 4096
"""Maximum side of a frame in pixels."""
MOST_NUMBERS = 4096
"""Maximum number of actions, or of components of an action vector."""
MOST_STEPS, MOST_BYTES = 2**20, 2**32
"""Maximum steps of an episode, and maximum bytes of its frames."""
LONGEST_NAME = 200
"""Maximum number of characters in the name of a place."""


@dataclass(frozen=True)
class Kind:
    """What all episodes of a store share."""

    frame_shape: tuple[int, int, int]
    """Height, width, channels (1 or 3), as in files."""
    action_names: tuple[str, ...] | None
    """A name for each action if actions are discrete; None if they are continuous."""
    action_size: int
    """Number of actions, or of components of an action vector."""
    pose_size: int = 0
    """0: poses are unknown; 2: x, y; 3: x, y, heading in radians."""
    environment: str = ""
    """Gymnasium id, or the origin of the recording."""

    def __post_init__(self) -> None:
        shape, names = tuple(self.frame_shape), self.action_names
        require(
            len(shape) == 3 and all(is_whole(n) and 1 <= n <= LONGEST_SIDE for n in shape) and shape[2] in (1, 3),
            f"frames of shape {shown(shape)}; expected height, width (up to {LONGEST_SIDE} pixels), channels (1 or 3)",
        )
        require_whole("action_size", self.action_size, 1, MOST_NUMBERS)
        if names is not None:
            words = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
            require(words, f"action_names are {shown(names)}; expected words")
            require(
                len(names) == self.action_size,
                f"{len(names)} action_names for {self.action_size} actions; give a name for each",
            )
            object.__setattr__(self, "action_names", tuple(names))
        require(
            is_whole(self.pose_size) and self.pose_size in (0, 2, 3),
            f"pose_size is {shown(self.pose_size)}; expected 0 (unknown), 2 (x, y) or 3 (x, y, heading in radians)",
        )
        require(isinstance(self.environment, str), f"environment is {shown(self.environment)}; expected a word")
        object.__setattr__(self, "frame_shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "action_size", int(self.action_size))

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete, not vectors."""
        return self.action_names is not None


@dataclass(frozen=True)
class Episode:
    """A walk: frame t is what action t led to; the frame before the first action is not part of it."""

    frames: UInt8[np.ndarray, "time height width channel"]
    actions: Int64[np.ndarray, "time"] | Float32[np.ndarray, "time A"]
    """The number of each action, -1 for none; or a vector for each."""
    poses: Float32[np.ndarray, "time D"] | None = None
    """Pose of the agent after each action, if known."""
    start: Float32[np.ndarray, "D"] | None = None
    """Pose before the first action, if poses are known."""
    place: str = ""
    """Name of the place (a map, a seed): whole places are held out."""
    seed: int = 0
    """Seed that the episode was made from."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.frames)

    def require(self, kind: Kind) -> None:
        """Refuse an episode that does not fit into a store of this kind."""
        steps = len(self.frames) if isinstance(self.frames, np.ndarray) and self.frames.ndim else 0
        _require_array("frames", self.frames, np.uint8, (steps, *kind.frame_shape))
        require(steps > 0, "the episode has 0 steps; it needs at least 1")
        too_long = steps > MOST_STEPS or self.frames.nbytes > MOST_BYTES
        require(not too_long, f"the episode has {steps} steps, {self.frames.nbytes:,} bytes of frames; cut it")
        if kind.discrete:
            _require_array("actions", self.actions, np.int64, (steps,))
            for step in np.flatnonzero((self.actions < -1) | (self.actions >= kind.action_size))[:1]:
                known = f"0 to {kind.action_size - 1}, and -1 for none"
                raise InputError(f"action {self.actions[step]} at step {step + 1}; expected {known}")
        else:
            _require_array("actions", self.actions, np.float32, (steps, kind.action_size))
        if kind.pose_size:
            _require_array("poses", self.poses, np.float32, (steps, kind.pose_size))
            _require_array("start", self.start, np.float32, (kind.pose_size,))
        else:
            unknown = self.poses is None and self.start is None
            require(unknown, "the episode has poses, but a pose_size of 0 says that they are unknown; leave them out")
        named = isinstance(self.place, str) and len(self.place) <= LONGEST_NAME and self.place.isprintable()
        require(named, f"place is {shown(self.place)}; expected a name of at most {LONGEST_NAME} letters")
        require_whole("seed", self.seed, -(2**63), 2**63 - 1)


def _require_array(name: str, found: object, dtype: type, shape: tuple[int, ...]) -> None:
    """Refuse anything but an array of this type and shape whose numbers are finite."""
    if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape != shape:
        array = isinstance(found, np.ndarray)
        said = f"{shortened(str(found.dtype))} of shape {found.shape}" if array else shown(found)  # type: ignore[attr-defined]
        raise InputError(f"{name} are {said}; expected {np.dtype(dtype)} of shape {shape}")
    if found.dtype.kind == "f":
        for row in np.argwhere(~np.isfinite(found))[:1, 0]:
            raise InputError(f"{name}: row {row + 1} is not finite; leave out what is not a number")
