"""A clip as a file: one .npz of plain arrays, which numpy.savez can write too.

| array | what it is |
|---|---|
| `frames` | uint8 (time, height, width, 3): what was seen after each action |
| `actions` | integers (time): the number of each action, -1 for none; or floats (time, A), a vector each |
| `poses` | optional, floats (time, D): true poses of the agent; row, column on images, x, y, heading in rooms |
| `map` | optional, uint8 (tall, wide, 3): the place from above; needs `poses` and the next two |
| `map_origin` | floats (2): the pixel (to the right, down) of the pose 0, 0 on the map |
| `map_scale` | floats (2, 2): how far that pixel moves (rows: right, down) per unit of a pose's first two numbers |
| `kind` | optional, a word: "image-walk" or "rooms" |
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot
from gtmsm.errors import InputError, shortened
from gtmsm.files import read_arrays, write_atomically
from gtmsm.tensors import are_finite

SUFFIX = ".npz"
KINDS = {2: "image-walk", 3: "rooms"}
"""Kind of world, by the size of a pose."""
LONGEST = 10_000
"""Maximum steps of a clip."""
EXAMPLE = "numpy.savez(path, frames=..., actions=...)"


@dataclass(frozen=True)
class Chart:
    """A place from above, for display, and where poses are on it."""

    picture: UInt8[np.ndarray, "tall wide 3"]
    origin: Float[np.ndarray, "2"]
    scale: Float[np.ndarray, "2 2"]

    def pixel(self, poses: Float[np.ndarray, "*n D"]) -> Float[np.ndarray, "*n 2"]:
        """Pixels of poses, to the right and down from the top left corner."""
        return self.origin + poses[..., :2] @ self.scale.T


@dataclass(frozen=True)
class Recording:
    """One clip as it is stored."""

    frames: UInt8[np.ndarray, "time height width 3"]
    actions: Int64[np.ndarray, "time"] | Float[np.ndarray, "time A"]
    poses: Float[np.ndarray, "time D"] | None = None
    """True poses of the agent, if known."""
    chart: Chart | None = None
    kind: str = ""
    """Kind of world, if known."""

    @classmethod
    def of(cls, clip: Clip, chart: Chart | None = None) -> "Recording":
        """Convert a clip of a single walk, to be stored."""
        fits = isinstance(clip, Clip) and all(
            isinstance(part, Tensor) and part.is_floating_point() and part.dim() == n and not part.is_meta
            for part, n in ((clip.x, 5), (clip.a, 3), (clip.true_pose, 3))
        )
        fits = fits and clip.x.shape[:2] == clip.a.shape[:2] == clip.true_pose.shape[:2] and clip.x.shape[2] == 3
        require(fits, "that is no clip; give one of RGB frames, with an action and a pose for each")
        require(len(clip.x) == 1, f"got {len(clip.x)} walks; a file holds one: give clip[i : i + 1]")
        numbers = bool((clip.x.clamp(0, 1) == clip.x).all()) and are_finite(clip.a, clip.true_pose)
        require(numbers, "frames are not in [0, 1], or actions or poses not finite; give those of a walk")
        x, a, pose = (part.detach()[0].cpu() for part in (clip.x, clip.a, clip.true_pose))
        frames = (255 * x).round().byte().permute(0, 2, 3, 1).numpy()
        return cls(frames, _numbers(a.float().numpy()), pose.float().numpy(), chart, KINDS.get(pose.shape[-1], ""))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.frames)

    def x(self, device: torch.device | str = "cpu") -> Float[Tensor, "1 time 3 height width"]:
        """Frames as a model expects them, with a batch of 1."""
        return torch.from_numpy(self.frames).to(device).permute(0, 3, 1, 2)[None].float() / 255

    def a(self, count: int, device: torch.device | str = "cpu") -> Float[Tensor, "1 time count"]:
        """Actions as a model with `count` actions expects them."""
        actions = torch.from_numpy(self.actions).to(device)[None]
        return actions.float() if actions.dim() == 3 else one_hot(actions, count)


def _numbers(vectors: Float[np.ndarray, "time A"]) -> Int64[np.ndarray, "time"] | Float[np.ndarray, "time A"]:
    """The numbers of one-hot actions; other vectors are unchanged."""
    pressed = vectors.sum(1)
    if not (np.isin(vectors, (0, 1)).all() and (pressed <= 1).all()):
        return vectors
    return np.where(pressed > 0, vectors.argmax(1), -1).astype(np.int64)


def require_clip_name(path: Path) -> None:
    """Refuse a file name that does not have a clip's suffix, before any work is done."""
    require(path.suffix.lower() == SUFFIX, f'cannot write a clip as "{path.name}"; end its name with {SUFFIX}')


def write_clip(path: Path, recording: Recording) -> None:
    """Write the file described above, complete or not at all."""
    require_clip_name(path)
    arrays = {"frames": recording.frames, "actions": recording.actions, "kind": np.array(recording.kind)}
    if recording.poses is not None:
        arrays["poses"] = recording.poses
    if recording.chart is not None:
        chart = recording.chart
        arrays |= {"map": chart.picture, "map_origin": chart.origin, "map_scale": chart.scale}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def read_clip(path: Path, frame_shape: tuple[int, int, int], actions: int) -> Recording:
    """Read a clip for a model with frames of `frame_shape` and `actions` actions; nothing is unpickled."""
    arrays = _read_arrays(path)
    frames, done = arrays["frames"], arrays["actions"]
    require(
        frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[-1] == 3,
        f"{path}: frames are {_said(frames)}; expected uint8 of shape (time, height, width, 3)",
    )
    require(len(frames) > 0, f"{path}: has 0 steps; a clip needs at least 1")
    require(len(frames) <= LONGEST, f"{path}: has {len(frames)} steps; give a clip of at most {LONGEST}")
    require_size(f"{path}: frames are", frames.shape[1], frames.shape[2], frame_shape)
    _check_actions(path, done, len(frames), actions)
    poses = arrays.get("poses")
    if poses is not None:
        require(
            poses.shape in ((len(frames), 2), (len(frames), 3)) and _finite(poses),
            f"{path}: poses are {_said(poses)}; expected finite numbers of shape ({len(frames)}, 2) or (.., 3)",
        )
    numbers = done.astype(np.float32 if done.ndim == 2 else np.int64)
    kind = arrays.get("kind", np.array(""))
    require(kind.dtype.kind == "U" and kind.ndim == 0, f"{path}: kind is {_said(kind)}; expected a word")
    return Recording(frames, numbers, None if poses is None else poses.astype(float), _chart(path, arrays), str(kind))


def require_size(what: str, height: int, width: int, frame_shape: tuple[int, int, int]) -> None:
    """Refuse pictures of another size than the model's frames."""
    tall, wide = frame_shape[1:]
    require(
        (height, width) == (tall, wide),
        f"{what} {width}x{height} pixels; this model sees {wide}x{tall}: cut or scale to that size",
    )


def _check_actions(path: Path, done: np.ndarray, steps: int, known: int) -> None:
    """Refuse actions that the model does not have, or that are not one for each frame."""
    is_number, is_vector = done.dtype.kind in "iu", done.dtype.kind == "f"
    require(
        (is_number and done.ndim == 1) or (is_vector and done.ndim == 2),
        f"{path}: actions are {_said(done)}; expected integers of shape (time), or floats of shape (time, {known})",
    )
    require(len(done) == steps, f"{path}: {len(done)} actions and {steps} frames; give as many of each")
    if is_vector:
        require(
            done.shape[1] == known and _finite(done),
            f"{path}: actions are vectors of {done.shape[1]} numbers; this model's have {known}, all of them finite",
        )
        return
    for step in np.flatnonzero((done < -1) | (done >= known))[:1]:
        raise InputError(
            f"{path}: action {done[step]} at step {step + 1}; this model knows 0 to {known - 1}, and -1 for none"
        )


def _chart(path: Path, arrays: Mapping[str, np.ndarray]) -> Chart | None:
    """The map and its coordinates; None if there is no map."""
    if "map" not in arrays:
        return None
    for name in ("map_origin", "map_scale", "poses"):
        require(name in arrays, f"{path}: has a map but no {name}; add it, or leave out the map")
    picture, origin, scale = (arrays[name] for name in ("map", "map_origin", "map_scale"))
    require(
        picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3 and picture.size > 0,
        f"{path}: map is {_said(picture)}; expected uint8 of shape (tall, wide, 3)",
    )
    for name, array, shape in (("map_origin", origin, (2,)), ("map_scale", scale, (2, 2))):
        require(
            array.shape == shape and _finite(array),
            f"{path}: {name} is {_said(array)}; expected finite numbers of shape {shape}",
        )
    return Chart(picture, origin.astype(float), scale.astype(float))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays by name; unknown ones are not read."""
    names = ("frames", "actions", "poses", "map", "map_origin", "map_scale", "kind")
    require(path.exists(), f"{path}: no such clip; make one with `gtmsm record`, or with {EXAMPLE}")
    arrays, holds = read_arrays(path, names, f"write it with {EXAMPLE}")
    for name in ("frames", "actions"):
        require(name in arrays, f"{path}: holds {holds}, but no {name}; write them with {EXAMPLE}")
    return arrays


def _finite(array: np.ndarray) -> bool:
    """Whether an array holds real numbers that are finite in float32, the precision of a model."""
    return array.dtype.kind in "iuf" and bool((np.abs(array) <= np.finfo(np.float32).max).all())


def _said(array: np.ndarray) -> str:
    """Type and shape of an array, for an error message."""
    return f"{shortened(str(array.dtype))} of shape {shortened(str(array.shape))}"
