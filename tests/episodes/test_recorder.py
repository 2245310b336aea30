"""Recording any Gymnasium environment, and from a loop of one's own."""

import doctest
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import gtmsm
from gtmsm.episodes import own_loop
from gtmsm.episodes.engines import Family, Wanderer
from gtmsm.episodes.episode import Kind
from gtmsm.episodes.pictures import resized
from gtmsm.episodes.recorder import ALIKE, Recorder, record_environment
from gtmsm.episodes.store import Store
from gtmsm.errors import InputError

ODD = "odd_environments:odd/Corridor-v0"
COMMAND = [sys.executable, "-c", "from gtmsm_command import main; main()", "record"]


def record(out: Path, env_id: str = ODD, fault: str = "", **settings):
    """In this process, unless asked otherwise."""
    more = settings.pop("env_kwargs", {}) | ({"fault": fault} if fault else {})
    few = {"clips": 3, "steps": 6, "size": 0, "workers": 0, "walker": "random"}
    return record_environment(env_id, out, env_kwargs=more, **few | settings)


def episodes(path: Path) -> dict:
    """By seed; each seed once."""
    store = Store.open(path)
    assert len(set(store.seeds)) == len(store)
    return {int(seed): store.episode(i) for i, seed in enumerate(store.seeds)}


def same(first: dict, second: dict) -> bool:
    assert first.keys() == second.keys()
    fields = ("frames", "actions", "poses", "start", "place", "seed")
    return all(np.array_equal(getattr(first[s], f), getattr(second[s], f)) for s in first for f in fields)


# ---- environments


@pytest.mark.parametrize("name", ["gtmsm/ImageWalk-v0", "gtmsm/Rooms-v0"])
def test_a_frame_is_what_its_action_led_to(tmp_path, name):
    assert record(tmp_path / "s", name, clips=2, seed=3).code == 0
    env = gymnasium.make(name)
    assert Store.open(tmp_path / "s").kind.action_names == env.unwrapped.action_names
    for seed, episode in episodes(tmp_path / "s").items():
        assert seed in (3_000_000, 3_000_001)
        _, info = env.reset(seed=seed)
        assert np.array_equal(episode.start, info["pose"])
        assert episode.place == str(info["place"])
        for action, frame, pose in zip(episode.actions, episode.frames, episode.poses, strict=True):
            seen, *_, info = env.step(int(action))
            assert np.array_equal(seen, frame)
            assert np.array_equal(info["pose"], pose)


@pytest.mark.parametrize(
    ("observes", "settings", "channels"),
    [
        ("pixels", {}, 3), ("first", {}, 3), ("grey", {}, 1), ("floats", {}, 3), ("dict", {}, 3), ("nothing", {}, 3),
        ("two", {"pixels": "camera"}, 3), ("two", {"pixels": "depth"}, 1), ("grey", {"pixels": "render"}, 3),
    ],
)  # fmt: skip
def test_pixels_are_found_wherever_they_are(tmp_path, observes, settings, channels):
    record(tmp_path / "s", env_kwargs={"observes": observes}, **settings)
    for episode in episodes(tmp_path / "s").values():
        assert episode.frames.shape[1:] == (16, 24, channels)
        lit = (episode.frames[..., 0] != 20).all(1).argmax(1)
        assert np.array_equal(lit, episode.poses[:, 0])


def test_an_environment_may_say_nothing_about_poses(tmp_path):
    pytest.importorskip("pygame")
    done = record(tmp_path / "s", "CartPole-v1", size=32, shortest=2, steps=4)
    assert (done.stored, done.code) == (3, 0)
    assert Store.open(tmp_path / "s").kind.pose_size == 0
    assert Store.open(tmp_path / "s").episode(0).frames.std() > 1


def test_each_new_pixel_is_the_mean_of_the_area_it_covers():
    picture = np.random.default_rng(0).integers(0, 256, (56, 24, 3), dtype=np.uint8)
    fine = picture.repeat(32, 0).repeat(32, 1).astype(float)
    expected = fine.reshape(32, 56, 32, 24, 3).mean((1, 3))
    assert np.abs(resized(picture, 32) - expected).max() <= 0.51


def test_several_discrete_choices_are_blocks_of_one_hots(tmp_path):
    record(tmp_path / "s", env_kwargs={"actions": "several"})
    store = Store.open(tmp_path / "s")
    assert not store.kind.discrete
    actions = store.episode(0).actions
    assert actions.shape == (6, 5)
    assert np.array_equal(actions[:, :2].sum(1), np.ones(6))
    assert np.array_equal(actions[:, 2:].sum(1), np.ones(6))
    record(tmp_path / "t", env_kwargs={"actions": "parts"})
    assert Store.open(tmp_path / "t").kind.action_size == 4


def test_continuous_actions_keep_to_their_bounds(tmp_path):
    record(tmp_path / "s", env_kwargs={"actions": "vector"}, steps=100, clips=1)
    actions = Store.open(tmp_path / "s").episode(0).actions
    assert actions.dtype == np.float32
    assert np.abs(actions).max(0)[0] > 1.5 and np.abs(actions).max(0)[1] <= 1
    record(tmp_path / "t", env_kwargs={"actions": "vector"}, walker="odd_environments:out_of_bounds")
    assert np.array_equal(Store.open(tmp_path / "t").episode(0).actions, [[2, -1]] * 6)


def test_walkers_and_poses_can_be_ones_own(tmp_path):
    record(tmp_path / "s", walker="odd_environments:to_the_right", pose="odd_environments:where")
    for episode in episodes(tmp_path / "s").values():
        assert episode.actions.tolist() == [1] * 6
        assert np.array_equal(np.diff(episode.poses[:, 0]) % 24, np.ones(5))
        assert np.array_equal(episode.poses[:, 1:], [[1, 0.5]] * 6)


def test_chosen_actions_are_numbered_anew(tmp_path):
    record(tmp_path / "s", "gtmsm/Rooms-v0", actions=("turn left", "0"), clips=1, steps=30)
    env, store = gymnasium.make("gtmsm/Rooms-v0"), Store.open(tmp_path / "s")
    names = env.unwrapped.action_names
    assert store.kind.action_names == ("turn left", names[0])
    assert set(store.episode(0).actions) == {0, 1}
    env.reset(seed=0)
    for action, pose in zip(store.episode(0).actions, store.episode(0).poses, strict=True):
        assert np.array_equal(env.step(names.index(store.kind.action_names[action]))[-1]["pose"], pose)


def test_a_smooth_walker_changes_little_by_little(tmp_path):
    record(tmp_path / "s", env_kwargs={"actions": "vector"}, walker="smooth", steps=300, clips=1)
    actions = Store.open(tmp_path / "s").episode(0).actions
    assert np.abs(np.diff(actions[:, 0])).mean() < np.abs(actions[:, 0]).mean()
    assert np.abs(actions[:, 0]).max() > 1.5
    assert np.corrcoef(actions[:-1, 0], actions[1:, 0])[0, 1] > 0.7


@pytest.mark.parametrize("continuous", [False, True])
def test_a_turning_walker_stays_where_it_is(tmp_path, continuous):
    pytest.importorskip("vizdoom")
    pytest.importorskip("labmaze")
    more = {"env_kwargs": {"continuous": continuous}, "steps": 41, "size": 32, "clips": 2}
    record(tmp_path / "s", "gtmsm/Doom-v0", walker="turn", **more)
    for episode in episodes(tmp_path / "s").values():
        assert np.array_equal(episode.poses[:, :2], np.tile(episode.start[:2], (41, 1)))
        turned = np.diff(np.unwrap(np.append(episode.start[2], episode.poses[:, 2])))
        assert (np.sign(turned) == np.sign(turned[0])).all()
        assert np.pi < abs(turned.sum()) < 2.01 * np.pi


def test_a_walker_that_cannot_turn_is_refused(tmp_path):
    with pytest.raises(InputError, match="--walker turn needs actions named left and right, or turn"):
        record(tmp_path / "s", walker="turn")


def test_a_repeating_walker_holds_its_actions(tmp_path):
    record(tmp_path / "s", walker="repeat", steps=400, clips=1)
    changes = (np.diff(Store.open(tmp_path / "s").episode(0).actions) != 0).mean()
    assert 0.05 < changes < 0.3  # of two actions half of the choices are the same again


def test_the_step_that_starts_another_episode_is_left_out(tmp_path):
    settings = {"fault": "end", "bad": 1}
    assert record(tmp_path / "s", "odd_environments:odd/Restarting-v0", env_kwargs=settings).code == 2
    assert record(tmp_path / "t", "odd_environments:odd/Restarting-v0").stored == 3
    record(tmp_path / "u")
    assert same(episodes(tmp_path / "t"), episodes(tmp_path / "u"))


# ---- what goes wrong


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("step", "ZeroDivisionError: division by zero"),
        ("reset", "OSError: no such level"),
        ("shape", "a picture of uint8 and shape (15, 24, 3); expected uint8 of shape (16, 24, 3)"),
        ("dtype", "a picture of int32 and shape (16, 24, 3); expected uint8 of shape (16, 24, 3)"),
        ("none", "render() gave None"),
        ("end", "it ended after fewer than 6 steps (--shortest)"),
        ("pose", "expected 2 finite numbers"),
        ("few", "expected 2 finite numbers"),
    ],
)
def test_a_clip_that_fails_is_dropped_and_recording_goes_on(tmp_path, fault, reason):
    settings = {"observes": "nothing"} if fault == "none" else {}
    done = record(tmp_path / "s", fault=fault, clips=5, env_kwargs=settings)
    assert (done.stored, done.code, [outcome.seed for outcome in done.dropped]) == (4, 1, [2])
    assert reason in done.dropped[0].reason
    lasted = "; they lasted 1 to 1 steps" if fault == "end" else ""
    assert f"dropped 1: {done.dropped[0].reason}{lasted} (first with seed 2)" in str(done)
    record(tmp_path / "good", clips=5, env_kwargs=settings)
    left = {seed: episode for seed, episode in episodes(tmp_path / "good").items() if seed != 2}
    assert same(episodes(tmp_path / "s"), left)


@pytest.mark.parametrize("workers", [0, 2])
def test_where_the_first_clips_fail_alike_the_others_are_not_tried(tmp_path, workers):
    done = record(tmp_path / "s", fault="step", clips=40, workers=workers, env_kwargs={"bad": 1})
    assert done.code == 2 and ALIKE <= len(done.dropped) < 40
    assert "ZeroDivisionError: division by zero, in odd_environments.py:" in str(done)
    assert f"the first {ALIKE} clips failed alike, so the others were not tried" in str(done)


def test_where_clips_are_only_too_short_all_are_tried_and_their_lengths_told(tmp_path):
    done = record(tmp_path / "s", fault="end", clips=9, env_kwargs={"bad": 1})
    assert len(done.dropped) == 9 and "they lasted 1 to 1 steps" in str(done)


def test_clips_of_other_pixels_or_poses_of_the_same_environment_are_not_mixed(tmp_path):
    record(tmp_path / "s", clips=2, pixels="camera", env_kwargs={"observes": "two"})
    for other in ({"pixels": "depth"}, {"pixels": "camera", "pose": "odd_environments:where"}):
        with pytest.raises(InputError, match="holds clips of .* --pixels camera, not of .*; choose another --out"):
            record(tmp_path / "s", clips=4, env_kwargs={"observes": "two"}, **other)
    assert len(Store.open(tmp_path / "s")) == 2


def test_float_pictures_are_read_by_the_range_that_their_space_says(tmp_path):
    for name, observes in ("s", "pixels"), ("t", "floats"), ("u", "bright floats"):
        record(tmp_path / name, env_kwargs={"observes": observes})
    assert same(episodes(tmp_path / "s"), episodes(tmp_path / "t"))
    assert same(episodes(tmp_path / "s"), episodes(tmp_path / "u"))
    done = record(tmp_path / "v", clips=1, env_kwargs={"observes": "wrong floats"})
    assert "numbers from 20 to 1" in done.dropped[0].reason and "its space says 0 to 1" in done.dropped[0].reason


def test_a_pose_of_another_form_is_told_and_not_recorded(tmp_path):
    done = record(tmp_path / "s", clips=2, env_kwargs={"poses": "named"})
    assert done.stored == 2 and Store.open(tmp_path / "s").kind.pose_size == 0
    assert "note: info[\"pose\"] is {'x': " in str(done) and "no poses are recorded (--pose)" in str(done)


@pytest.mark.parametrize("picture", [np.ones((64, 64, 3)), np.zeros((64, 64), np.uint8), {"camera": None}])
def test_pictures_of_another_form_are_not_resized(picture):
    with pytest.raises(InputError, match="expected uint8 of shape"):
        resized(picture, 32)


def test_clips_that_end_early_are_kept_where_that_is_asked_for(tmp_path):
    done = record(tmp_path / "s", fault="late end", clips=5, shortest=3)
    assert (done.stored, done.code) == (5, 0)
    assert [episodes(tmp_path / "s")[seed].steps for seed in range(5)] == [6, 6, 4, 6, 6]
    assert record(tmp_path / "t", fault="late end", clips=5).stored == 4


def test_where_all_fail_nothing_is_left(tmp_path):
    done = record(tmp_path / "s", fault="step", env_kwargs={"bad": 1})
    assert (done.code, done.stored) == (2, 0)
    assert record(tmp_path / "t", walker="odd_environments:clumsy").code == 2


def test_a_process_that_crashes_or_hangs_costs_one_clip(tmp_path):
    for fault, reason in {"crash": "its process ended (SIGSEGV)", "hang": "nothing happened for 2 s"}.items():
        done = record(tmp_path / fault, fault=fault, workers=1, limit=2.0)
        assert (done.stored, done.code) == (2, 1)
        assert [outcome.reason for outcome in done.dropped] == [reason]
    assert set(episodes(tmp_path / "hang")) == {0, 1}


def test_the_clips_do_not_depend_on_how_many_record(tmp_path):
    record(tmp_path / "one", clips=8)
    assert record(tmp_path / "two", clips=8, workers=2).stored == 8
    for shard in ("0/3", "1/3", "2/3"):
        record(tmp_path / "shards", clips=8, shard=shard)
    assert same(episodes(tmp_path / "one"), episodes(tmp_path / "two"))
    assert same(episodes(tmp_path / "one"), episodes(tmp_path / "shards"))


@pytest.mark.parametrize(
    ("env_id", "settings", "complaint"),
    [
        ("gtmsm/Roms-v0", {}, 'unknown environment "gtmsm/Roms-v0"; did you mean "gtmsm/Rooms-v0"?'),
        ("zzz", {}, 'unknown environment "zzz"; give a Gymnasium id'),
        ("nowhere_at_all:x/y-v0", {}, "cannot be made: ModuleNotFoundError"),
        ("ALE/Pong-v5", {}, "pip install ale-py"),
        ("odd_environments:odd/Blind-v0", {}, "no pixels: the observation is Box"),
        (ODD, {"env_kwargs": {"colour": 1}}, "unexpected keyword argument"),
        (ODD, {"env_kwargs": {"observes": "two"}}, "give --pixels: camera, depth, render"),
        (ODD, {"pixels": "camera"}, '--pixels is "camera"; no such picture'),
        (ODD, {"env_kwargs": {"actions": "text"}}, "expected Discrete, MultiDiscrete"),
        (ODD, {"actions": ("up",)}, '--actions: there is no "up"'),
        (ODD, {"walker": "rndom"}, 'unknown walker "rndom"; did you mean "random"?'),
        (ODD, {"walker": "odd_environments:nobody"}, "--walker odd_environments:nobody cannot be loaded"),
        (ODD, {"pose": "where"}, '--pose is "where"; give module:function'),
        (ODD, {"shard": "3/3"}, "shard is '3/3'; give i/n"),
        (ODD, {"shortest": 7}, "shortest is 7; give a whole number from 2 to 6"),
        (ODD, {"clips": 0}, "clips is 0; give a whole number from 1"),
        (ODD, {"seed": 5000}, "seed is 5000; give a whole number from 0 to 2146"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_a_line(tmp_path, env_id, settings, complaint):
    with pytest.raises(InputError) as refused:
        record(tmp_path / "s", env_id, **settings)
    assert complaint in str(refused.value)
    assert not (tmp_path / "s").exists()


def test_an_environment_that_ends_its_process_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be made: its process ended \(exit code 3\)"):
        record(tmp_path / "s", "odd_environments:odd/Dies-v0", workers=1)


# ---- going on


def test_the_same_command_goes_on_and_repeats_nothing(tmp_path):
    record(tmp_path / "s", clips=3)
    done = record(tmp_path / "s", clips=5)
    assert (done.already, done.stored) == (3, 2)
    record(tmp_path / "t", clips=5)
    assert same(episodes(tmp_path / "s"), episodes(tmp_path / "t"))
    with pytest.raises(InputError):
        record(tmp_path / "s", clips=6, size=8)
    with pytest.raises(InputError, match=r"holds clips of .*Corridor-v0, not of .*slow.*; choose another --out"):
        record(tmp_path / "s", clips=5, env_kwargs={"slow": 0.001})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_clip_that_was_stored_but_not_listed_is_not_recorded_again(tmp_path, workers):
    record(tmp_path / "s", clips=3)
    manifest = tmp_path / "s" / "0-0" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(True)[:-1]))  # killed before its last write
    done = record(tmp_path / "s", clips=4, workers=workers)
    assert (done.already, done.stored) == (3, 1)
    assert set(episodes(tmp_path / "s")) == {0, 1, 2, 3}


def started(out: Path, workers: int) -> subprocess.Popen:
    words = [ODD, "--out", out, "--clips", 12, "--steps", 6, "--size", 0, "--workers", workers, "--walker", "random"]
    slow = ["--env-kwargs", '{"slow": 0.02}']
    where = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(
        [*COMMAND, *map(str, words), *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": where},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the parent ignores
    )  # fmt: skip


def wait_for_clips(out: Path, count: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if len(Store.open(out)) >= count:
                return
        except (InputError, OSError):
            pass
        time.sleep(0.01)
    raise AssertionError("nothing was recorded")


def test_a_recording_that_was_killed_loses_and_repeats_nothing(tmp_path):
    process = started(tmp_path / "s", workers=2)
    wait_for_clips(tmp_path / "s", 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = set(episodes(tmp_path / "s"))
    record(tmp_path / "s", clips=12, env_kwargs={"slow": 0.02}, workers=2)
    assert Store.open(tmp_path / "s").verify() == []
    assert before <= set(episodes(tmp_path / "s"))
    record(tmp_path / "t", clips=12, env_kwargs={"slow": 0.02})
    assert same(episodes(tmp_path / "s"), episodes(tmp_path / "t"))


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("gtmsm.episodes.recorder.ORPHANS", 0.0)
    process = started(tmp_path / "s", workers=1)
    wait_for_clips(tmp_path / "s", 2)
    with pytest.raises(InputError, match="is being recorded by process"):
        record(tmp_path / "s", clips=12, env_kwargs={"slow": 0.02})
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; the same command again goes on" in out
    assert 2 <= len(episodes(tmp_path / "s")) < 12


# ---- the command


def test_the_command_records_and_says_what_was_dropped(tmp_path, gtmsm):
    words = ("record", ODD, "--out", tmp_path / "s", "--clips", 4, "--steps", 5, "--size", 16, "--workers", 0)
    code, out, err = gtmsm(*words, "--env-kwargs", '{"fault": "step"}')
    assert code == 1
    assert out.splitlines()[0].startswith("3 of 4 clips recorded: 15 steps")
    told = r"dropped 1: ZeroDivisionError: division by zero, in odd_environments.py:\d+ \(first with seed 2\)"
    assert re.fullmatch(told, out.splitlines()[1])
    assert "recording clip" in err
    assert Store.open(tmp_path / "s").kind.frame_shape == (16, 16, 3)


def test_what_the_command_cannot_use_is_one_line(tmp_path, refused):
    assert "did you mean" in refused("record", "gtmsm/Roms-v0", "--out", tmp_path / "s", "--workers", 0)
    assert "--env-kwargs is not valid JSON" in refused("record", ODD, "--out", tmp_path / "s", "--env-kwargs", "{")
    assert "--out" in refused("record", ODD)
    assert "not a run folder" in refused("record", "runs/nowhere", "clip.npz")


# ---- a loop of one's own

KIND = Kind((4, 6, 3), ("left", "right"), 2, 2, "kitchen")


def frame(value: int = 0) -> np.ndarray:
    return np.full((4, 6, 3), value, np.uint8)


def test_a_few_lines_store_a_walk(tmp_path):
    recorder, canvas = Recorder(tmp_path / "s", KIND), frame()
    for place in ("sink", "table"):
        recorder.reset(canvas, (0, 0), place=place, seed=4)
        for t in range(3):
            canvas[:] = t
            recorder.step(t % 2, canvas, (t, 1))
    assert recorder.end()
    assert not recorder.end()
    store = Store.open(tmp_path / "s")
    assert (store.places, len(store)) == (["sink", "table"], 2)
    episode = store.episode(1)
    assert episode.frames[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert episode.actions.tolist() == [0, 1, 0]
    assert episode.poses.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert episode.start.tolist() == [0, 0]


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(own_loop) == (0, 2)
    store = Store.open(tmp_path / "clips")
    assert (store.places, store.lengths.tolist(), store.kind.action_names[2]) == (["kitchen"], [100], "forward")
    with gtmsm.Recorder("clips", ("left", "right", "forward")) as recorder:  # goes on
        recorder.reset(np.zeros((32, 32, 3), np.uint8))
        for _ in range(3):
            recorder.step(0, np.zeros((32, 32, 3), np.uint8))
    assert Store.open(tmp_path / "clips").lengths.tolist() == [100, 3]


def test_continuous_actions_and_grey_frames_are_recorded_too(tmp_path):
    with Recorder(tmp_path / "s", 2) as recorder:
        recorder.reset(np.zeros((8, 6), np.uint8), (0.0, 0.0, 0.0))
        for t in range(3):
            recorder.step((0.5, -1), np.zeros((8, 6), np.uint8), (t, 0, 0))
    kind = Store.open(tmp_path / "s").kind
    assert (kind.frame_shape, kind.action_size, kind.discrete, kind.pose_size) == ((8, 6, 1), 2, False, 3)
    with pytest.raises(InputError, match="actions are 'left'; give their names"):
        Recorder(tmp_path / "t", "left")


def test_nothing_is_recorded_after_the_end(tmp_path):
    with Recorder(tmp_path / "s", KIND) as recorder:
        recorder.reset(frame(), (0, 0))
        for _ in range(2):
            recorder.step(0, frame(), (0, 0))
    with pytest.raises(InputError, match="this recorder is closed"):
        recorder.reset(frame(), (0, 0))
    assert len(Store.open(tmp_path / "s")) == 1


def test_a_walk_of_one_step_is_dropped(tmp_path):
    recorder = Recorder(tmp_path / "s", KIND)
    recorder.reset(frame(), (0, 0))
    recorder.step(0, frame(), (0, 0))
    assert not recorder.end()


def test_an_environment_says_what_its_clips_are_like(tmp_path):
    env = gymnasium.make("gtmsm/ImageWalk-v0")
    recorder = Recorder(tmp_path / "s", env)
    seen, info = env.reset(seed=0)
    recorder.reset(seen, info["pose"])
    for action in (0, 1, 2):
        seen, *_, info = env.step(action)
        recorder.step(action, seen, info["pose"])
    recorder.end()
    kind = Store.open(tmp_path / "s").kind
    assert (kind.frame_shape, kind.action_names[0], kind.pose_size) == ((8, 8, 3), "up", 2)


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ((2, frame(), (0, 0)), "the action is 2; expected 0 to 1, or -1 for none"),
        ((0.5, frame(), (0, 0)), "the action is 0.5"),
        ((0, frame()[1:], (0, 0)), "the frame is uint8 of shape (3, 6, 3); expected uint8 of shape (4, 6, 3)"),
        ((0, frame() / 255, (0, 0)), "the frame is float64"),
        ((0, None, (0, 0)), "the frame is None"),
        ((0, frame(), None), "the pose is None; expected 2 finite numbers"),
        ((0, frame(), (0, np.inf)), "expected 2 finite numbers"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_at_once(tmp_path, step, complaint):
    recorder = Recorder(tmp_path / "s", KIND)
    with pytest.raises(InputError, match="call reset first"):
        recorder.step(0, frame(), (0, 0))
    recorder.reset(frame(), (0, 0))
    with pytest.raises(InputError) as refused:
        recorder.step(*step)
    assert complaint in str(refused.value)
    recorder.step(0, frame(), (0, 0))  # what was refused is not part of it
    recorder.step(0, frame(), (0, 0))
    assert recorder.end()


# ---- other people's engines


def test_minigrid_shows_the_view_of_its_agent(tmp_path):
    pytest.importorskip("minigrid")
    assert record(tmp_path / "s", "MiniGrid-FourRooms-v0", size=32, walker="explore", steps=150).stored == 3
    store = Store.open(tmp_path / "s")
    assert (store.kind.frame_shape, store.kind.action_names) == ((32, 32, 3), ("left", "right", "forward"))
    assert store.places == ["0", "1", "2"]
    failed = []
    for episode in episodes(tmp_path / "s").values():
        moves = np.diff(np.vstack([episode.start, episode.poses]), axis=0)
        ahead = np.stack([np.cos(episode.poses[:, 2]), np.sin(episode.poses[:, 2])], 1)
        gone = (moves[:, :2] != 0).any(1)
        assert np.allclose(moves[gone, :2], ahead[gone], atol=1e-5)
        assert (episode.actions[gone] == 2).all()
        failed.append((~gone[episode.actions == 2]).mean())
    assert 0 < np.mean(failed) < 0.1


def test_a_wanderer_depends_on_its_clip_only(tmp_path):
    pytest.importorskip("minigrid")
    settings = {"env_id": "MiniGrid-FourRooms-v0", "walker": "explore", "clips": 4, "steps": 30, "size": 32}
    record(tmp_path / "s", **settings)
    record(tmp_path / "t", **settings, shard="1/2")
    assert same(episodes(tmp_path / "t"), {seed: episodes(tmp_path / "s")[seed] for seed in (1, 3)})


class Round(gymnasium.Env):
    """Stands in the middle of a room that is wide in one direction, narrow in a few others and has walls elsewhere."""

    action_names = ("left", "right", "ahead")
    action_space = gymnasium.spaces.Discrete(3)
    heading = 0

    def clear(self) -> int:
        return 24 if self.heading == 10 else 15 if 6 <= self.heading <= 14 else 3


def walked_where_it_is_wide(far: int) -> float:
    """Of a wanderer's steps ahead, those in the one direction that is clear for 24 steps."""
    env, rng, went = Round(), np.random.default_rng(0), Counter()
    known = Family(Round.clear, actions=Round.action_names, clear=Round.clear, turn_steps=6, near=12, far=far)
    wanderer = Wanderer(env, known)
    for _ in range(6_000):
        action = wanderer(rng)
        went[env.clear()] += action == 2
        env.heading = (env.heading + (1, -1, 0)[action]) % 24
    assert 0 < went[3] < 0.02 * sum(went.values())  # it dares to bump now and then
    return went[24] / sum(went.values())


def test_a_wanderer_that_turns_turns_on_until_its_way_is_clear():
    assert walked_where_it_is_wide(far=12) < 0.25
    assert walked_where_it_is_wide(far=24) > 0.4


def test_the_goal_of_a_grid_ends_no_clip(tmp_path):
    pytest.importorskip("minigrid")
    done = record(tmp_path / "s", "MiniGrid-Empty-5x5-v0", size=32, walker="explore", steps=300, clips=2)
    assert (done.stored, done.steps) == (2, 600)


def test_miniworld_is_drawn_without_a_screen(tmp_path):
    if find_spec("miniworld") is None:  # to import it would look for a screen
        pytest.skip("MiniWorld is not installed")
    try:
        record(tmp_path / "s", "MiniWorld-FourRooms-v0", size=32, walker="explore", steps=80, clips=1)
    except InputError as problem:
        pytest.skip(f"needs libegl1 libgl1 libglu1-mesa libgl1-mesa-dri: {problem}")
    episode = Store.open(tmp_path / "s").episode(0)
    assert episode.frames.std() > 5
    moves = np.diff(np.vstack([episode.start, episode.poses]), axis=0)
    ahead = np.stack([np.cos(episode.poses[:, 2]), np.sin(episode.poses[:, 2])], 1)
    walked = episode.actions == 2
    assert np.allclose(moves[walked, :2], 0.15 * ahead[walked], atol=1e-4)


def test_memory_maze_walks_where_it_looks(tmp_path):
    pytest.importorskip("dm_control")
    pytest.importorskip("mujoco")
    try:
        record(tmp_path / "s", "gtmsm/MemoryMaze-v0", size=32, walker="explore", steps=40, clips=1)
    except InputError as problem:
        pytest.skip(f"needs memory-maze and EGL: {problem}")
    episode = Store.open(tmp_path / "s").episode(0)
    turned = np.diff(np.unwrap(episode.poses[:, 2]))
    left, right = (Store.open(tmp_path / "s").kind.action_names.index(f"turn {way}") for way in ("left", "right"))
    held = episode.actions[1:] == episode.actions[:-1]
    assert (turned[held & (episode.actions[1:] == left)] > 0).all()
    assert (turned[held & (episode.actions[1:] == right)] < 0).all()


def test_memory_maze_as_published_asks_for_a_colour_and_turns_around_in_twenty_steps():
    pytest.importorskip("dm_control")
    pytest.importorskip("mujoco")
    from gtmsm.worlds.memory_maze import MemoryMazeEnv

    try:
        env, _ = MemoryMazeEnv(frequency=4), MemoryMazeEnv()
    except InputError as problem:
        pytest.skip(f"needs memory-maze and EGL: {problem}")
    env.reset(seed=1)
    steps = [env.step(env.action_names.index("turn left"))[-1] for _ in range(4)]
    turned = np.diff(np.unwrap([info["pose"][2] for info in steps]))
    assert turned[-1] == pytest.approx(2 * np.pi / 20, rel=0.05)
    assert any(np.allclose(steps[-1]["asked"], colour) for colour in env._env.task._target_colors[:3])
    env.close()
    with pytest.raises(InputError, match="frequency is 40; give 1 to 20"):
        MemoryMazeEnv(frequency=40)


def test_vizdoom_has_poses(tmp_path, monkeypatch):
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)  # it leaves a file
    record(tmp_path / "s", "VizdoomMyWayHome-v1", clips=2, size=32, env_kwargs={"frame_skip": 4}, steps=20)
    record(tmp_path / "t", "VizdoomMyWayHome-v1", clips=2, size=32, env_kwargs={"frame_skip": 4}, steps=20, shard="1/2")
    kept = episodes(tmp_path / "s")
    assert same(episodes(tmp_path / "t"), {1: kept[1]})
    assert all(episode.poses.shape == (20, 3) for episode in kept.values())
