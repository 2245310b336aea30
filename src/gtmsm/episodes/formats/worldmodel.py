"""stable-worldmodel's HDF5: one array per column, the rows of all episodes one after the other.

| array | what it is |
|---|---|
| `pixels` | uint8 (rows, height, width, 3): what was seen |
| `action` | floats (rows, A): the action that followed; NaN in the last row of an episode |
| `ep_len`, `ep_offset` | integers (episodes): number of rows of each episode, and its first row |
| `pose` | optional, floats (rows, 2 or 3): pose of the agent at that moment |
| `place`, `seed` | optional, by row: place and seed of the episode |

A single column of whole numbers is read as discrete actions. Our own files name actions and environment in attributes.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from gtmsm.config import require
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats import hdf5
from gtmsm.episodes.formats.rows import (
    MOST_EPISODES,
    about,
    appearing,
    as_actions,
    blocks_of,
    episode_of_rows,
    frame_shape,
    is_picture,
    library,
    numbered,
    require_fits,
    rows_of,
    whole,
)
from gtmsm.errors import shortened

NAME = "stable-worldmodel"
SUFFIXES = (".h5", ".hdf5")


def fits(path: Path) -> bool:
    """Whether a path is such a file, by its suffix."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def read(path: Path, size: int | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the episodes, and an iterator over them; those with fewer than two rows have no step."""
    with hdf5.reading(path) as file, about(path):
        kind = _kind(file, size)
    return kind, _episodes(path, kind)


def _columns(file: Any) -> dict[str, Any]:
    """The arrays that are used, checked against each other."""
    found = {name: hdf5.dataset(file, name) for name in ("pixels", "action", "ep_len", "ep_offset")}
    held = shortened(", ".join(hdf5.names(file)), 200) or "nothing"
    for name, column in found.items():
        require(column is not None, f'holds {held}, but no "{name}"; expected pixels, action, ep_len and ep_offset')
    pixels, action = found["pixels"], found["action"]
    pictures = is_picture(pixels.shape, pixels.dtype)
    require(pictures, f"pixels are {pixels.dtype} of shape {pixels.shape}; expected uint8 (rows, height, width, 3)")
    numbers = action.dtype.kind in "iuf" and action.ndim <= 2 and len(action) == len(pixels)
    require(numbers, f"action is {action.dtype} of shape {action.shape}; expected ({len(pixels)}, A) numbers")
    for name in ("ep_len", "ep_offset"):
        fits_in = found[name].ndim == 1 and found[name].dtype.kind in "iu" and len(found[name]) <= len(pixels)
        require(fits_in, f"{name} is {found[name].dtype} of shape {found[name].shape}; expected a number an episode")
    optional = {name: hdf5.dataset(file, name) for name in ("pose", "place", "seed")}
    return found | {name: c for name, c in optional.items() if c is not None and len(c) == len(pixels)}


def _bounds(columns: dict[str, Any]) -> Int64[np.ndarray, "episodes 2"]:
    """The first row of each episode, and the one after its last."""
    count, other, rows = len(columns["ep_len"]), len(columns["ep_offset"]), len(columns["pixels"])
    require(count == other, f"ep_len has {count} numbers, ep_offset {other}")
    require(count <= MOST_EPISODES, f"{count:,} episodes; expected at most {MOST_EPISODES:,}")
    lengths, firsts = columns["ep_len"][:], columns["ep_offset"][:]
    inside = all(bool(((n >= 0) & (n <= rows)).all()) for n in (lengths, firsts))  # so that nothing overflows below
    lasts = firsts.astype(np.int64) + lengths.astype(np.int64)
    inside = inside and bool((lasts <= rows).all()) and int(lengths.sum(dtype=np.int64)) <= rows
    require(inside, f"ep_len and ep_offset do not fit {rows} rows")
    return np.stack([firsts.astype(np.int64), lasts], 1)


def _kind(file: Any, size: int | None) -> Kind:
    """What all episodes share."""
    columns = _columns(file)
    bounds = _bounds(columns)
    require(bool((bounds[:, 1] - bounds[:, 0] > 1).any()), "no episode has two rows; nothing can be read")
    action, shape = columns["action"], frame_shape(columns["pixels"].shape[1:], size)
    environment = hdf5.attribute(file, "gtmsm_environment")
    pose = columns.get("pose")
    poses = pose.shape[1] if pose is not None and pose.ndim == 2 and pose.shape[1] in (2, 3) else 0
    origin = environment if isinstance(environment, str) else NAME
    names = hdf5.attribute(file, "gtmsm_actions")
    if isinstance(names, list) and all(isinstance(name, str) for name in names) and action.size == len(action):
        return Kind(shape, tuple(names), len(names), poses, origin)
    if action.size == len(action):
        most, discrete = 0, True
        for block in blocks_of(action, 0, len(action)):
            discrete = discrete and whole(block)
            most = max(most, int(np.nanmax(block, initial=0))) if discrete else most
        if discrete:
            return Kind(shape, numbered(most + 1), most + 1, poses, origin)
    return Kind(shape, None, int(np.prod(action.shape[1:])), poses, origin)


def _episodes(path: Path, kind: Kind) -> Iterator[Episode]:
    with hdf5.reading(path) as file, about(path):
        columns = _columns(file)
        for number, (first, last) in enumerate(_bounds(columns)):
            if last - first < 2:
                continue
            with about(f"episode {number}"):
                require_fits(int(last - first), kind)
                actions = as_actions(columns["action"][first : last - 1], kind)
                poses = columns["pose"][first:last] if kind.pose_size else None
                seed = int(columns["seed"][first]) if "seed" in columns and columns["seed"].dtype.kind in "iu" else 0
                place = columns["place"][first] if "place" in columns else b""
                text = place.decode(errors="replace") if isinstance(place, bytes) else str(place)
                blocks = blocks_of(columns["pixels"], first, last)
                episode = episode_of_rows(kind, blocks, actions, poses, text, seed)
            yield episode


def write(path: Path, kind: Kind, episodes: Iterable[Episode]) -> None:
    """Write a file that stable-worldmodel's loader reads; each episode begins with the frame after its first action."""
    h5py = library("h5py")
    require(path.suffix in SUFFIXES, f'cannot write this format as "{path.name}"; end its name with .h5')
    with appearing(path) as made, h5py.File(made, "w", locking=False, libver="latest") as file:
        columns: dict[str, tuple[tuple[int, ...], Any]] = {
            "pixels": (kind.frame_shape, np.uint8),
            "action": ((1 if kind.discrete else kind.action_size,), np.float32),
            "seed": ((), np.int64),
            "place": ((), "S200"),
        }
        if kind.pose_size:
            columns["pose"] = ((kind.pose_size,), np.float32)
        for name, (shape, dtype) in columns.items():
            each = 1 if name == "pixels" else 1024
            packed = "gzip" if name == "place" else None
            chunks, most = (each, *shape), (None, *shape)
            file.create_dataset(name, (0, *shape), dtype, maxshape=most, chunks=chunks, compression=packed)
        for name, dtype in (("ep_len", np.int32), ("ep_offset", np.int64)):
            file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(1024,))
        hdf5.annotate(file, "gtmsm_environment", kind.environment)
        hdf5.annotate(file, "gtmsm_actions", kind.action_names)
        rows = 0
        for episode in episodes:
            episode.require(kind)
            frames, actions, poses = rows_of(episode)
            done = np.full((len(frames), *columns["action"][0]), np.nan, np.float32)
            done[:-1] = actions.reshape(len(actions), -1)
            parts = {"pixels": frames, "action": done, "seed": episode.seed, "place": episode.place.encode()[:200]}
            if poses is not None:
                parts["pose"] = poses
            parts |= {"ep_len": [len(frames)], "ep_offset": [rows]}
            for name, part in parts.items():
                column = file[name]
                before = len(column)
                column.resize(before + (1 if name.startswith("ep_") else len(frames)), axis=0)
                column[before:] = part
            rows += len(frames)
