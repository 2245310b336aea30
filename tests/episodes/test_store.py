"""What is appended stays, exactly, and what is damaged is named."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from dying import killed_at

pytest.importorskip("zstandard")
pytest.importorskip("google_crc32c")

from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store import Store
from gtmsm.episodes.store_verify import verify
from gtmsm.errors import InputError

KIND = Kind((4, 6, 3), ("left", "right"), 2, 3, "toy")
VECTORS = Kind((4, 6, 1), None, 2)


@cache
def walk(seed: int, steps: int = 300, kind: Kind = KIND) -> Episode:
    draw = np.random.default_rng(seed)
    frames = draw.integers(0, 256, (steps, *kind.frame_shape), np.uint8)
    if kind.discrete:
        actions = draw.integers(-1, kind.action_size, steps)
    else:
        actions = draw.normal(size=(steps, kind.action_size)).astype(np.float32)
    poses = draw.normal(size=(steps + 1, kind.pose_size)).astype(np.float32)
    truth = {"poses": poses[1:], "start": poses[0]} if kind.pose_size else {}
    return Episode(frames, actions, **truth, place=f"place {seed % 3}", seed=seed)


def same(one: Episode, other: Episode) -> bool:
    fields = ("frames", "actions", "poses", "start")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)
    return equal and (one.place, one.seed) == (other.place, other.seed)


def holds(path: Path, seeds: list[int]) -> bool:
    """Whether a store holds exactly these walks."""
    store = Store.open(path)
    return store.seeds.tolist() == seeds and all(same(store.episode(i), walk(seed)) for i, seed in enumerate(seeds))


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of two walks."""
    path = tmp_path_factory.mktemp("pattern") / "s"
    with Store.create(path, KIND) as store:
        for first in (0, 2, 4):
            store.append(walk(first), walk(first + 1, 299))
    return path


@pytest.fixture
def three(pattern: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(pattern, tmp_path / "s")


@pytest.mark.parametrize("kind", [KIND, VECTORS])
def test_what_was_appended_is_read_back_bit_for_bit(tmp_path: Path, kind: Kind) -> None:
    walks = [walk(seed, steps, kind) for seed, steps in enumerate((1, 300, 256, 257, 700))]
    with Store.create(tmp_path / "s", kind) as store:
        store.append(*walks[:3])
        store.append(walks[3])
        store.append(walks[4])
    store = Store.open(tmp_path / "s")
    assert store.kind == kind and store.lengths.tolist() == [1, 300, 256, 257, 700]
    assert store.places == [each.place for each in walks]
    for i, each in enumerate(walks):
        assert same(store.episode(i), each)
        for first in {0, each.steps // 3, each.steps - 1}:
            steps = min(260, each.steps - first)
            memory = np.empty((steps, *kind.frame_shape), np.uint8) if first else None
            found, cut = store.window(i, first, steps, memory), slice(first, first + steps)
            assert memory is None or found.frames is memory
            assert np.array_equal(found.frames, each.frames[cut]) and np.array_equal(found.actions, each.actions[cut])
            if kind.pose_size:
                assert np.array_equal(found.poses, each.poses[cut])
                assert np.array_equal(found.start, each.poses[first - 1] if first else each.start)


def test_zarr_reads_what_we_write(three: Path) -> None:
    zarr = pytest.importorskip("zarr")
    part = zarr.open_group(three, mode="r")["0/000001"]
    assert np.array_equal(part["frames"][:300], walk(2).frames)
    assert np.array_equal(part["actions"][300:], walk(3, 299).actions)
    assert np.array_equal(part["poses"][0], walk(2).start)


def test_readers_see_what_is_appended_meanwhile(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", KIND) as writing:
        reading = Store.open(tmp_path / "s")
        writing.append(walk(0))
        assert (len(writing), len(reading)) == (1, 0)
        reading.refresh()
        assert same(reading.episode(0), walk(0))


def test_writers_are_merged_in_their_order(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", KIND, "10") as ten, Store.create(tmp_path / "s", KIND, "2") as two:
        ten.append(walk(0))
        two.append(walk(1))
        ten.append(walk(2))
        two.append(walk(3))
        assert two.seeds.tolist() == [1, 3]
        two.refresh()
        assert two.seeds.tolist() == [1, 3, 0, 2]
    assert holds(tmp_path / "s", [1, 3, 0, 2])


def test_a_fingerprint_is_of_what_is_held_not_of_who_wrote_it(pattern: Path, three: Path) -> None:
    (three / "0").rename(three / "other-1")
    assert Store.open(three).fingerprint == Store.open(pattern).fingerprint
    with Store.create(three, KIND, "other-1") as store:
        store.append(walk(9))
        assert store.fingerprint != Store.open(pattern).fingerprint


def test_locks_of_others_in_the_folder_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".gtmsm-lock-recording-0-of-1").touch()
    with Store.create(tmp_path / "s", KIND, "0-1") as store:
        store.append(walk(0))
        assert store.verify() == [] and (tmp_path / "s" / ".gtmsm-lock-recording-0-of-1").exists()


def test_a_writer_is_one_process_at_a_time(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", KIND), pytest.raises(InputError, match="is being written by process"):
        Store.create(tmp_path / "s", KIND)
    with Store.create(tmp_path / "s", KIND) as store:
        store.append(walk(0))
    with pytest.raises(InputError, match="open to read"):
        store.append(walk(1))


def test_all_of_an_append_or_none(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", KIND) as store:
        with pytest.raises(InputError, match="action 2 at step 1"):
            store.append(walk(0), replace(walk(1), actions=np.full(300, 2)))
        assert len(store) == 0 and len(Store.open(tmp_path / "s")) == 0
        with pytest.raises(InputError, match="nothing was added"):
            shutil.rmtree(tmp_path / "s" / "0")
            store.append(walk(0))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"frames": np.zeros((300, 4, 6, 3))}, r"frames are float64 of shape .*; expected uint8"),
        ({"frames": np.zeros((0, 4, 6, 3), np.uint8)}, "0 steps"),
        ({"poses": None}, "poses are None; expected float32"),
        ({"start": np.full(3, np.nan, np.float32)}, "not finite"),
        ({"place": "x" * 201}, "at most 200 letters"),
        ({"seed": 2**65}, "seed is"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(walk(0), **changed).require(KIND)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"frame_shape": (4, 6)}, "expected height, width"),
        ({"frame_shape": (4, 10**9, 3)}, "expected height, width"),
        ({"action_names": ("a",)}, "1 action_names for 2 actions"),
        ({"pose_size": 4}, "pose_size is 4"),
        ({"action_size": -1}, "action_size is -1"),
    ],
)
def test_a_kind_that_cannot_be_is_refused(given: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(KIND, **given)


# ---- damage


def shard(path: Path, part: int, name: str = "frames") -> Path:
    return next((path / "0" / f"{part:06d}" / name).glob("c.*"))


def flip(path: Path, at: int) -> None:
    """Change a single bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(share * path.stat().st_size))


DAMAGES: dict[str, tuple[Callable[[Path], object], str, list[int]]] = {
    "a flipped bit at the end": (lambda s: flip(shard(s, 1), -9), "chunk 2 fails its checksum; lost: episode 3", [3]),
    "a flipped bit of poses": (lambda s: flip(shard(s, 1, "poses"), 60), "poses/c.0.0: chunk 0 fails", [2]),
    "a flipped bit of an index": (lambda s: flip(shard(s, 1), 1), "its index fails its checksum", [2]),
    "a file cut short": (lambda s: cut(shard(s, 1), 0.9), "it was cut short", [3]),
    "a file cut to nothing": (lambda s: cut(shard(s, 1, "actions"), 0), "has 0 bytes instead of", [2, 3]),
    "a file that grew": (lambda s: os.truncate(shard(s, 1), 10**6), "something was added", []),
    "a missing file": (lambda s: shard(s, 2).unlink(), "000002/frames/c.0.0.0.0 is missing", [4, 5]),
    "a missing part": (lambda s: shutil.rmtree(s / "0" / "000000"), "000000 is missing", [0, 1]),
    "a missing description": (lambda s: (s / "0/000001/frames/zarr.json").unlink(), "zarr.json is missing", []),
    "a changed description": (lambda s: flip(s / "0/000001/zarr.json", 9), "zarr.json is not as it was written", []),
    "a flipped bit of a manifest": (lambda s: flip(s / "0/manifest.jsonl", 500), "line 3 fails its checksum", []),
    "a manifest cut short": (lambda s: cut(s / "0/manifest.jsonl", 0.7), "does not list", []),
    "a missing manifest": (lambda s: (s / "0/manifest.jsonl").unlink(), "manifest.jsonl is missing", []),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_a_repair_drops_only_what_is_damaged(three: Path, damage: str) -> None:
    harm, complaint, lost = DAMAGES[damage]
    assert verify(three) == []
    harm(three)
    found = verify(three)
    assert complaint in " | ".join(found), found
    verify(three, repair=True)
    assert verify(three) == []
    left = [seed for seed in range(6) if seed not in lost]
    store = Store.open(three)
    assert store.seeds.tolist() == left
    assert all(same(store.episode(i), walk(seed, 300 - seed % 2)) for i, seed in enumerate(left))
    assert len([name for name in os.listdir(three / "0") if name.isdigit()]) == len({seed // 2 for seed in left})
    with Store.create(three, KIND) as again:
        again.append(walk(6))
    assert Store.open(three).seeds.tolist() == [*left, 6]


def test_reading_what_is_damaged_says_which_file(three: Path) -> None:
    flip(shard(three, 1), -9)
    store = Store.open(three)
    assert same(store.window(3, 0, 100), replace(walk(3, 299), **{
        name: getattr(walk(3, 299), name)[:100] for name in ("frames", "actions", "poses")
    }))  # fmt: skip
    with pytest.raises(InputError, match=r"0/000001/frames/c.0.0.0.0: chunk 2 fails its checksum"):
        store.episode(3)
    shard(three, 0).unlink()
    with pytest.raises(InputError, match="000000/frames/c.0.0.0.0 is missing"):
        store.episode(0)


def test_a_store_that_is_none_is_refused(three: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        Store.open(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    with pytest.raises(InputError, match="not a store"):
        Store.open(tmp_path / "other")
    with pytest.raises(InputError, match="give a new or empty folder"):
        Store.create(tmp_path / "other", KIND)
    with pytest.raises(InputError, match="not a store, but a file"):
        Store.open(tmp_path / "other" / "x")
    with pytest.raises(InputError, match=r"another kind \(action_names"):
        Store.create(three, replace(KIND, action_names=None, action_size=3))
    with pytest.raises(InputError, match="letters, digits"):
        Store.create(three, KIND, "../x")


def test_a_store_from_the_future_is_refused(three: Path) -> None:
    root = three / "zarr.json"
    said = json.loads(root.read_text())
    said["attributes"]["gtmsm"]["store"] = 7
    root.write_text(json.dumps(said))
    with pytest.raises(InputError, match="later gtmsm: version 7, this one knows 1"):
        Store.open(three)


HOSTILE = {
    "steps": [2**40, 1], "places": [{}, ""], "seeds": [[1], 2], "part": "../../etc", "origin": None,
    "files": {"frames": [2**70, 0], "actions": [1, 1], "poses": [1, 1]},
}  # fmt: skip


@pytest.mark.parametrize("field", HOSTILE)
def test_manifests_that_say_nonsense_are_refused(three: Path, field: str) -> None:
    from gtmsm.episodes.store_manifest import _line

    path = three / "0" / "manifest.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join([*lines[:2], _line(json.loads(lines[2])[1] | {field: HOSTILE[field]}), lines[3]]))
    with pytest.raises(InputError, match="line 3 does not describe a part"):
        Store.open(three)


def test_a_part_that_claims_more_than_it_has_allocates_nothing(three: Path) -> None:
    from gtmsm.episodes.store_manifest import _line

    path = three / "0" / "manifest.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join([lines[0], _line(json.loads(lines[1])[1] | {"steps": [2**20, 2**20]})]))
    with pytest.raises(InputError, match="index|behind the end"):
        Store.open(three).episode(1)


# ---- killed


def append(path: Path, batches: list[list[int]]) -> None:
    """Go on where it stopped."""
    with Store.create(path, KIND) as store:
        for batch in batches[len(store) // 2 :]:
            store.append(*(walk(seed) for seed in batch))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_at_any_write_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    batches, n, ended = [[0, 1], [2, 3]], 0, -9
    while ended:
        n += 9  # benchmarks/episode_store.py tries all of them
        path = tmp_path / str(n)
        ended = killed_at(n, partial(append, path, batches))
        assert ended in (0, -9)
        if (path / "zarr.json").exists():
            there = len(Store.open(path))
            assert there % 2 == 0 and holds(path, list(range(there)))
        append(path, batches)
        assert holds(path, [0, 1, 2, 3]) and verify(path) == []
        assert not [name for name in os.listdir(path / "0") if name.startswith(".gtmsm")]
        shutil.rmtree(path)
    assert n > 50


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_while_repairing_nothing_more_is_lost(three: Path, tmp_path: Path) -> None:
    flip(shard(three, 1), -9)
    flip(shard(three, 2), 1)
    ended, n = -9, 10
    while ended:
        n += 30
        path = tmp_path / str(n)
        shutil.copytree(three, path)
        ended = killed_at(n, partial(verify, path, True))
        verify(path, repair=True)
        assert verify(path) == [] and Store.open(path).seeds.tolist() == [0, 1, 2, 5]
        shutil.rmtree(path)
    assert n > 60
