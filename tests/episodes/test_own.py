"""Recorded episodes: proposed for, trained on, scored, reported; parts of them held out for good."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_world import InMemory, grid_walks, image_walks, spins, without_headings, without_poses

import gtmsm
from gtmsm import cli, experiments
from gtmsm.config import changed
from gtmsm.episodes.convert import convert
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.pool import Pool
from gtmsm.episodes.split import split
from gtmsm.episodes.survey import survey
from gtmsm.episodes.windows import StoreWindows
from gtmsm.errors import InputError
from gtmsm.evaluation.score import evaluate
from gtmsm.model.frame_vae import FrameVAE
from gtmsm.run import Run

pytestmark = pytest.mark.usefixtures("ctrl_c")
CPU = torch.device("cpu")
TOY: dict[str, Any] = {
    "updates": 6, "batch": 4, "warm_up": 2, "grow": (), "tau": 12, "horizon": 4, "warm_up_tau": 6, "watch_every": 4,
    "model__vae__width": 16, "model__vae__code_size": 4, "model__recall__width": 16, "model__vae__coder": "dense",
    "prospect__candidates": 32, "prospect__rounds": 2, "prospect__restarts": 1, "prospect__clips": 4,
    "prospect__tau": 8, "prospect__horizon": 4, "prospect__angles": 64, "prospect__loop_updates": 10,
    "prospect__loop_clips": 20, "displacement_after": 0,
    "evaluation__tau": 12, "evaluation__horizon": 10, "evaluation__clips": 1,
}  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    """A store in memory is found at whatever path it is looked for."""

    def use(store: InMemory) -> str:
        for module in (experiments, experiments.own):
            monkeypatch.setattr(module, "open_store", lambda path: store)
        return "memory"

    return use


def toy_run(data: str, folder: Path, **changes: Any) -> Run:
    return gtmsm.train(data, run=folder, device="cpu", quiet=True, **TOY | changes)


# ---- trained, scored and reported

STORES = {
    "images": lambda: image_walks(14, 24, poses=False),
    "images with positions": lambda: image_walks(14, 24, poses=True),
    "rooms": lambda: spins(14, 24),
    "a grid with bumps": lambda: grid_walks(14, 24),
    "a grid with bumps and unknown headings": lambda: without_headings(grid_walks(14, 24)),
    "continuous actions": lambda: drives(14, 24),
}


def drives(n: int, steps: int) -> InMemory:
    """Grey, oblong frames and two numbers an action: one turns, one drives."""
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(n):
        actions = rng.uniform(-1, 1, (steps, 2)).astype(np.float32)
        heading = np.cumsum(0.3 * actions[:, 0])
        before = np.concatenate([[0.0], heading[:-1]])
        move = 7.0 * actions[:, 1:] * np.stack([np.cos(before), np.sin(before)], 1)
        poses = np.concatenate([np.cumsum(move, 0), heading[:, None]], 1).astype(np.float32)
        frames = (127 * (1 + np.sin(poses @ rng.normal(size=(3, 8 * 12))))).astype(np.uint8).reshape(steps, 8, 12, 1)
        wrapped = (poses + [0, 0, np.pi]) % [np.inf, np.inf, 2 * np.pi] - [0, 0, np.pi]
        wrapped[:, :2] = poses[:, :2]
        start = np.zeros(3, np.float32)
        episodes.append(Episode(frames, actions, wrapped.astype(np.float32), start, place=f"field {i}", seed=i))
    return InMemory(Kind((8, 12, 1), None, 2, 3, "driving"), episodes)


@pytest.mark.parametrize("name", STORES)
def test_recordings_of_every_kind_are_trained_on_scored_and_reported(name: str, opened, tmp_path: Path):
    store = STORES[name]()
    run = toy_run(opened(store), tmp_path / "run")
    scores, report = json.loads((run.folder / "scores.json").read_text()), (run.folder / "report.html").read_text()
    size = store.kind.pose_size
    assert scores["psnr_pooled"] > 0
    assert ("position_error" in scores) == (size > 0)
    assert ("heading_error" in scores) == (size == 3)
    assert ("true_pose_memory" in scores["controls"]) == (size > 0 and "unknown headings" not in name)
    if name.startswith("images"):  # where cells come back exactly
        assert 0 <= scores["retrieval_revisited"] <= 1
    if name == "continuous actions":
        assert scores["retrieval_revisited"] is None
    assert all(action in report for action in store.kind.action_names or ("axis 1", "axis 2"))


def test_a_run_on_recordings_is_filmed_compared_and_resumed(opened, tmp_path: Path, capsys):
    folder = toy_run(opened(image_walks(14, 24, poses=True)), tmp_path / "run").folder

    def say(*words: str | Path) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(word) for word in words])
        told = capsys.readouterr()
        assert stop.value.code in (0, 2)
        return told.out + told.err

    assert "12 steps imagined after 12 memorised" in say("imagine", folder, "--out", tmp_path / "film.gif")
    assert (tmp_path / "film.gif").stat().st_size > 0
    assert "run" in say("compare", folder)
    first, run = (folder / "scores.json").read_text(), Run.open(folder)
    run.evaluate(run.experiment.evaluation, CPU)
    assert (folder / "scores.json").read_text() == first
    more = "--resume", "--updates", "8", "--no-evaluate", "--device", "cpu"
    assert "8 updates behind it" in say("train", "own", "--run", folder, *more)
    assert "nobody can walk in a recording" in say("record", folder, tmp_path / "walk.npz")


def test_episodes_on_disk_teach_the_same_as_those_in_memory(opened, monkeypatch, tmp_path: Path):
    pytest.importorskip("zarr")
    from gtmsm.episodes.store import Store

    store = image_walks(12, 24, poses=True)
    with Store.create(tmp_path / "episodes", store.kind) as writer:
        writer.append(*store.episodes)
    kept = toy_run(str(tmp_path / "episodes"), tmp_path / "disk", evaluate=False).folder
    again = toy_run(opened(store), tmp_path / "memory", evaluate=False).folder
    assert (kept / "weights.safetensors").read_bytes() == (again / "weights.safetensors").read_bytes()
    monkeypatch.undo()
    (tmp_path / "episodes").rename(tmp_path / "moved")
    run = Run.open(kept)
    with pytest.raises(InputError, match="which is not there; give it with --data"):
        run.set_up(CPU)
    assert run.set_up(CPU, data=str(tmp_path / "moved")).places.test == run.places.test


def test_flags_change_what_is_proposed_and_the_reasons_are_three_lines(opened, tmp_path: Path, capsys):
    opened(image_walks(14, 24, poses=False))
    words = "--updates 2 --batch 2 --warm-up 0 --grow --no-prospect --model.vae.width 16 --device cpu --no-evaluate"
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "own", "--data", "memory", "--run", str(tmp_path / "run"), *words.split()])
    told = capsys.readouterr().out.splitlines()
    assert stop.value.code == 0
    assert told[0].startswith("motion walled") and "cannot" in told[1] and told[2].startswith("tau 12, horizon 12")
    experiment = Run.open(tmp_path / "run").experiment
    assert (experiment.training.updates, experiment.model.vae.width) == (2, 16)


@pytest.mark.parametrize("name", ["lerobot-image", "lerobot-video", "minari-v0", "worldmodel.h5"])
def test_what_other_libraries_wrote_is_trained_on_and_scored(name: str, tmp_path: Path):
    if name == "lerobot-video":
        pytest.importorskip("av")
    told = convert(Path(__file__).parents[1] / "written" / name, tmp_path / "store")
    run = toy_run(str(tmp_path / "store"), tmp_path / "run", batch=2)
    assert told.episodes == 3
    scores = json.loads((run.folder / "scores.json").read_text())
    assert scores["psnr_pooled"] > 0 and (run.folder / "report.html").exists()


# ---- proposals


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (lambda: image_walks(48, 64, poses=False), ("walled", True, False, False)),
        (lambda: spins(14, 64), ("turning", False, False, True)),
        (lambda: spins(14, 64, poses=False), ("turning", False, False, False)),
        (lambda: grid_walks(14, 64), ("turning", False, True, True)),
        (lambda: drives(14, 64), ("turning", False, False, True)),
    ],
)
def test_the_motion_is_proposed_from_poses_names_and_steps_that_fail(store, expected):
    experiment, _ = experiments.proposed("x", False, store())
    found = experiment.model.motion.kind, experiment.from_start, experiment.model.bumps > 0
    assert (*found, experiment.training.objective.displacement > 0) == expected


def test_one_episode_does_not_show_that_all_begin_at_one_spot():
    few = image_walks(48, 64, poses=False)
    store = InMemory(few.kind, few.episodes[:4])
    experiment, reasons = experiments.proposed("x", False, store)
    assert experiment.model.motion.kind != "walled"
    assert "1 episode to learn from has 64 steps" in reasons[2]


def glides(environment: str, height: int = 8, width: int = 16) -> InMemory:
    """Speed carries over; nobody turns."""
    store = drives(14, 64)
    episodes = []
    for episode in store.episodes:
        velocity = np.zeros((64, 2), np.float32)
        for t in range(64):
            velocity[t] = 0.8 * velocity[t - 1] + [episode.actions[t, 1], 0]
        poses = np.concatenate([np.cumsum(velocity, 0), np.zeros((64, 1))], 1).astype(np.float32)
        frames = np.resize(episode.frames, (64, height, width, 1))
        episodes.append(replace(episode, poses=poses, frames=frames))
    return InMemory(replace(store.kind, frame_shape=(height, width, 1), environment=environment), episodes)


def test_speed_that_carries_over_is_noticed():
    assert experiments.proposed("x", False, glides("driving"))[0].model.motion.kind == "gliding"


def test_whoever_wants_no_displacements_is_not_told_that_they_are_learned_from():
    proposal, reasons = experiments.proposed("x", False, glides("driving"))
    assert "true displacements are targets" in reasons[1]
    assert experiments.as_chosen(reasons, proposal, proposal) == reasons
    free = changed(proposal, {"training.objective.displacement": 0.0, "evaluation.metric_poses": False})
    why, told, sizes = experiments.as_chosen(reasons, proposal, free)
    assert told == "--displacement 0: your poses are not learned from, and only score what is found"
    assert (why, sizes) == (reasons[0], reasons[2])


def rolls(keep: float) -> InMemory:
    """Drives in which this share of a turn carries over."""
    store = drives(14, 64)
    episodes = []
    for episode in store.episodes:
        turns = np.zeros(64, np.float32)
        for t in range(64):
            turns[t] = keep * turns[t - 1] * (t > 0) + 0.3 * episode.actions[t, 0]
        poses = episode.poses.copy()
        poses[:, 2] = (np.cumsum(turns) + np.pi) % (2 * np.pi) - np.pi
        episodes.append(replace(episode, poses=poses))
    return InMemory(store.kind, episodes)


@pytest.mark.parametrize(("keep", "kind"), [(0.0, "turning"), (0.5, "rolling")])
def test_turns_that_carry_over_are_noticed(keep: float, kind: str):
    facts, (experiment, reasons) = survey(rolls(keep), np.arange(14)), experiments.proposed("x", False, rolls(keep))
    assert facts.spin == pytest.approx(float(keep > 0), abs=1e-3)
    assert experiment.model.motion.kind == kind
    assert ("the speed of turns carries over" in reasons[0]) == (kind == "rolling")


@pytest.mark.parametrize(("environment", "degrees"), [("gtmsm/Doom-v0", 90.0), ("Kitchen-v1", 80.0)])
def test_on_a_gpu_rays_are_proposed_where_poses_are_known(environment: str, degrees: float):
    on_gpu, on_cpu = (experiments.proposed("x", gpu, glides(environment))[0].model for gpu in (True, False))
    assert (on_gpu.recall.prior, on_gpu.recall.field_of_view) == ("rays", degrees)
    assert on_cpu.recall.prior == "query"


@pytest.mark.parametrize(
    ("store", "mapped"), [(drives(14, 64), 5), (grid_walks(14, 24), 0), (image_walks(14, 24, poses=True), 0)]
)
def test_a_learned_map_is_proposed_for_agents_that_turn_unless_views_come_back_exactly(store: InMemory, mapped: int):
    experiment, reasons = experiments.proposed("x", False, store)
    assert experiment.model.recall.map_size == mapped
    assert ("in a learned map" in reasons[2]) == bool(mapped)


@pytest.mark.parametrize(
    ("side", "patch", "code_size"), [(32, 4, 256), (40, 4, 400), (48, 8, 576), (64, 8, 1_024), (96, 0, 0)]
)
def test_larger_frames_are_coded_by_larger_patches_as_long_as_these_are_few(side: int, patch: int, code_size: int):
    model = experiments.proposed("x", True, glides("Kitchen-v1", side, side))[0].model
    assert (model.recall.prior == "rays") == bool(patch)
    if patch:
        assert (model.vae.coder, model.vae.patch, model.vae.code_size) == ("spatial", patch, code_size)
        FrameVAE(model.vae, (1, side, side))  # can be built


# ---- held out


def test_what_was_learned_from_is_never_tested_on_when_a_store_grows():
    names = [f"maze {i}" for i in range(200)]
    for by in ("places", "episodes"):
        learned: set[str] = set()
        for count in range(10, 200, 7):
            parts = split(names[:count], list(range(count)), by)
            numbers = np.concatenate([parts.train, parts.watch, parts.test])
            assert sorted(numbers.tolist()) == list(range(count))
            assert min(parts.counts) >= 1
            learned |= {names[i] for i in parts.train}
            assert not learned & {names[i] for i in parts.test}


def test_all_episodes_of_a_place_are_on_one_side():
    places = [f"maze {i % 20}" for i in range(100)]
    parts = split(places, list(range(100)), "places")
    train, watch, test = ({places[i] for i in part} for part in (parts.train, parts.watch, parts.test))
    assert not (train & watch or train & test or watch & test)
    assert parts.counts == (len(train), len(watch), len(test))


# ---- windows


def test_windows_are_what_was_recorded_with_steps_from_the_pose_before():
    store = drives(5, 20)
    pool = Pool.of(store, np.arange(1, 5), CPU, unit=7.0)
    clip = pool(40, 6, torch.Generator().manual_seed(0))
    assert clip.x.shape == (40, 6, 1, 8, 12)
    torch.testing.assert_close(clip.true_step[..., 2], 0.3 * clip.a[..., 0], atol=1e-5, rtol=0)  # across the seam, too
    torch.testing.assert_close(clip.true_step[..., 0], clip.a[..., 1], atol=1e-4, rtol=0)
    first = {bytes(episode.frames[0]) for episode in store.episodes}
    begun = Pool.of(store, np.arange(5), CPU, from_start=True)(5, 6, torch.Generator().manual_seed(0))
    assert {bytes((255 * x).round().byte().permute(1, 2, 0).numpy()) for x in begun.x[:, 0]} == first


def test_windows_read_from_the_store_are_those_kept_in_memory():
    store = drives(5, 20)
    for options in ({}, {"from_start": True, "unit": 7.0}):
        pool, stored = Pool.of(store, np.arange(1, 5), CPU, **options), StoreWindows(store, np.arange(1, 5), **options)
        kept, read = (source(7, 6, torch.Generator().manual_seed(3)) for source in (pool, stored))
        assert torch.equal(kept.x, read.x) and torch.equal(kept.a, read.a)
        torch.testing.assert_close(kept.true_step, read.true_step, atol=1e-5, rtol=0)


# ---- refusals


@pytest.mark.parametrize(
    ("store", "changes", "told"),
    [
        (lambda: replace(image_walks(14, 24, False), episodes=[]), {}, "holds no episodes yet"),
        (lambda: image_walks(14, 24, False), {"tau": 40}, "up to 24 steps, and tau + horizon is 44; lower --tau"),
        (lambda: image_walks(14, 24, False), {"evaluation.tau": 40}, "lower --evaluation.tau and --evaluation.horizon"),
        (lambda: image_walks(14, 24, False), {"displacement": 1.0, "evaluation.metric_poses": True}, "have 0 numbers"),
        (lambda: image_walks(14, 24, False), {"displacment": 1.0}, 'did you mean "displacement"?'),
        (lambda: image_walks(14, 24, False), {"model.landmark.form": "bayes"}, "landmarks"),
        (lambda: image_walks(2, 24, False), {}, "at least 3"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_in_one_line(store, changes, told, opened, tmp_path: Path):
    with pytest.raises(InputError, match=re.escape(told)) as problem:
        toy_run(opened(store()), tmp_path / "run", **changes)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_scored_on_recordings_of_another_kind(opened, tmp_path: Path):
    run = toy_run(opened(image_walks(14, 24, False)), tmp_path / "run", evaluate=False)
    opened(without_poses(grid_walks(14, 24)))
    with pytest.raises(InputError, match="was trained on"):
        run.evaluate(run.experiment.evaluation, CPU)


def test_without_data_there_is_nothing_to_train_on(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "own", "--device", "cpu"])
    assert stop.value.code == 2
    assert "give --data PATH" in capsys.readouterr().err


# ---- learned


@pytest.mark.slow
def test_what_is_proposed_for_walks_without_poses_retrieves_what_comes_back(opened, tmp_path: Path):
    data = opened(image_walks(200, 96, poses=False))
    small = {"updates": 300, "warm_up": 150, "batch": 16, "model__vae__width": 64, "watch_every": 10_000}
    small |= {"prospect__candidates": 128, "prospect__clips": 24, "prospect__tau": 24, "prospect__horizon": 12}
    small |= {"evaluation__clips": 24}
    run = gtmsm.train(data, run=tmp_path / "run", device="cpu", quiet=True, evaluate=False, **small)
    setting, model = run.set_up(CPU), run.load_model(CPU)
    scores = evaluate(model, setting.test_world, setting.walker, run.experiment.evaluation, CPU).scores
    assert scores["revisited_fraction"] > 0.5
    assert scores["retrieval_revisited"] > 0.95
    assert scores["psnr_pooled"] > scores["controls"]["mean_frame"]["psnr_pooled"] + 1


@pytest.mark.slow
def test_moves_and_turns_are_found_though_many_steps_fail(opened, tmp_path: Path):
    data = opened(grid_walks(60, 64))
    small = {"updates": 80, "batch": 8, "learning_rate": 5e-3, "anneal_updates": 80, "model__vae__width": 32}
    small |= {"model__recall__width": 32}
    run = gtmsm.train(data, run=tmp_path / "run", device="cpu", quiet=True, evaluate=False, watch_every=10_000, **small)
    model = gtmsm.WorldModel.load(run.folder)
    left, right, forward = model.motion.M.T
    assert float(forward[0]) * run.experiment.unit == pytest.approx(10, rel=0.02)
    assert (float(left[2]), float(right[2])) == pytest.approx((np.pi / 2, -np.pi / 2), rel=0.02)
    walks = grid_walks(60, 64)
    clip = Pool.of(walks, np.arange(60), CPU)(60, 64, torch.Generator().manual_seed(0))
    failed = survey(walks, np.arange(60)).how(clip.x, clip.a, clip.true_step)[:, 1:]
    noticed = (model.bumps.noticed(model.vae.encode(clip.x).mean, clip.a, None) != clip.a).any(-1)[:, 1:]
    assert failed.float().mean() > 0.1
    assert (noticed == failed).float().mean() > 0.97
