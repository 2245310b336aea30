"""LeRobot data sets, version 3: a folder of Parquet and MP4, read without the package itself.

| file | what it is |
|---|---|
| `meta/info.json` | version, frames a second, what is recorded (`features`), where the files are |
| `meta/episodes/**.parquet` | a row per episode: length, files, and the second of its video at which it begins |
| `data/**.parquet` | a row per frame: `episode_index`, `frame_index`, `action`, and pictures that are in no video |
| `videos/KEY/**.mp4` | the frames of many episodes, one after the other |

Row t is an observation and the action that followed it.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gtmsm.config import is_whole, require
from gtmsm.episodes import pictures
from gtmsm.episodes.episode import MOST_NUMBERS, Episode, Kind
from gtmsm.episodes.formats import video
from gtmsm.episodes.formats.rows import (
    INFLATED,
    MOST_BYTES,
    MOST_EPISODES,
    MOST_ROWS,
    about,
    as_actions,
    episode_of_rows,
    frame_shape,
    library,
    numbered,
    whole,
)
from gtmsm.errors import did_you_mean, shortened, shown
from gtmsm.files import ANYHOW, opened, read_json, refusing

NAME = "lerobot"
INFO = PurePosixPath("meta/info.json")
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEOS = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
ROWS = 256
"""Rows that are read at a time."""


@dataclass(frozen=True)
class _Recorded:
    """Metadata of a data set."""

    root: Path
    rate: float
    """Frames per second."""
    camera: str
    filmed: bool
    """Whether the pictures are in MP4s; else they are in the Parquet files."""
    data: str
    videos: str


def fits(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (path / INFO).is_file()


def read(path: Path, size: int | None = None, camera: str | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the episodes, and an iterator over them; `camera` chooses one of several."""
    info = read_json(path / INFO, "is it whole?")
    with about(path / INFO):
        recorded = _recorded(path, info, camera)
        action = info["features"].get("action")
        numbers = action.get("shape") if isinstance(action, dict) else None
        known = isinstance(numbers, list) and all(is_whole(n) and 1 <= n <= MOST_NUMBERS for n in numbers)
        require(known and math.prod(numbers or ()) <= MOST_NUMBERS, f"action is {shown(action)}; expected its shape")
        count = math.prod(numbers or ())
        discrete = count == 1 and str(action.get("dtype")).startswith(("int", "uint"))
    episodes = list(_episodes(recorded))
    require(bool(episodes), f"{path}: no episodes in it")
    if discrete:
        for _, done, _ in _rows(recorded, episodes, with_pictures=False):
            require(whole(done), f"{path}: an action that is no whole number from 0 to {MOST_NUMBERS - 1}")
            count = max(count, int(np.nanmax(done, initial=0)) + 1)
    if recorded.filmed:
        shape = video.shape_of(_video(recorded, episodes[0]))
    else:
        with about(path):
            shape = pictures.of_bytes(next(_rows(recorded, episodes, with_pictures=True))[2][0]).shape
    origin = info.get("robot_type")
    names = numbered(count) if discrete else None
    kind = Kind(frame_shape(shape, size), names, count, 0, origin if isinstance(origin, str) else NAME)
    return kind, _steps(recorded, episodes, kind)


def _recorded(root: Path, info: dict[str, Any], camera: str | None) -> _Recorded:
    version, rate, features = info.get("codebase_version"), info.get("fps"), info.get("features")
    fix = "convert it with lerobot's own script, lerobot.datasets.v30.convert_dataset_v21_to_v30"
    require(str(version).startswith("v3."), f"codebase_version is {shown(version)}; expected v3.0: {fix}")
    moving = isinstance(rate, int | float) and 0 < rate < 10_000
    require(moving, f"fps is {shown(rate)}; expected frames a second")
    require(isinstance(features, dict), f"features are {shown(features)}; expected what is recorded, by name")
    assert isinstance(features, dict) and isinstance(rate, int | float)
    kinds = {name: f.get("dtype") for name, f in features.items() if isinstance(f, dict)}
    cameras = [name for name, dtype in kinds.items() if dtype in ("video", "image")]
    named = shortened(", ".join(cameras), 300)
    require(bool(cameras), f"no pictures among {shortened(', '.join(features), 300)}; expected a video or image")
    require(camera is not None or len(cameras) == 1, f"several cameras: {named}; choose one with --camera")
    chosen = camera or cameras[0]
    require(chosen in cameras, f"no camera {shown(chosen)}; {did_you_mean(chosen, cameras)}")
    paths = [info.get("data_path", DATA), info.get("video_path") or VIDEOS]
    for text in paths:
        require(isinstance(text, str) and len(text) < 1_000, f"a path is {shown(text)}; expected a name of files")
    return _Recorded(root, float(rate), chosen, kinds[chosen] == "video", *paths)


def _path(recorded: _Recorded, template: str, chunk: int, file: int) -> Path:
    """Path of a file of the data set; one outside of its folder is refused."""
    values: dict[str, int | str] = {"chunk_index": chunk, "file_index": file, "video_key": recorded.camera}

    def filled(found: re.Match[str]) -> str:
        value = values[found[1]]
        return f"{value:0{int(found[2] or 0)}d}" if isinstance(value, int) else value

    name = re.sub(r"\{(chunk_index|file_index|video_key)(?::0?(\d)d)?\}", filled, template)
    relative = PurePosixPath(name)
    inside = not relative.is_absolute() and ".." not in relative.parts and not re.search(r"[{}\0\\]", name)
    require(inside, f"{recorded.root / INFO}: the path {shown(template)} leads to {shown(name)}, outside of the folder")
    return recorded.root / relative


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file; sizes that it declares but cannot have are refused."""
    parquet = library("pyarrow.parquet")
    with opened(path) as file, refusing(f"{path}: cannot be read as Parquet", "was it finalised?"):
        size = file.seek(0, 2)
        file.seek(0)
        content = parquet.ParquetFile(
            file, pre_buffer=False, thrift_string_size_limit=2**24, thrift_container_size_limit=2**22
        )
        about_it = content.metadata
        require(0 <= about_it.num_rows <= MOST_ROWS, f"{path}: declares {about_it.num_rows:,} rows")
        for group in range(about_it.num_row_groups):
            # Not its columns: where their statistics are damaged, pyarrow ends the process instead of raising.
            held = about_it.row_group(group).total_byte_size
            require(0 <= held <= max(ANYHOW, INFLATED * size), f"{path}: declares {held:,} bytes; is it whole?")
        yield content


def _table(path: Path, columns: list[str], each: int = ROWS) -> Iterator[dict[str, Any]]:
    """Yield batches of rows of these columns, all of which must exist."""
    with _parquet(path) as content:
        there = set(content.schema_arrow.names)
        for name in columns:
            held = shortened(", ".join(sorted(there)), 300)
            require(name in there, f"{path}: has no column {shown(name)}, only {held}")
        for batch in content.iter_batches(each, columns=columns, use_threads=False):
            yield {name: batch.column(batch.schema.get_field_index(name)) for name in columns}


def _episodes(recorded: _Recorded) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode."""
    folder = recorded.root / "meta" / "episodes"
    files = sorted(folder.glob("chunk-*/file-*.parquet"))
    require(bool(files), f"{folder}: no Parquet in it; was the recording finalised?")
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    if recorded.filmed:
        columns += [f"videos/{recorded.camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    count = 0
    for path in files:
        for rows in _table(path, columns):
            lists = [rows[name].to_pylist() for name in columns]
            for values in zip(*lists, strict=True):
                count += 1
                good = all(isinstance(v, int | float) and 0 <= v <= MOST_ROWS for v in values)
                require(good and all(map(is_whole, values[:6])), f"{path}: row {count} is {shown(values)}")
                require(count <= MOST_EPISODES, f"{path}: more than {MOST_EPISODES:,} episodes")
                yield dict(
                    zip(
                        (name.rpartition("/")[2] if name.startswith("videos/") else name for name in columns),
                        values,
                        strict=True,
                    )
                )


def _video(recorded: _Recorded, episode: dict[str, Any]) -> Path:
    return _path(recorded, recorded.videos, episode["chunk_index"], episode["file_index"])


def _rows(
    recorded: _Recorded, episodes: list[dict[str, Any]], with_pictures: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, list[bytes]]]:
    """Yield batches of rows: the episode of each, its action and, if requested, its picture."""
    columns = ["episode_index", "action"] + ([recorded.camera] if with_pictures else [])
    for chunk, file in sorted({(e["data/chunk_index"], e["data/file_index"]) for e in episodes}):
        path = _path(recorded, recorded.data, chunk, file)
        for rows in _table(path, columns, 16 if with_pictures else ROWS):
            with about(path), refusing("cannot be read", "expected numbers in each row"):
                of = np.asarray(rows["episode_index"].to_pylist(), np.int64)
                done = np.asarray(rows["action"].to_pylist(), np.float64)
                seen = [row["bytes"] for row in rows[recorded.camera].to_pylist()] if with_pictures else []
                require(of.ndim == 1, f"episode_index has rows of shape {of.shape[1:]}")
                require(all(isinstance(b, bytes) for b in seen), "pictures are not in the file; store them in it")
            yield of, done.reshape(len(of), -1), seen


def _steps(recorded: _Recorded, episodes: list[dict[str, Any]], kind: Kind) -> Iterator[Episode]:
    known = {episode["episode_index"]: episode for episode in episodes}
    for number, done, seen in _grouped(_rows(recorded, episodes, not recorded.filmed)):
        episode = known.pop(number, None)
        require(episode is not None, f"{recorded.root}: rows of episode {number}, of which meta/episodes knows nothing")
        assert episode is not None
        rows = len(done)
        with about(f"{recorded.root}: episode {number}"):
            require(rows == episode["length"], f"{rows} rows; meta/episodes says {episode['length']}")
            if rows < 2:
                continue
            actions = as_actions(done[:-1], kind)
            if recorded.filmed:
                where = _video(recorded, episode)
                blocks = video.frames_from(where, episode["from_timestamp"], recorded.rate, rows)
            else:
                blocks = (pictures.of_bytes(content)[None] for content in seen)
            made = episode_of_rows(kind, blocks, actions)
        yield made
    require(not known, f"{recorded.root}: no rows of episode {next(iter(known), 0)}, which meta/episodes lists")


def _grouped(
    rows: Iterator[tuple[np.ndarray, np.ndarray, list[bytes]]],
) -> Iterator[tuple[int, np.ndarray, list[bytes]]]:
    """Group rows by episode: yield its number, its actions and its pictures."""
    current: int | None = None
    held = 0
    done: list[np.ndarray] = []
    seen: list[bytes] = []
    for of, actions, bytes_of in rows:
        starts = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
        for first, last in zip(starts[:-1], starts[1:], strict=True):
            if first == last:
                continue
            if current is not None and of[first] != current:
                yield current, np.concatenate(done), seen
                done, seen, held = [], [], 0
            current = int(of[first])
            done.append(actions[first:last])
            seen += bytes_of[first:last]
            held += actions[first:last].nbytes + sum(map(len, bytes_of[first:last]))
            require(held <= MOST_BYTES, f"episode {current} takes more than {MOST_BYTES / 1e9:.1f} GB; cut it")
    if current is not None:
        yield current, np.concatenate(done), seen
