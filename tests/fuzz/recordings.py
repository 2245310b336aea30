"""Recordings of strangers: good ones of each format, how they are harmed, and who reads them then."""

import contextlib
import io
import json
import os
import struct
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz import mutate
from fuzz.targets import FileTarget
from PIL import Image
from recordings import KIND, film, lerobot, ours, plain_worldmodel, table, walk

from gtmsm.episodes.formats import FORMATS, open_any

# Arrow's own pool reserves a gigabyte of addresses at once, as much as a case may have.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
LIBRARIES = ("h5py", "av", "pyarrow", "zstandard", "google_crc32c", "pyarrow.parquet")
READY = all(find_spec(name) for name in LIBRARIES[:5])
"""Whether the extra `own` is installed."""
HUGE = (0, 1, 2**20, 10**9, 2**40, 2**62)


def make() -> None:
    """In the current folder."""
    if not READY:
        return
    plain_worldmodel(Path("own.h5"), 2)
    FORMATS["stable-worldmodel"].write(Path("ours.h5"), KIND, [ours(seed, 20) for seed in range(2)])
    FORMATS["minari"].write(Path("minari"), KIND, [ours(seed, 20) for seed in range(2)])
    FORMATS["store"].write(Path("store"), KIND, [ours(seed, 20) for seed in range(2)])
    FORMATS["npz"].write(Path("clips"), KIND, [ours(seed, 20) for seed in range(2)])
    lerobot(Path("filmed"), episodes=2)
    lerobot(Path("pictured"), filmed=False, episodes=2)
    for name in ("films", "frames"):
        Path(name).mkdir()
    frames, actions, poses = walk(0, 20, 32)
    film(Path("films/a.mp4"), frames)
    table(Path("films/a.csv"), [*actions, ""], poses)
    for t, frame in enumerate(frames):
        Image.fromarray(frame).save(f"frames/{t:03d}.png")
    table(Path("frames/done.csv"), ["left"] * 20)


def hdf5(rng: Random, good: bytes) -> bytes:
    """A wrong HDF5: its bytes, or datasets that are others than they should be."""
    if rng.random() < 0.6:
        return mutate.damaged(rng, good)
    h5py = __import__("h5py")
    content = io.BytesIO(good)
    with h5py.File(content, "a") as file:
        names: list[str] = []
        file.visititems(lambda name, thing: names.append(name) if hasattr(thing, "shape") else None)
        name = rng.choice(names)
        held = file[name]
        shape, dtype, way = held.shape, held.dtype, rng.choice(["odd", "odd", "huge", "huge", "link", "lose", "kind"])
        if way == "kind":
            for attribute in list(file.attrs):
                file.attrs[attribute] = rng.choice([b"[1]", b'"x"', b"[" * 9_000, 7, np.zeros(9), "x" * 70_000])
            return _closed(file, content)
        odd = mutate.odd_array(rng, held[:] if shape else np.zeros(2)) if way == "odd" else None
        del file[name]
        with contextlib.suppress(TypeError, ValueError):
            if odd is not None:
                file[name] = odd
            elif way == "huge":
                shape = tuple(rng.choice([side, side, *HUGE]) for side in shape)
                packed = rng.choice([{}, {"compression": "gzip"}])
                file.create_dataset(name, shape, dtype, chunks=tuple(max(1, min(side, 64)) for side in shape), **packed)
            elif way == "link":
                links = (h5py.SoftLink("/"), h5py.SoftLink("/" + names[0]), h5py.ExternalLink("ours.h5", "/pixels"))
                file[name] = rng.choice(links)
    return content.getvalue()


def _closed(file: Any, content: io.BytesIO) -> bytes:
    file.close()
    return content.getvalue()


def parquet(rng: Random, good: bytes) -> bytes:
    """A wrong Parquet: its bytes, or columns that are others than they should be."""
    if rng.random() < 0.6:
        return mutate.damaged(rng, good)
    arrow, files = __import__("pyarrow"), __import__("pyarrow.parquet").parquet
    rows, made = files.read_table(io.BytesIO(good)), io.BytesIO()
    name, count = rng.choice(rows.column_names), rows.num_rows
    at = rows.column_names.index(name)
    odd = [[None], [-1], [2**62], ["../../x"], [b"x"], [1.5], [float("nan")], [[1.0]], [[1.0, None]], [{"bytes": b""}]]
    way = rng.choice(["lose", "rename", "odd", "odd", "odd", "repeat"])
    if way == "lose":
        rows = rows.drop_columns([name])
    elif way == "rename":
        rows = rows.rename_columns([*rows.column_names[:at], "x", *rows.column_names[at + 1 :]])
    elif way == "repeat":
        rows = arrow.concat_tables([rows] * rng.choice([2, 50]))
    else:
        rows = rows.set_column(at, name, arrow.array(rng.choice(odd) * count))
    files.write_table(rows, made, compression=rng.choice(["snappy", "zstd", "none"]))
    return made.getvalue()


def checksum_of(content: bytes) -> int:
    """CRC-32C."""
    return int(__import__("google_crc32c").value(content))


def manifest(rng: Random, good: bytes) -> bytes:
    """A wrong manifest of a store, half of the time with checksums that are right."""
    if rng.random() < 0.5:
        return mutate.damaged(rng, good)
    lines = [json.loads(line)[1] for line in good.splitlines()]
    at = rng.randrange(len(lines))
    try:
        changed = json.dumps(mutate.changed_tree(rng, lines[at], mutate.JSON_WORDS)).encode()
    except (TypeError, ValueError):
        changed = b"null"
    bodies = [json.dumps(line).encode() for line in lines]
    bodies[at] = mutate.spelled(changed.decode(), mutate.JSON_WORDS)
    return b"".join(b'["%08x", %b]\n' % (checksum_of(body), body) for body in bodies)


def shard(rng: Random, good: bytes) -> bytes:
    """A wrong shard of a store, half of the time of the right size and with checksums that are right."""
    if rng.random() < 0.5:
        return mutate.damaged(rng, good)
    harmed = bytearray(good)
    offset, length = struct.unpack_from("<QQ", good, 0)
    for _ in range(rng.choice([1, 1, 4, 40])):  # mostly in what describes how it is packed
        harmed[offset + rng.randrange(rng.choice([12, length - 4]))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
    body = bytes(harmed[offset : offset + length - 4])
    harmed[offset + length - 4 : offset + length] = checksum_of(body).to_bytes(4, "little")
    return bytes(harmed)


def text(rng: Random, good: bytes) -> bytes:
    """A wrong CSV."""
    if rng.random() < 0.5:
        return mutate.damaged(rng, good)
    odd = (b'"', b"\0", b"\xff", b"1e999", b"9" * 400, b"nan", b"-7", b"9999", b"'", b"1,2", b"x" * 200_000)
    lines = good.splitlines()
    fields = lines[at := rng.randrange(len(lines))].split(b",")
    fields[rng.randrange(len(fields))] = rng.choice(odd)
    lines[at] = b",".join(fields)
    return rng.choice([b"\n", b"\r\n", b"\r"]).join(lines)


def _read(path: Path) -> Any:
    """The whole recording that a file belongs to."""
    kind, episodes = open_any(path.parts[0])
    return kind, [(episode.steps, episode.actions.astype(float), episode.poses) for episode in episodes]


EPISODES, ROWS = Path("meta/episodes/chunk-000/file-000.parquet"), Path("data/chunk-000/file-000.parquet")
VIDEO = Path("filmed/videos/observation.images.cam0/chunk-000/file-000.mp4")
PART = Path("store/0/000000")
RECORDINGS = [
    FileTarget("store, kind: open_any", 300, Path("store/zarr.json"), mutate.json_file, _read),
    FileTarget("store, manifest: open_any", 500, Path("store/0/manifest.jsonl"), manifest, _read),
    FileTarget("store, frames: open_any", 500, PART / "frames/c.0.0.0.0", shard, _read),
    FileTarget("store, poses: open_any", 300, PART / "poses/c.0.0", shard, _read),
    FileTarget("npz: open_any", 600, Path("clips/000001.npz"), mutate.archive, _read),
    FileTarget("stable-worldmodel: open_any", 700, Path("own.h5"), hdf5, _read),
    FileTarget("stable-worldmodel, ours: open_any", 500, Path("ours.h5"), hdf5, _read),
    FileTarget("Minari: open_any", 800, Path("minari/data/main_data.hdf5"), hdf5, _read),
    FileTarget("Minari, metadata: open_any", 400, Path("minari/data/metadata.json"), mutate.json_file, _read),
    FileTarget("LeRobot, info: open_any", 500, Path("pictured/meta/info.json"), mutate.json_file, _read),
    FileTarget("LeRobot, episodes: open_any", 500, "filmed" / EPISODES, parquet, _read),
    FileTarget("LeRobot, rows: open_any", 500, "pictured" / ROWS, parquet, _read),
    FileTarget("LeRobot, video: open_any", 500, VIDEO, mutate.damaged, _read),
    FileTarget("MP4 and CSV, MP4: open_any", 500, Path("films/a.mp4"), mutate.damaged, _read),
    FileTarget("MP4 and CSV, CSV: open_any", 300, Path("films/a.csv"), text, _read),
    FileTarget("pictures and CSV, CSV: open_any", 300, Path("frames/done.csv"), text, _read),
    FileTarget("pictures and CSV, picture: open_any", 300, Path("frames/007.png"), mutate.picture, _read),
]
