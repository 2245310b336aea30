"""Recordings of others: each format is read with every action at the frame that it led to."""

import io
import json
import os
import resource
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import original_writers
import pytest
from PIL import Image
from recordings import KIND, MOVES, NAMES, film, lerobot, ours, plain_worldmodel, table, walk

from gtmsm.episodes.alignment import SHIFTS, check_alignment, shifted
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats import FORMATS, open_any
from gtmsm.errors import InputError

h5py = pytest.importorskip("h5py")


def same(found: Episode, expected: Episode) -> bool:
    return all(
        np.array_equal(getattr(found, name), getattr(expected, name))
        for name in ("frames", "actions", "poses", "start")
    )


def without_first(episode: Episode) -> Episode:
    """What is left where the frame before the first action is needed, and was not kept."""
    assert episode.poses is not None
    return Episode(episode.frames[1:], episode.actions[1:], episode.poses[1:], episode.poses[0])


def require_aligned(path: Path) -> None:
    """Each action explains the change into its frame; if all were one step off, that would be noticed."""
    kind, episodes = open_any(path)
    kept = list(episodes)
    for shift in SHIFTS:
        found = check_alignment([moved for episode in kept if (moved := shifted(episode, -shift))], kind)
        assert found.best == shift, found.line


# ---- files written by the original libraries


@pytest.fixture(params=["as it was written", "written anew"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Where what a library has written lies: in tests/written or, where the library is installed, in a new folder."""

    def find(name: str) -> Path:
        if request.param == "as it was written":
            return original_writers.WRITTEN
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other people's
                original_writers.WRITERS[name](tmp_path)
        except ImportError as missing:
            pytest.skip(str(missing))
        return tmp_path

    return find


@pytest.mark.parametrize(
    ("writer", "name", "pose_size", "loss"),
    [
        ("worldmodel", "worldmodel.h5", 2, 0),
        ("minari", "minari-v0", 2, 0),
        ("lerobot", "lerobot-image", 0, 0),
        ("lerobot", "lerobot-video", 0, 9),
    ],
)
def test_every_action_is_beside_the_frame_it_led_to(
    written: Callable[[str], Path], writer: str, name: str, pose_size: int, loss: float
) -> None:
    path = written(writer) / name
    kind, found = open_any(path)
    assert kind.pose_size == pose_size and kind.discrete == (writer != "lerobot")
    for seed, episode in enumerate(found):
        expected = ours(seed, original_writers.STEPS, kind.frame_shape[0])
        assert np.abs(episode.frames.astype(float) - expected.frames).mean() <= loss  # that of a lossy video
        done = expected.actions if kind.discrete else (MOVES[expected.actions] / 2).astype(np.float32)
        assert np.array_equal(episode.actions, done)
        if pose_size:
            assert np.array_equal(episode.poses, expected.poses) and np.array_equal(episode.start, expected.start)
    assert seed + 1 == original_writers.EPISODES
    require_aligned(path)


def test_what_a_world_of_stable_worldmodel_records_is_aligned(written: Callable[[str], Path]) -> None:
    path = written("world") / "world.h5"
    kind, found = open_any(path)
    with h5py.File(path) as file:
        ways = np.split(file["state"][:], file["ep_offset"][1:])
    for episode, way in zip(found, ways, strict=True):
        assert np.array_equal(way[1:] - way[:-1], MOVES[episode.actions]) and episode.steps == len(way) - 1
    require_aligned(path)


@pytest.mark.parametrize("how", [{"inside": True}, {"jpeg": True, "size": 32}])
def test_dictionaries_and_jpegs_of_minari_are_read_too(tmp_path: Path, how: dict[str, Any]) -> None:
    pytest.importorskip("minari")
    with pytest.warns(UserWarning):  # that nobody is named as its author
        original_writers.minari(tmp_path, **how)
    _, found = open_any(tmp_path / "minari-v0")
    expected = ours(0, original_writers.STEPS, how.get("size", original_writers.SIZE))
    assert np.abs(next(found).frames.astype(float) - expected.frames).mean() <= 8 * how.get("jpeg", False)
    require_aligned(tmp_path / "minari-v0")


# ---- npz


def test_a_folder_of_clips_comes_back_as_it_was_written(tmp_path: Path) -> None:
    episodes = [ours(seed, 30) for seed in range(3)]
    FORMATS["npz"].write(tmp_path / "clips", KIND, episodes)
    kind, found = open_any(tmp_path / "clips")
    assert kind == KIND
    for a, b in zip(found, episodes, strict=True):
        assert same(a, b) and (a.place, a.seed) == (b.place, b.seed)
    require_aligned(tmp_path / "clips")


def test_a_clip_of_numpy_needs_nothing_but_frames_and_actions(tmp_path: Path) -> None:
    episode = ours(0, 7)
    np.savez(tmp_path / "a.npz", frames=episode.frames, actions=episode.actions)
    np.savez(tmp_path / "b.npz", frames=episode.frames, actions=np.full(7, 8))
    kind, found = open_any(tmp_path)
    assert kind.action_size == 9 and [e.actions[0] for e in found] == [episode.actions[0], 8]


def test_poses_without_a_start_cost_the_first_step(tmp_path: Path) -> None:
    episode = ours(0, 7)
    np.savez(tmp_path / "a.npz", frames=episode.frames, actions=episode.actions, poses=episode.poses)
    _, found = open_any(tmp_path / "a.npz")
    assert same(next(found), without_first(episode))


# ---- stable-worldmodel


def test_stable_worldmodel_reads_what_we_write(tmp_path: Path) -> None:
    try:
        worldmodel = original_writers.worldmodel_module()
    except ImportError:
        pytest.skip("stable-worldmodel is not installed")
    episodes = [ours(seed, 9) for seed in range(3)]
    FORMATS["stable-worldmodel"].write(tmp_path / "a.h5", KIND, episodes)
    data = worldmodel.HDF5Dataset(path=tmp_path / "a.h5", num_steps=4)
    assert data.lengths.tolist() == [9, 9, 9]
    row = data.load_episode(1)
    assert np.array_equal(row["pixels"].permute(0, 2, 3, 1).numpy(), episodes[1].frames)
    # the action of row t led to row t + 1; of the last one nothing is known
    assert np.array_equal(row["action"][:-1, 0].numpy(), episodes[1].actions[1:]) and row["action"][-1].isnan().all()
    assert row["place"] == "ground 1" and tuple(data[0]["pixels"].shape) == (4, 3, 16, 16)


def test_what_we_write_for_stable_worldmodel_comes_back_without_its_first_step(tmp_path: Path) -> None:
    episodes = [ours(seed, 9) for seed in range(3)]
    FORMATS["stable-worldmodel"].write(tmp_path / "a.h5", KIND, episodes)
    kind, found = open_any(tmp_path / "a.h5")
    assert kind == KIND
    for a, b in zip(found, episodes, strict=True):
        assert same(a, without_first(b)) and (a.place, a.seed) == (b.place, b.seed)


def test_frames_are_scaled_by_area(tmp_path: Path) -> None:
    kind, found = open_any(plain_worldmodel(tmp_path / "a.h5", 1), size=8)
    frames = ours(0).frames.astype(float).reshape(-1, 8, 2, 8, 2, 3).mean((2, 4))
    assert kind.frame_shape == (8, 8, 3) and np.abs(next(found).frames - frames).max() <= 1


def test_grey_frames_have_one_channel(tmp_path: Path) -> None:
    grey = np.concatenate([walk(0)[0][..., 0]])
    kind, found = open_any(plain_worldmodel(tmp_path / "a.h5", 1, pixels=grey), size=8)
    assert kind.frame_shape == (8, 8, 1) and next(found).frames.shape == (60, 8, 8, 1)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"pixels": None}, "but no"),
        ({"pixels": np.zeros((488, 16, 16, 3), np.float32)}, "expected uint8"),
        ({"pixels": np.zeros((488, 16, 16, 2), np.uint8)}, "expected uint8"),
        ({"action": np.zeros((5, 2))}, "expected (488, A)"),
        ({"ep_len": np.int32([10**6] * 8)}, "do not fit"),
        ({"ep_offset": np.int64([-5] * 8)}, "do not fit"),
        ({"ep_offset": np.int64([2**62] * 8)}, "do not fit"),
        ({"ep_len": np.float32([61] * 8)}, "a number an episode"),
        ({"ep_len": np.int32([1] * 8)}, "no episode has two rows"),
        ({"pixels": h5py.ExternalLink("/etc/passwd", "/x")}, "link to elsewhere"),
        ({"pixels": h5py.SoftLink("/action")}, "link to elsewhere"),
    ],
)
def test_a_wrong_file_of_stable_worldmodel_is_told_in_one_line(
    tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    with pytest.raises(InputError) as refused:
        open_any(plain_worldmodel(tmp_path / "a.h5", **changed))
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_arrays_that_are_declared_but_not_there_are_refused(tmp_path: Path) -> None:
    path = plain_worldmodel(tmp_path / "a.h5", 1)
    rows = 10**8
    with h5py.File(path, "a") as file:
        for name, shape, dtype in (("pixels", (rows, 64, 64, 3), "u1"), ("action", (rows, 1), "f4")):
            del file[name]
            file.create_dataset(name, shape, dtype, chunks=(1, *shape[1:]))
        file["ep_len"][:] = rows
    with pytest.raises(InputError, match="stores 0 bytes"):
        open_any(path)


def test_data_in_other_files_are_not_read(tmp_path: Path) -> None:
    path, secret = plain_worldmodel(tmp_path / "a.h5", 1), tmp_path / "secret"
    secret.write_bytes(bytes(61 * 16 * 16 * 3))
    with h5py.File(path, "a") as file:
        del file["pixels"]
        shape = (61, 16, 16, 3)
        file.create_dataset("pixels", shape, "u1", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(InputError, match="lies in other files"):
        open_any(path)
    with h5py.File(path, "a") as file:
        del file["pixels"]
        layout = h5py.VirtualLayout(shape, "u1")
        layout[:] = h5py.VirtualSource(str(secret), "x", shape)
        file.create_virtual_dataset("pixels", layout)
    with pytest.raises(InputError, match="lies in other files"):
        open_any(path)


# ---- Minari


@pytest.mark.parametrize("discrete", [True, False])
def test_minari_reads_what_we_write(tmp_path: Path, discrete: bool) -> None:
    minari = pytest.importorskip("minari")
    episodes = [ours(seed, 9) for seed in range(3)]
    kind = KIND
    if not discrete:
        kind = Kind((16, 16, 3), None, 2, 2, "toy")
        episodes = [
            Episode(e.frames, MOVES[e.actions].astype(np.float32), e.poses, e.start, e.place, e.seed) for e in episodes
        ]
    FORMATS["minari"].write(tmp_path / "walk-v0", kind, episodes)
    data = minari.MinariDataset(tmp_path / "walk-v0" / "data")
    assert data.total_episodes == 3 and data.total_steps == 24
    for found, episode in zip(data.iterate_episodes(), episodes, strict=True):
        # observation t was seen before action t
        assert np.array_equal(found.observations, episode.frames)
        assert np.array_equal(found.actions, episode.actions[1:])
        assert data.action_space.contains(found.actions[0])
        assert data.observation_space.contains(found.observations[0])
    again, back = open_any(tmp_path / "walk-v0")
    assert again.action_names == kind.action_names
    for a, b in zip(back, episodes, strict=True):
        assert same(a, without_first(b)) and (a.place, a.seed) == (b.place, b.seed)


def test_combined_actions_of_minari_become_one_number(tmp_path: Path) -> None:
    FORMATS["minari"].write(tmp_path / "a", KIND, [ours(0, 9)])
    text = tmp_path / "a" / "data" / "metadata.json"
    space = {"type": "MultiDiscrete", "dtype": "int64", "nvec": [2, 3], "start": [0, 0]}
    text.write_text(json.dumps(json.loads(text.read_text()) | {"action_space": json.dumps(space)}))
    with h5py.File(tmp_path / "a" / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/actions"]
        file["episode_0/actions"] = np.array([[0, 0], [0, 2], [1, 0], [1, 1], [1, 2], [0, 1], [0, 0], [0, 0]])
    kind, found = open_any(tmp_path / "a")
    assert kind.action_names == ("0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    assert next(found).actions.tolist() == [0, 2, 3, 4, 5, 1, 0, 0]


# ---- LeRobot


@pytest.mark.parametrize("filmed", [True, False])
def test_a_lerobot_folder_is_shifted_to_our_pairing(tmp_path: Path, filmed: bool) -> None:
    kind, found = open_any(lerobot(tmp_path / "robot", filmed))
    assert (kind.frame_shape, kind.discrete, kind.action_size, kind.environment) == ((32, 32, 3), False, 2, "toy")
    episodes = list(found)
    assert [episode.steps for episode in episodes] == [30 + seed for seed in range(8)]
    for seed, episode in enumerate(episodes):
        expected = ours(seed, 30 + seed, 32)
        assert np.abs(episode.frames.astype(float) - expected.frames).mean() < (6 if filmed else 1e-9)
        assert np.array_equal(episode.actions, (MOVES[expected.actions] / 2).astype(np.float32))
    require_aligned(tmp_path / "robot")


def test_one_of_several_cameras_must_be_chosen(tmp_path: Path) -> None:
    path = lerobot(tmp_path, episodes=1, cameras=2)
    with pytest.raises(InputError, match="choose one with --camera"):
        open_any(path)
    assert next(open_any(path, camera="observation.images.cam1")[1]).steps == 30


@pytest.mark.parametrize(
    "template",
    ["../../{chunk_index}.parquet", "/etc/passwd", "{chunk_index.__class__}", "{chunk_index:>99999999999d}", "a/{b}"],
)
def test_a_path_that_climbs_out_of_the_folder_is_refused(tmp_path: Path, template: str) -> None:
    path = lerobot(tmp_path, filmed=False, episodes=1)
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps(info | {"data_path": template}))
    with pytest.raises(InputError, match="outside of the folder"):
        open_any(path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"codebase_version": "v2.1"}, "expected v3.0"),
        ({"fps": 0}, "frames a second"),
        ({"features": []}, "by name"),
        ({"features": {"action": {"dtype": "float32", "shape": [2]}}}, "no pictures"),
        ({"features": {"observation.images.cam0": {"dtype": "image"}, "action": {"shape": [10**9]}}}, "its shape"),
    ],
)
def test_a_wrong_lerobot_folder_is_told_in_one_line(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    path = lerobot(tmp_path, filmed=False, episodes=1)
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps(info | changed))
    with pytest.raises(InputError, match=told):
        list(open_any(path)[1])


# ---- folders


def test_mp4s_with_words_for_actions_are_shifted_to_our_pairing(tmp_path: Path) -> None:
    for seed in range(8):
        frames, actions, poses = walk(seed, size=32)
        film(tmp_path / f"walk{seed}.mp4", frames)
        table(tmp_path / f"walk{seed}.csv", [*(NAMES[a] for a in actions), ""], poses)
    kind, found = open_any(tmp_path)
    assert kind.action_names == tuple(sorted(NAMES)) and kind.pose_size == 2
    episode, expected = next(found), ours(0, size=32)
    assert [kind.action_names[a] for a in episode.actions] == [NAMES[a] for a in expected.actions]
    assert np.array_equal(episode.poses, expected.poses) and np.array_equal(episode.start, expected.start)
    require_aligned(tmp_path)


def test_folders_of_numbered_pictures_are_shifted_to_our_pairing(tmp_path: Path) -> None:
    for seed in range(8):
        frames, actions, _ = walk(seed)
        (tmp_path / f"{seed}").mkdir()
        for t, frame in enumerate(frames):
            Image.fromarray(frame).save(tmp_path / f"{seed}/frame_{t}.png")  # 10 comes after 9
        table(tmp_path / f"{seed}/done.csv", list(actions))  # without a last one
    kind, found = open_any(tmp_path)
    episode, expected = next(found), ours(0)
    assert kind.action_size == 5 and kind.pose_size == 0
    assert np.array_equal(episode.frames, expected.frames) and np.array_equal(episode.actions, expected.actions)
    require_aligned(tmp_path)


def pictures(folder: Path, count: int = 4) -> Path:
    folder.mkdir(exist_ok=True)
    for t in range(count):
        Image.fromarray(walk(0)[0][t]).save(folder / f"{t:03d}.png")
    return folder


def test_several_columns_are_a_vector(tmp_path: Path) -> None:
    pictures(tmp_path)
    (tmp_path / "a.csv").write_text("time,action_1,action_0\n" + "0,1,2\n" * 4)
    kind, found = open_any(tmp_path)
    assert not kind.discrete and next(found).actions.tolist() == [[2, 1]] * 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a head line"),
        ("x,y\n1,2\n", "expected a head line"),
        ("action_0,action_2\n1,2\n", "expected a head line"),
        ("action,action\n1,2\n", "2 columns called action"),
        ("action\n1\n", "1 actions for 4 frames"),
        ("action\n1,2\n", "line 2 has 2 columns"),
        ("action_0\n1\n\nleft\n1\n1\n", "no number"),
        ("action_0\nnan\n1\n1\n1\n", "not finite"),
        ("action," * 100_000, "more than 131,072 bytes"),
        ("action\n" + "\xff", "no CSV"),
    ],
)
def test_a_wrong_csv_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    pictures(tmp_path)
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=told):
        list(open_any(tmp_path)[1])


def test_a_missing_picture_is_noticed(tmp_path: Path) -> None:
    pictures(tmp_path)
    table(tmp_path / "a.csv", [0, 1, 2])
    (tmp_path / "001.png").unlink()
    with pytest.raises(InputError, match="picture 1 is missing"):
        open_any(tmp_path)


def test_an_mp4_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "a.mp4").write_text("#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n")
    table(tmp_path / "a.csv", [0, 1])
    with pytest.raises(InputError, match="cannot be read as an MP4"):
        open_any(tmp_path)


# ---- hostile files: refused before memory is allocated


def within(megabytes: int, work: Callable[[], object]) -> str:
    """What `work` is refused with, in a process that may allocate no more than this."""
    ear, mouth = os.pipe()
    if (child := os.fork()) == 0:
        try:
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + megabytes * 2**20,) * 2)
            work()
            told = "nothing was refused"
        except InputError as problem:
            told = str(problem)
        except BaseException as problem:
            told = f"{type(problem).__name__}: {problem}"
        os.write(mouth, told.encode())
        os._exit(0)
    os.close(mouth)
    with open(ear) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told


def read_all(path: Path) -> None:
    for _ in open_any(path)[1]:
        pass


ZEROS = np.zeros((1, 1024, 1024, 3), np.uint8)


def npz_bomb(root: Path) -> Path:
    """An .npz of 100 kB that declares 6 GB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2000, 1024, 1024, 3)}
    )
    with zipfile.ZipFile(root / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        with file.open("frames.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(30):  # what is there is less than what is declared
                member.write(ZEROS.tobytes())
        with file.open("actions.npy", "w") as member:
            np.save(member, np.zeros(2000, np.int64))
    return root / "a.npz"


def hdf5_bomb(root: Path) -> Path:
    """Chunks of 6 GB, each of some kB of gzip."""
    path = plain_worldmodel(root / "a.h5", 1)
    with h5py.File(path, "a") as file:
        del file["pixels"]
        made = file.create_dataset("pixels", (61, 4096, 4096, 3), "u1", chunks=(61, 4096, 4096, 1), compression="gzip")
        made.id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(2**24), 9) * 64)
    return path


def png_bomb(root: Path) -> Path:
    """A picture of 30,000 by 30,000 pixels in some kB."""
    pictures(root / "a")
    size = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", size), (b"IDAT", zlib.compress(bytes(2**24), 9)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts]
    (root / "a" / "001.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    table(root / "a" / "a.csv", [0, 1, 2])
    return root / "a"


def parquet_bomb(root: Path) -> Path:
    """128 MB of zeros in some kB."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = lerobot(root / "a", filmed=False, episodes=1)
    rows = 8
    pictures_of = arrow.array([{"bytes": bytes(2**24), "path": None}] * rows)
    columns = {"episode_index": [0] * rows, "action": [[0.0, 0.0]] * rows, "observation.images.cam0": pictures_of}
    parquet.write_table(
        arrow.table(columns), path / "data/chunk-000/file-000.parquet", compression="zstd", use_dictionary=False
    )
    return path


def store_bomb(root: Path) -> Path:
    """A chunk that would be unpacked to a terabyte, with checksums that are right."""
    zstandard = pytest.importorskip("zstandard")
    FORMATS["store"].write(root / "a", KIND, [ours(0, 200)])
    path = root / "a/0/000000/frames/c.0.0.0.0"
    content = bytearray(path.read_bytes())
    offset, length = struct.unpack_from("<QQ", content, 0)
    frame = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 2**40) + zstandard.compress(bytes(2**20))[9:]
    content[offset : offset + length - 4] = frame.ljust(length - 4, b"\0")[: length - 4]
    checksum = import_module("google_crc32c").value(bytes(content[offset : offset + length - 4]))
    content[offset + length - 4 : offset + length] = checksum.to_bytes(4, "little")
    path.write_bytes(content)
    return root / "a"


@pytest.mark.parametrize(
    ("bomb", "told"),
    [
        (npz_bomb, "far more than the file itself"),
        (hdf5_bomb, "is the file whole?"),
        (png_bomb, "exceeds limit"),
        (parquet_bomb, "declares"),
        (store_bomb, "cannot be unpacked"),
    ],
)
def test_a_bomb_is_refused_before_memory_is_allocated(tmp_path: Path, bomb: Callable[[Path], Path], told: str) -> None:
    path = bomb(tmp_path)
    largest = max(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    assert largest < 3e6
    said = within(400, lambda: read_all(path))
    assert told in said and "\n" not in said and said.count(str(tmp_path)) == 1, said


@pytest.mark.parametrize("shape", [(2**40, 16, 16, 3), (61, 2**20, 2**20, 3), (61, 16, 16, 2**30)])
def test_absurd_shapes_are_refused_before_memory_is_allocated(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = plain_worldmodel(tmp_path / "a.h5", 1)
    with h5py.File(path, "a") as file:
        del file["pixels"]
        file.create_dataset("pixels", shape, "u1", chunks=tuple(max(1, min(side, 16)) for side in shape))
    said = within(400, lambda: read_all(path))
    assert said.startswith(f"{path}: ") and "\n" not in said, said


# ---- what is none of them


@pytest.mark.parametrize("name", ["a.pkl", "a.pt", "a.npy"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04")
    with pytest.raises(InputError, match="pickle"):
        open_any(tmp_path / name)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=np.array([{}], object), actions=np.zeros(1, int))
    with pytest.raises(InputError, match="not a readable .npz"):
        open_any(tmp_path / "a.npz")


def test_what_was_found_is_named_where_nothing_fits(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="a folder of notes.txt"):
        open_any(tmp_path)
    with pytest.raises(InputError, match="ends with .txt"):
        open_any(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="no such file"):
        open_any(tmp_path / "nothing")
