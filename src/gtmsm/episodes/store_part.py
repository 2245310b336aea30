"""A part of a store: a folder with the episodes that were appended together, as a group of zarr arrays.

| array | rows |
|---|---|
| `frames` | uint8 (height, width, channel): what each action led to, episode after episode |
| `actions` | int64 (), -1 for none; or float32 (A) |
| `poses` | float32 (D), where they are known: where each episode began, then where each of its actions led |
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store_array import Layout
from gtmsm.episodes.store_manifest import Part
from gtmsm.files import read_json, sync

CHUNK_BYTES = 98_304
"""Of a chunk of frames: 32 of 32x32x3. Smaller ones compress worse and unpack slower; larger ones read too much."""
MOST_CHUNK = 256
"""Maximum rows of a chunk."""


def chunk_of(kind: Kind) -> int:
    """Number of frames in a chunk of a new store."""
    return int(np.clip(CHUNK_BYTES // np.prod(kind.frame_shape), 1, MOST_CHUNK))


def layouts(kind: Kind, chunk: int) -> dict[str, Layout]:
    """The arrays of a part, by name."""
    actions = Layout((), "int64", MOST_CHUNK) if kind.discrete else Layout((kind.action_size,), "float32", MOST_CHUNK)
    arrays = {"frames": Layout(kind.frame_shape, "uint8", chunk), "actions": actions}
    return arrays | ({"poses": Layout((kind.pose_size,), "float32", MOST_CHUNK)} if kind.pose_size else {})


def rows_of(name: str, part: Part) -> int:
    """Number of rows of an array of a part."""
    return sum(part.steps) + (len(part.steps) if name == "poses" else 0)


def write_part(folder: Path, number: int, episodes: Sequence[Episode], arrays: dict[str, Layout], origin: int) -> Part:
    """Write a part into a new folder `folder`; it is on disk when this returns."""
    steps, places = [episode.steps for episode in episodes], [episode.place for episode in episodes]
    part = Part(number, steps, places, [int(episode.seed) for episode in episodes], {}, origin)
    folder.mkdir()
    for name, layout in arrays.items():
        rows = np.concatenate([row for episode in episodes for row in _rows(name, episode)])
        content, checksum = layout.encode(rows)
        part.files[name] = [len(content), checksum]
        (folder / name).mkdir()
        _write(folder / name / layout.file_name, content)
    for path, said in descriptions(part, arrays).items():
        _write(folder / path, as_json(said))
    for inside in (*(folder / name for name in arrays), folder):
        sync(inside)
    return part


def _rows(name: str, episode: Episode) -> list[np.ndarray]:
    """Rows that an episode adds to an array."""
    if name != "poses":
        return [getattr(episode, name)]
    assert episode.start is not None and episode.poses is not None
    return [episode.start[None], episode.poses]


def descriptions(part: Part, arrays: dict[str, Layout]) -> dict[str, dict[str, Any]]:
    """Files that describe a part: for zarr and, if the manifest is lost, for repairs."""
    inside = {f"{name}/zarr.json": layout.metadata(rows_of(name, part)) for name, layout in arrays.items()}
    return inside | {"zarr.json": group({"part": part.said()})}


def group(attributes: dict[str, Any]) -> dict[str, Any]:
    """Zarr's metadata of a group, with attributes of our own."""
    return {"zarr_format": 3, "node_type": "group", "attributes": {"gtmsm": attributes} if attributes else {}}


def as_json(said: dict[str, Any]) -> bytes:
    """The exact bytes of a description."""
    return json.dumps(said).encode()


def find_part(folder: Path, arrays: dict[str, Layout]) -> Part | None:
    """Read a part from its own description; None unless it is complete, with files of the right sizes."""
    try:
        said = read_json(folder / "zarr.json", "")
        part = Part.of(said["attributes"]["gtmsm"]["part"], str(folder))
        sizes = {name: os.stat(folder / name / layout.file_name).st_size for name, layout in arrays.items()}
    except (ValueError, LookupError, TypeError, OSError):
        return None
    fits = part.folder == folder.name and sizes == {name: size for name, (size, _) in part.files.items()}
    return part if fits else None


def read_rows(
    folder: str | Path, part: Part, name: str, layout: Layout, first: int, count: int, into: np.ndarray | None = None
) -> np.ndarray:
    """Read rows of an array of a part into a new array, or into `into`."""
    size = part.files[name][0] if name in part.files else 0
    path = f"{folder}/{part.folder}/{name}/{layout.file_name}"
    return layout.read(path, rows_of(name, part), size, first, count, into)


def read_episode(
    folder: str | Path, part: Part, arrays: dict[str, Layout], nth: int, row: int, first: int, steps: int,
    frames: np.ndarray | None = None,
) -> Episode:  # fmt: skip
    """Read steps of the `nth` episode of a part, which begins at row `row` of frames; `frames` is memory for them."""
    said: dict[str, Any] = {"place": part.places[nth], "seed": part.seeds[nth]}
    for name, layout in arrays.items():
        is_pose = name == "poses"
        begin, count = row + first + (nth if is_pose else 0), steps + is_pose
        said[name] = read_rows(folder, part, name, layout, begin, count, frames if name == "frames" else None)
    if "poses" in said:
        said |= {"start": said["poses"][0], "poses": said["poses"][1:]}
    return Episode(**said)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
