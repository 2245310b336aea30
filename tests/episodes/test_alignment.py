"""Which action belongs to which frame is found out from frames and actions alone."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from original_writers import WRITTEN
from recordings import KIND, film, ours, plain_worldmodel, table, walk

from gtmsm import cli
from gtmsm.data.record import record
from gtmsm.data.store import Recording
from gtmsm.episodes.alignment import SHIFTS, check_alignment, shifted
from gtmsm.episodes.convert import convert
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats import open_any
from gtmsm.errors import InputError
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms
from gtmsm.worlds.walkers import PoissonWalker, SpinWalker, SpinWalkerConfig


def recorded(world: ImageWalk | Rooms, walker: object, clips: int = 6, steps: int = 100) -> tuple[Kind, list[Episode]]:
    clip = record(world, walker, clips, steps, torch.Generator().manual_seed(0), truth=False)  # type: ignore[arg-type]
    found = [Recording.of(clip[i : i + 1]) for i in range(clips)]
    kind = Kind(found[0].frames.shape[1:], tuple(world.action_names), len(world.action_names))
    return kind, [Episode(one.frames, one.actions) for one in found]


@pytest.fixture(scope="module")
def worlds() -> dict[str, tuple[Kind, list[Episode]]]:
    rooms = draw_rooms(RoomsConfig(antialias=1, objects=0, textures="procedural"), 1, 0)
    return {
        "image walk": recorded(ImageWalk(load_images("builtin", 32).train, ImageWalkConfig()), PoissonWalker()),
        "walking": recorded(rooms, PoissonWalker(actions=len(rooms.action_names))),
        "rotating": recorded(rooms, SpinWalker(SpinWalkerConfig(pauses=True))),
    }


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("world", ["image walk", "walking", "rotating"])
def test_actions_that_are_off_by_a_step_are_found(
    worlds: dict[str, tuple[Kind, list[Episode]]], world: str, shift: int
) -> None:
    kind, episodes = worlds[world]
    found = check_alignment([moved for episode in episodes if (moved := shifted(episode, -shift))], kind)
    assert found.best == shift, found.line


def test_continuous_actions_that_are_off_by_a_step_are_found() -> None:
    kind, moves = Kind((16, 16, 3), None, 2), np.array([(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)], np.float32)
    episodes = [Episode(e.frames, moves[e.actions]) for e in map(ours, range(8))]
    for shift in SHIFTS:
        assert check_alignment([shifted(e, -shift) or e for e in episodes], kind).best == shift


def nothing_to_tell(what: str) -> list[Episode]:
    r = np.random.default_rng(0)
    frames = {
        "noise": lambda e: r.integers(0, 256, e.frames.shape, dtype=np.uint8),
        "nothing moves": lambda e: np.zeros_like(e.frames),
        "other actions": lambda e: e.frames,
        "one action": lambda e: e.frames,
    }[what]
    actions = {"one action": lambda e: e.actions * 0, "other actions": lambda e: r.permutation(e.actions)}
    told = (ours(seed) for seed in range(8))
    return [Episode(frames(e), actions.get(what, lambda e: e.actions)(e)) for e in told]


@pytest.mark.parametrize("what", ["noise", "nothing moves", "other actions", "one action"])
def test_where_there_is_nothing_to_tell_it_says_so(what: str) -> None:
    found = check_alignment(nothing_to_tell(what), KIND)
    assert found.best is None and "cannot tell" in found.line


def test_a_shift_moves_actions_against_frames_and_poses() -> None:
    episode = ours(0, 9)
    later, earlier = shifted(episode, 1), shifted(episode, -1)
    assert later is not None and earlier is not None and episode.poses is not None
    assert np.array_equal(later.actions, episode.actions[1:]) and np.array_equal(later.frames, episode.frames[:-1])
    assert np.array_equal(later.start, episode.start) and np.array_equal(later.poses, episode.poses[:-1])
    assert np.array_equal(earlier.actions, episode.actions[:-1]) and np.array_equal(earlier.frames, episode.frames[1:])
    assert np.array_equal(earlier.start, episode.poses[0]) and np.array_equal(earlier.poses, episode.poses[1:])
    assert shifted(ours(0, 1), 1) is None


# ---- convert


def test_a_wrong_pairing_is_warned_of_and_mended_by_the_flag_it_names(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    rows = np.concatenate([np.append(walk(seed)[1], 0) for seed in range(8)]).astype(np.float32)
    late = plain_worldmodel(tmp_path / "late.h5", action=np.roll(rows, 1)[:, None])  # beside the frame that it led to
    told = convert(late, tmp_path / "a", format="npz")
    assert told.alignment.best == 1 and "--shift 1" in told.lines[-1] and len(told.lines) == 3
    mended = convert(late, tmp_path / "b", format="npz", shift=1)
    assert mended.alignment.best == 0 and len(mended.lines) == 2
    first = next(open_any(tmp_path / "b")[1])
    assert np.array_equal(first.actions, ours(0).actions[: first.steps])
    assert np.array_equal(first.frames, ours(0).frames[: first.steps])


@pytest.mark.parametrize("out", ["a.h5", "a", "clips", "minari-v0"])
def test_what_is_converted_reads_as_before(tmp_path: Path, out: str) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("zstandard")
    source = plain_worldmodel(tmp_path / "source.h5", 3)
    names = {"clips": "npz", "minari-v0": "minari"}
    told = convert(source, tmp_path / out, size=8, format=names.get(out))
    assert (told.episodes, told.steps, told.kind.frame_shape) == (3, 180, (8, 8, 3))
    kind, found = open_any(tmp_path / out)
    _, expected = open_any(source, size=8)
    lost = 0 if out in ("a", "clips") else 1  # the frame before the first action is not kept
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one.frames, other.frames[lost:]) and np.array_equal(one.actions, other.actions[lost:])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out, "source.h5"])


def as_films(root: Path) -> Path:
    root.mkdir()
    for seed in range(3):
        frames, actions, poses = walk(seed, 30, 32)
        film(root / f"{seed}.mp4", frames)
        table(root / f"{seed}.csv", [*actions, ""], poses)
    return root


@pytest.mark.parametrize(
    "source", ["worldmodel.h5", "world.h5", "minari-v0", "lerobot-image", "lerobot-video", "films", "clips"]
)
def test_every_format_goes_through_a_store_into_every_other(
    tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("zstandard")
    path = WRITTEN / source
    if source == "films":
        path = as_films(tmp_path / source)
    elif source == "clips":
        convert(WRITTEN / "worldmodel.h5", path := tmp_path / source, format="npz")

    def run(*words: object) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main(["data", *map(str, words)])
        assert end.value.code == 0
        return capsys.readouterr().out

    said = run("convert", path, tmp_path / "store")
    assert "alignment: frame t is what action t led to" in said and "warning" not in said
    assert "whole episodes: " in run("verify", tmp_path / "store")
    kind, found = open_any(tmp_path / "store")
    whole = list(found)
    for out, lost in (("a.h5", 1), ("minari", 1), ("npz", 0)):  # steps whose frame before is not known
        run("convert", tmp_path / "store", tmp_path / out, *(["--format", out] if lost == 0 or out == "minari" else []))
        again, back = open_any(tmp_path / out)
        assert (again.frame_shape, again.action_names, again.pose_size) == (
            kind.frame_shape, kind.action_names, kind.pose_size
        )  # fmt: skip
        for one, other in zip(back, whole, strict=True):
            assert np.array_equal(one.frames, other.frames[lost:])
            assert np.array_equal(one.actions, other.actions[lost:])
            assert kind.pose_size == 0 or np.array_equal(one.poses, other.poses[lost:])


@pytest.mark.parametrize("out", ["a.h5", "a", "clips", "minari-v0"])
def test_a_conversion_that_is_killed_leaves_nothing_that_stays(tmp_path: Path, out: str) -> None:
    pytest.importorskip("h5py")
    pytest.importorskip("zstandard")
    name = {"clips": "npz", "minari-v0": "minari"}.get(out)
    source = WRITTEN / "worldmodel.h5"

    def die(episodes: int) -> None:
        if episodes == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            convert(source, tmp_path / out, format=name, progress=die)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name[:7] for path in tmp_path.iterdir()] == [".gtmsm-"]
    convert(source, tmp_path / out, format=name)
    assert [path.name for path in tmp_path.iterdir()] == [out]


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    folder.mkdir()
    episode = ours(0, 5)
    np.savez(folder / "a.npz", frames=episode.frames, actions=episode.actions)
    np.savez(folder / "b.npz", frames=episode.frames[:, :8], actions=episode.actions[:4])
    with pytest.raises(InputError, match="b.npz"):
        convert(folder, tmp_path / "out", format="npz")
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]


def test_a_conversion_that_makes_no_sense_is_refused_before_it_begins(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=ours(0, 5).frames, actions=ours(0, 5).actions)
    for what, told in (({"shift": 11}, "shift"), ({"format": "lerobot"}, "cannot write"), ({"size": 0}, "size")):
        with pytest.raises(InputError, match=told):
            convert(tmp_path / "a.npz", tmp_path / "b", **what)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="exists"):
        convert(tmp_path / "a.npz", tmp_path / "a.npz")


def test_the_command_converts_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", frames=ours(0).frames, actions=ours(0).actions)
    with pytest.raises(SystemExit) as end:
        cli.main(f"data convert {tmp_path / 'a.npz'} {tmp_path / 'b.npz'} --size 8".split())
    said = capsys.readouterr().out
    assert end.value.code == 0 and "1 episodes, 60 steps, frames 8x8x3, 5 actions" in said and "alignment: " in said
