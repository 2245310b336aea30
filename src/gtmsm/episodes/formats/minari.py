"""Minari data sets: a folder `data` with metadata.json and main_data.hdf5, in which each episode is a group.

An episode of T actions has T + 1 observations: observation t is what was seen before action t. Read and written without
the package itself. Pictures are written without loss (Minari's own default, JPEG, is lossy).
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gtmsm.config import is_whole, require
from gtmsm.episodes import pictures
from gtmsm.episodes.episode import MOST_NUMBERS, Episode, Kind
from gtmsm.episodes.formats import hdf5
from gtmsm.episodes.formats.rows import (
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
)
from gtmsm.errors import InputError, shortened, shown
from gtmsm.files import opened, parse_json

NAME = "minari"
VERSION = "0.5.4"
"""Version of Minari whose layout is written."""
METADATA, MAIN = "metadata.json", "main_data.hdf5"
MOST_METADATA = 2**25
"""Maximum bytes of the metadata: a space lists two bounds for each of its numbers."""
DEEPEST, MOST_COLUMNS = 8, 1_000
"""Maximum depth of groups in an observation, and maximum number of its parts: a group may contain itself."""
FAVOURED = ("pixels", "image", "rgb", "observation")
"""Names of the picture that is read if an observation has several, in order of preference."""


def fits(path: Path) -> bool:
    """Whether a path is a data set, or the folder `data` inside one."""
    return _folder(path) is not None


def _folder(path: Path) -> Path | None:
    return next((folder for folder in (path, path / "data") if (folder / METADATA).is_file()), None)


def read(path: Path, size: int | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the episodes, and an iterator over them."""
    folder = _folder(path)
    require(folder is not None, f"{path}: no {METADATA} in it; expected the folder of a Minari data set")
    assert folder is not None
    metadata = _metadata(folder)
    space = _space(metadata, folder)
    with hdf5.reading(folder / MAIN) as file, about(folder / MAIN):
        first = _group(file, "episode_0")
        require(first is not None, "has no episode_0; expected a group for each episode")
        key, shape = _pictures(first, metadata, size)
        names, count = _actions(space)
        pose = _pose(first)
        kind = Kind(shape, names, count, 0 if pose is None else pose.shape[1], _environment(metadata))
    return kind, _episodes(folder / MAIN, kind, key, space)


def _metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata; formats other than HDF5 are refused."""
    path = folder / METADATA
    with opened(path) as file:
        content = file.read(MOST_METADATA + 1)
    require(len(content) <= MOST_METADATA, f"{path} has more than {MOST_METADATA:,} bytes")
    metadata = parse_json(content, str(path))
    stored = metadata.get("data_format", "hdf5")
    fix = 'write it anew with create_dataset(..., data_format="hdf5")'
    require(stored == "hdf5", f"{path}: data_format is {shown(stored)}; only hdf5 is read: {fix}")
    return metadata


def _space(metadata: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read the action space."""
    text = metadata.get("action_space")
    fix = "an older Minari left it out; load it with minari and store it again"
    require(isinstance(text, str), f"{folder / METADATA} names no action_space; {fix}")
    return parse_json(str(text), f"{folder / METADATA}: action_space")


def _actions(space: dict[str, Any]) -> tuple[tuple[str, ...] | None, int]:
    """Names and number of discrete actions; or None, and the number of components of an action."""
    match space:
        case {"type": "Discrete", "n": n} if is_whole(n) and 1 <= n <= MOST_NUMBERS:
            return _names(space, n), n
        case {"type": "MultiDiscrete", "nvec": [*each]} if all(is_whole(n) and 1 <= n <= MOST_NUMBERS for n in each):
            count = math.prod(each)
            require(
                count <= MOST_NUMBERS, f"{count:,} combinations of actions; at most {MOST_NUMBERS} can be told apart"
            )
            return _names(space, count) or tuple(",".join(map(str, c)) for c in product(*map(range, each))), count
        case {"type": "MultiBinary", "n": n} if is_whole(n) and 1 <= n <= MOST_NUMBERS:
            return None, n
        case {"type": "Box", "shape": [*sides]} if all(is_whole(n) and 1 <= n <= MOST_NUMBERS for n in sides):
            return None, math.prod(sides)
    raise InputError(f"actions are of the space {shown(space)}; expected Discrete, MultiDiscrete, MultiBinary or Box")


def _names(space: dict[str, Any], count: int) -> tuple[str, ...] | None:
    """Names of actions if gtmsm wrote the file; else numbers for a Discrete space, None for others."""
    names = space.get("gtmsm_names")
    if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
        return tuple(names)
    return numbered(count) if space["type"] == "Discrete" else None


def _numbers(stored: np.ndarray, space: dict[str, Any]) -> np.ndarray:
    """Count discrete actions from 0; a combination of several becomes one number."""
    if space["type"] in ("Discrete", "MultiDiscrete"):
        require(stored.dtype.kind in "iu", f"actions are {stored.dtype}; expected integers")
    if space["type"] == "Discrete":
        start = space.get("start", 0)
        return stored.astype(np.int64) - (int(start) if is_whole(start) else 0)
    if space["type"] == "MultiDiscrete":
        starts = space.get("start") or [0] * len(space["nvec"])
        fits_in = isinstance(starts, list) and len(starts) == len(space["nvec"]) and all(map(is_whole, starts))
        require(fits_in, f"MultiDiscrete starts at {shown(starts)}; expected a whole number for each")
        digits = stored.reshape(len(stored), -1).astype(np.int64)
        require(digits.shape[1] == len(starts), f"actions of {digits.shape[1]} numbers; expected {len(starts)}")
        digits = digits - np.asarray(starts)
        each = np.asarray(space["nvec"], np.int64)
        require(bool(((digits >= 0) & (digits < each)).all()), "an action outside of its space")
        return np.ravel_multi_index(tuple(digits.T), tuple(each))
    return stored


def _environment(metadata: dict[str, Any]) -> str:
    """Id of the Gymnasium environment if it is known, else of the data set."""
    text = metadata.get("env_spec")
    name = parse_json(text, "env_spec").get("id") if isinstance(text, str) else metadata.get("dataset_id")
    return name if isinstance(name, str) else NAME


def _group(parent: Any, name: str) -> Any:
    """Return a group of this name, or None."""
    found = hdf5.member(parent, name)
    require(found is None or hasattr(found, "keys"), f"{shown(name)} is an array; expected a group")
    return found


def _pictures(episode: Any, metadata: dict[str, Any], size: int | None) -> tuple[str, tuple[int, int, int]]:
    """Path of the pictures inside an episode, and their shape."""
    found: dict[str, tuple[int, int, int]] = {}
    others: list[str] = []
    budget: list[str] = []

    def look(parent: Any, name: str, path: str, depth: int) -> None:
        budget.append(name)
        require(len(budget) <= MOST_COLUMNS, f"more than {MOST_COLUMNS} parts of an observation")
        inside = hdf5.member(parent, name)
        if hasattr(inside, "keys") and depth < DEEPEST:
            for key in hdf5.names(inside):
                look(inside, key, f"{path}/{key}", depth + 1)
            return
        column = hdf5.dataset(parent, name, packed=True) if inside is not None and not hasattr(inside, "keys") else None
        if column is None or len(column) == 0:
            return
        if column.dtype.kind == "O" or _is_jpeg(column):
            found[path] = frame_shape(pictures.of_bytes(bytes(column[0])).shape, size)
        elif is_picture(column.shape, column.dtype):
            found[path] = frame_shape(column.shape[1:], size)
        else:
            others.append(f"{path} {column.shape}")

    look(episode, "observations", "observations", 0)
    held = shortened(", ".join([*found, *others]), 300)
    require(bool(found), f"no pictures among {held or 'nothing'}; expected uint8 (time, height, width, 3)")
    favoured = [path for name in FAVOURED for path in found if path.endswith(f"/{name}")]
    require(len(found) == 1 or bool(favoured), f"several pictures: {held}; keep one, or name one of them pixels")
    path = favoured[0] if favoured else next(iter(found))
    return path, found[path]


def _is_jpeg(column: Any) -> bool:
    """Whether each row is a JPEG, in a column whose rows all have the same length."""
    return column.dtype == np.uint8 and column.ndim == 2 and column.shape[1] > 2 and bytes(column[0, :2]) == b"\xff\xd8"


def _pose(episode: Any) -> Any:
    """Pose of the agent at each observation, if the infos have it."""
    infos = _group(episode, "infos")
    pose = hdf5.dataset(infos, "pose") if infos is not None else None
    known = pose is not None and pose.ndim == 2 and pose.shape[1] in (2, 3) and pose.dtype.kind == "f"
    return pose if known else None


def _episodes(path: Path, kind: Kind, key: str, space: dict[str, Any]) -> Iterator[Episode]:
    with hdf5.reading(path) as file, about(path):
        number = 0
        while (group := _group(file, f"episode_{number}")) is not None:
            with about(f"episode_{number}"):
                episode = _episode(group, kind, key, space)
            if episode is not None:
                yield episode
            number += 1


def _episode(group: Any, kind: Kind, key: str, space: dict[str, Any]) -> Episode | None:
    """Read an episode; None if it has no action."""
    *above, name = key.split("/")
    parent = group
    for step in above:
        parent = _group(parent, step)
        require(parent is not None, f"has no {key}")
    seen, done = hdf5.dataset(parent, name, packed=True), hdf5.dataset(group, "actions")
    require(seen is not None and done is not None, f"has no {key}, or no actions")
    rows = len(seen)
    require(rows == len(done) + 1, f"{rows} observations and {len(done)} actions; expected one more")
    if rows < 2:
        return None
    require_fits(rows, kind)
    held = done.shape[1:] == () or math.prod(done.shape[1:]) <= MOST_NUMBERS
    require(held, f"actions are of shape {done.shape}; expected at most {MOST_NUMBERS} numbers each")
    packed = seen.dtype.kind == "O" or _is_jpeg(seen)
    blocks = (pictures.of_bytes(bytes(seen[t]))[None] for t in range(rows)) if packed else blocks_of(seen, 0, rows)
    fits_in = packed or is_picture(seen.shape, seen.dtype)
    require(fits_in, f"{key} is {seen.dtype} of shape {seen.shape}; expected pictures")
    pose = _pose(group) if kind.pose_size else None
    seed = group.attrs["seed"] if "seed" in group.attrs and group.attrs.get_id("seed").shape == () else 0
    place = hdf5.attribute(group, "gtmsm_place")
    return episode_of_rows(
        kind,
        blocks,
        as_actions(_numbers(done[:], space), kind),
        None if pose is None else pose[:],
        place if isinstance(place, str) else "",
        int(seed) if is_whole(seed) else 0,
    )


def write(path: Path, kind: Kind, episodes: Iterable[Episode]) -> None:
    """Write a folder that `minari.MinariDataset(path / "data")` reads; episodes of one step are left out."""
    h5py = library("h5py")
    with appearing(path) as made:
        (made / "data").mkdir(parents=True)
        count = steps = 0
        with h5py.File(made / "data" / MAIN, "w", locking=False, track_order=True) as file:
            for episode in episodes:
                episode.require(kind)
                if episode.steps > 1:
                    _write_episode(file.create_group(f"episode_{count}"), count, kind, episode)
                    count, steps = count + 1, steps + episode.steps - 1
        require(count > 0, "no episode has two steps; nothing to write")
        stem = re.sub(r"[^\w-]", "-", path.name)
        metadata = {
            "total_episodes": count,
            "total_steps": steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": json.dumps(_box(kind.frame_shape, "uint8", 0, 255)),
            "action_space": json.dumps(_action_space(kind)),
            "dataset_id": stem if re.search(r"-v\d+$", stem) else f"{stem}-v0",
            "minari_version": VERSION,
            "dataset_size": round((made / "data" / MAIN).stat().st_size / 1e6, 1),
        }
        (made / "data" / METADATA).write_text(json.dumps(metadata))


def _write_episode(group: Any, number: int, kind: Kind, episode: Episode) -> None:
    frames, actions, poses = rows_of(episode)
    for step in np.flatnonzero(actions < 0)[:1] if kind.discrete else ():
        raise InputError(f"no action at step {step + 2} of episode {number}: Minari knows no such thing; write .h5")
    group.attrs.update({"id": number, "seed": episode.seed, "total_steps": len(actions)})
    hdf5.annotate(group, "gtmsm_place", episode.place)
    group.create_dataset("observations", data=frames, chunks=(1, *kind.frame_shape))
    group.create_dataset("actions", data=actions)
    ends = np.arange(len(actions)) == len(actions) - 1
    group.create_dataset("rewards", data=np.zeros(len(actions), np.float32))
    group.create_dataset("terminations", data=np.zeros(len(actions), bool))
    group.create_dataset("truncations", data=ends)
    if poses is not None:
        group.create_group("infos").create_dataset("pose", data=poses)


def _box(shape: tuple[int, ...], dtype: str, low: float, high: float) -> dict[str, Any]:
    """A Box space as Minari writes it."""
    bounds = {name: np.full(shape, bound).tolist() for name, bound in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": dtype, "shape": list(shape), **bounds}


def _action_space(kind: Kind) -> dict[str, Any]:
    if not kind.discrete:
        return _box((kind.action_size,), "float32", -math.inf, math.inf)
    return {"type": "Discrete", "dtype": "int64", "start": 0, "n": kind.action_size, "gtmsm_names": kind.action_names}
