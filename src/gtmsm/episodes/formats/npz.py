"""Our own files: one .npz per clip, as `gtmsm.data.store` describes it, or a folder of them.

Frame t is what action t led to, so nothing is shifted. Besides the arrays described there, an .npz may have `start`
(floats: the pose before the first action), `place`, `environment`, `names` (words) and `seed`. If poses are known and
`start` is not, the first step is left out: its pose becomes the start.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gtmsm.config import require
from gtmsm.data.store import EXAMPLE, SUFFIX
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats.rows import (
    about,
    appearing,
    as_actions,
    as_floats,
    frame_shape,
    gather,
    is_picture,
    numbered,
)
from gtmsm.errors import shortened
from gtmsm.files import read_arrays

NAME = "npz"
ARRAYS = ("frames", "actions", "poses", "start", "place", "environment", "names", "seed")


def fits(path: Path) -> bool:
    """Whether a path is a clip, or a folder with clips."""
    return _is_clip(path) or (path.is_dir() and any(map(_is_clip, path.iterdir())))


def _is_clip(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX and path.is_file()


def _clips(path: Path) -> list[Path]:
    return sorted(filter(_is_clip, path.iterdir())) if path.is_dir() else [path]


def read(path: Path, size: int | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the clips, by the first of them, and an iterator over them."""
    clips = _clips(path)
    require(bool(clips), f"{path}: no clips in it; expected files that end with {SUFFIX}")
    with about(clips[0]):
        kind = _kind(_arrays(clips[0]), size)
    if kind.action_names == numbered(kind.action_size):  # as many as the largest number in all clips
        most = max(_largest(clip) for clip in clips) + 1
        kind = Kind(kind.frame_shape, numbered(most), most, kind.pose_size, kind.environment)
    return kind, _episodes(clips, kind)


def _largest(path: Path) -> int:
    """Largest number of an action in a clip."""
    actions = read_arrays(path, ("actions",), f"write it with {EXAMPLE}")[0].get("actions", np.array(0))
    return int(actions.max(initial=0)) if actions.dtype.kind in "iu" else 0


def _arrays(path: Path) -> dict[str, np.ndarray]:
    arrays, holds = read_arrays(path, ARRAYS, f"write it with {EXAMPLE}")
    for name in ("frames", "actions"):
        require(name in arrays, f"holds {holds}, but no {name}; write them with {EXAMPLE}")
    frames, actions = arrays["frames"], arrays["actions"]
    said = f"frames are {shortened(str(frames.dtype))} of shape {shortened(str(frames.shape))}"
    require(is_picture(frames.shape, frames.dtype), f"{said}; expected uint8 of shape (time, height, width, 3)")
    numbers = (actions.dtype.kind in "iu" and actions.ndim == 1) or (actions.dtype.kind == "f" and actions.ndim == 2)
    said = f"{shortened(str(actions.dtype))} of shape {shortened(str(actions.shape))}"
    require(numbers, f"actions are {said}; expected integers of shape (time), or floats of shape (time, A)")
    return arrays


def _kind(arrays: dict[str, np.ndarray], size: int | None) -> Kind:
    frames, actions, poses = arrays["frames"], arrays["actions"], arrays.get("poses")
    known = poses.shape[1] if poses is not None and poses.ndim == 2 and poses.dtype.kind in "iuf" else 0
    shape, environment = frame_shape(frames.shape[1:], size), _word(arrays, "environment")
    if actions.ndim == 2:
        return Kind(shape, None, actions.shape[1], known, environment)
    names = arrays.get("names")
    if names is not None and names.dtype.kind == "U" and names.ndim == 1:
        return Kind(shape, tuple(names.tolist()), len(names), known, environment)
    count = int(actions.max(initial=0)) + 1
    return Kind(shape, numbered(count), count, known, environment)


def _word(arrays: dict[str, np.ndarray], name: str) -> str:
    word = arrays.get(name)
    return str(word) if word is not None and word.dtype.kind == "U" and word.ndim == 0 else ""


def _episodes(clips: list[Path], kind: Kind) -> Iterator[Episode]:
    for clip in clips:
        with about(clip):
            arrays = _arrays(clip)
            frames = gather([arrays["frames"]], len(arrays["frames"]), kind)
            require(
                arrays["actions"].ndim == 2 - kind.discrete, "its actions are of another kind than the first clip's"
            )
            actions = as_actions(arrays["actions"], kind)
            seed = arrays.get("seed", np.array(0))
            number = int(seed) if seed.dtype.kind in "iu" and seed.ndim == 0 else 0
            place = _word(arrays, "place")
            if not kind.pose_size:
                episode = Episode(frames, actions, place=place, seed=number)
            else:
                require("poses" in arrays, "has no poses; the first clip has them")
                poses, start = as_floats(arrays["poses"]), arrays.get("start")
                require(
                    poses.ndim == 2 and len(poses) == len(frames), f"{poses.shape} poses; expected one for each frame"
                )
                first = 1 if start is None else 0
                begin = poses[0] if start is None else as_floats(start)
                episode = Episode(frames[first:], actions[first:], poses[first:], begin, place, number)
            episode.require(kind)
        yield episode


def write(path: Path, kind: Kind, episodes: Iterable[Episode]) -> None:
    """Write a folder of clips, or a single clip if `path` ends with .npz."""
    single = path.suffix.lower() == SUFFIX
    with appearing(path) as made:
        if not single:
            made.mkdir()
        for number, episode in enumerate(episodes):
            require(not single or number == 0, f"{path}: an .npz holds one episode; name a folder instead")
            episode.require(kind)
            arrays = {"frames": episode.frames, "actions": episode.actions, "place": np.array(episode.place)}
            arrays |= {"seed": np.array(episode.seed), "environment": np.array(kind.environment)}
            if kind.action_names is not None:
                arrays["names"] = np.array(kind.action_names)
            if episode.poses is not None and episode.start is not None:
                arrays |= {"poses": episode.poses, "start": episode.start}
            np.savez_compressed(made if single else made / f"{number:06d}{SUFFIX}", **arrays)  # type: ignore[arg-type]
