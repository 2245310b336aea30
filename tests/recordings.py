"""Small recordings as others write them: a walk over a picture, in every format."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gtmsm.episodes.episode import Episode, Kind

NAMES = ("stay", "left", "right", "up", "down")
MOVES = np.array([(0, 0), (0, -2), (0, 2), (-2, 0), (2, 0)])


def walk(seed: int, steps: int = 60, size: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A walk over a picture as others record it: steps + 1 frames, `steps` actions, steps + 1 poses."""
    r = np.random.default_rng(seed)
    picture, actions = ground(r), r.integers(0, 5, steps)
    poses = np.clip(56 + np.concatenate([[(0, 0)], MOVES[actions].cumsum(0)]), 0, 128 - size)
    frames = np.stack([picture[y : y + size, x : x + size] for y, x in poses])
    return frames, actions, poses.astype(np.float32)


def ground(r: np.random.Generator) -> np.ndarray:
    """The picture that is walked over."""
    coarse = Image.fromarray(r.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    return np.asarray(coarse.resize((128, 128), Image.Resampling.BICUBIC))


def ours(seed: int, steps: int = 60, size: int = 16) -> Episode:
    """The same walk in our pairing."""
    frames, actions, poses = walk(seed, steps, size)
    return Episode(frames[1:], actions, poses[1:], poses[0], f"ground {seed}", seed)


KIND = Kind((16, 16, 3), NAMES, 5, 2, "toy")


def rows_of_worldmodel(seed: int, discrete: bool = True, steps: int = 60) -> dict[str, list[np.ndarray]]:
    """An episode as its World records it: what was seen, then what was done; nothing at the end."""
    frames, actions, poses = walk(seed, steps)
    done = actions[:, None] if discrete else MOVES[actions] / 2
    rows = np.concatenate([done, np.full((1, done.shape[1]), np.nan)]).astype(np.float32)
    return {"pixels": list(frames), "action": list(rows), "pose": list(poses), "reward": list(np.zeros(len(frames)))}


def plain_worldmodel(path: Path, episodes: int = 8, discrete: bool = True, **changed: object) -> Path:
    """The same file, by h5py alone."""
    rows = [rows_of_worldmodel(seed, discrete) for seed in range(episodes)]
    with pytest.importorskip("h5py").File(path, "w") as file:
        for name in rows[0]:
            file[name] = np.concatenate([np.stack(row[name]) for row in rows])
        lengths = [len(row["pixels"]) for row in rows]
        file["ep_len"], file["ep_offset"] = np.int32(lengths), np.int64(np.cumsum([0, *lengths[:-1]]))
        for name, value in changed.items():
            del file[name]
            if value is not None:
                file[name] = value
    return path


def film(path: Path, frames: np.ndarray, rate: int = 10) -> None:
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "4", "g": "7"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv444p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def lerobot(root: Path, filmed: bool = True, episodes: int = 8, cameras: int = 1) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    keys = [f"observation.images.cam{i}" for i in range(cameras)]
    walks = [walk(seed, 30 + seed, 32) for seed in range(episodes)]
    rows, known, second = [], [], 0.0
    for number, (frames, actions, _) in enumerate(walks):
        meta = {"episode_index": number, "length": len(frames), "tasks": ["walk"]}
        meta |= {"data/chunk_index": 0, "data/file_index": number // 4}
        for key in keys if filmed else []:
            meta |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": 0}
            meta |= {f"videos/{key}/from_timestamp": second, f"videos/{key}/to_timestamp": second + len(frames) / 10}
        known.append(meta)
        second += len(frames) / 10
        done = np.concatenate([MOVES[actions] / 2, [(0, 0)]]).astype(np.float32)
        for t, frame in enumerate(frames):
            row = {"episode_index": number, "frame_index": t, "timestamp": t / 10, "action": done[t].tolist()}
            if not filmed:
                row[keys[0]] = {"bytes": png(frame), "path": None}
            rows.append(row)
    for file in sorted({number // 4 for number in range(episodes)}):
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist([r for r in rows if r["episode_index"] // 4 == file]), path)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(known), root / "meta/episodes/chunk-000/file-000.parquet")
    camera = {"dtype": "video" if filmed else "image", "shape": [32, 32, 3], "names": ["height", "width", "channels"]}
    features = {"action": {"dtype": "float32", "shape": [2], "names": ["right", "down"]}} | dict.fromkeys(keys, camera)
    info = {"codebase_version": "v3.0", "robot_type": "toy", "fps": 10, "features": features}
    info |= {"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"}
    info |= {"video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"}
    (root / "meta/info.json").write_text(json.dumps(info))
    for key in keys if filmed else []:
        film(root / f"videos/{key}/chunk-000/file-000.mp4", np.concatenate([frames for frames, *_ in walks]))
    return root


def png(frame: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(frame).save(content, "PNG")
    return content.getvalue()


def table(path: Path, actions: list[object], poses: np.ndarray | None = None) -> None:
    head = "action,x,y" if poses is not None else "action"
    lines = [head] + [
        f"{a},{poses[t][0]},{poses[t][1]}" if poses is not None else str(a) for t, a in enumerate(actions)
    ]
    path.write_text("\n".join(lines) + "\n")
