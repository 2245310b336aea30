"""Where was this picture seen?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gtmsm.data.store import Recording, read_clip
from gtmsm.errors import InputError
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import ImageWalkExperiment, RoomsExperiment, set_up
from gtmsm.find import find_picture, record_walk
from gtmsm.find.ground import fit_poses, off_by
from gtmsm.find.words import headline, pose_in_words, told, worth_telling
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.model.weights import WEIGHTS
from gtmsm.presets import PRESETS
from gtmsm.run import Run
from gtmsm.worlds.image_walk import ImageWalkConfig
from gtmsm.worlds.images import read_picture
from gtmsm.worlds.rooms import RoomsConfig

CPU = torch.device("cpu")
WALK: dict[str, Any] = {"steps": 20, "seed": 0, "images": None, "pictures": None}


def experiment_of(kind: str, images: Path) -> ImageWalkExperiment | RoomsExperiment:
    """A small world, and a small model with landmarks."""
    preset = PRESETS[{"images": "image-walk-small", "turning": "rotate", "walking": "walk"}[kind]][1]
    model = replace(
        preset.model,
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind=preset.model.motion.kind, noise=0.05),
        recall=RecallConfig(neighbours=2, delta=1e-4),
        landmark=LandmarkConfig(form="bayes", matches=6, width=16),
    )
    if isinstance(preset, RoomsExperiment):
        world = RoomsConfig(textures="procedural", train_places=1, test_places=2, antialias=1)
        evaluation = EvaluationConfig(tau=8, horizon=4, clips=1, metric_poses=preset.evaluation.metric_poses)
        return replace(preset, world=world, model=model, evaluation=evaluation)
    world = ImageWalkConfig(size=20, obstacles=1, obstacle_side=2)
    return replace(preset, world=world, images=str(images), model=model, evaluation=EvaluationConfig(tau=8, clips=1))


@pytest.fixture(scope="module", params=["images", "turning", "walking"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, toy_images: Path) -> Run:
    """Untrained weights, in a run folder."""
    setting = set_up(experiment_of(request.param, toy_images), CPU)
    name = {"images": "image-walk-small", "turning": "rotate", "walking": "walk"}[request.param]
    made = Run.create(tmp_path_factory.mktemp("runs") / request.param, name, setting)
    setting.build_model().save(made.folder / WEIGHTS)
    return made


@pytest.fixture(scope="module")
def walked(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A walk of that run: a new folder with its clip and pictures to ask about, and the lines said of them."""
    folder = tmp_path_factory.mktemp("walks") / "new"
    return folder, record_walk(run, folder / "clip.npz", **WALK | {"pictures": folder / "asked"}).splitlines()


def read(run: Run, path: Path) -> Recording:
    model = run.load_model(CPU)
    return read_clip(path, model.frame_shape, model.action_size)


def without_truth(path: Path, recording: Recording, steps: slice = slice(None)) -> Path:
    """The same clip as somebody would make it who knows frames and actions alone."""
    np.savez(path, frames=recording.frames[steps], actions=recording.actions[steps])
    return path


# ---- recording


def test_a_walk_is_written_with_the_truth_and_a_map(run: Run, walked: tuple[Path, list[str]]):
    folder, said = walked
    assert said[0].startswith("20 steps of ")
    recording = read(run, folder / "clip.npz")
    assert recording.steps == 20
    assert recording.kind == ("image-walk" if isinstance(run.experiment, ImageWalkExperiment) else "rooms")
    assert recording.chart is not None
    assert recording.poses is not None
    tall, wide = recording.chart.picture.shape[:2]
    pixel = recording.chart.pixel(recording.poses)
    assert (pixel > 0).all()
    assert (pixel < [wide, tall]).all()


def test_the_map_of_an_image_shows_at_a_pose_what_was_seen_there(tmp_path: Path, toy_images: Path):
    setting = set_up(replace(experiment_of("images", toy_images), world=ImageWalkConfig(size=20)), CPU)
    record_walk(Run(tmp_path, "image-walk-small", setting.experiment, setting.places), tmp_path / "clip.npz", **WALK)
    recording = read_clip(tmp_path / "clip.npz", (3, 8, 8), 5)
    assert recording.chart is not None
    assert recording.poses is not None
    for frame, (x, y) in zip(recording.frames, recording.chart.pixel(recording.poses).astype(int), strict=True):
        assert np.array_equal(recording.chart.picture[y - 32 : y + 32 : 8, x - 32 : x + 32 : 8], frame)


def test_the_same_seed_is_the_same_walk_with_pictures_or_without(
    run: Run, tmp_path: Path, walked: tuple[Path, list[str]]
):
    record_walk(run, tmp_path / "b.npz", **WALK)
    record_walk(run, tmp_path / "c.npz", **WALK | {"seed": 1})
    a, b, c = (read(run, path) for path in (walked[0] / "clip.npz", tmp_path / "b.npz", tmp_path / "c.npz"))
    assert np.array_equal(a.frames, b.frames)
    assert not np.array_equal(a.frames, c.frames)


def test_pictures_to_ask_about_are_named_and_told_with_the_truth(run: Run, walked: tuple[Path, list[str]]):
    folder, said = walked
    names = {path.name for path in (folder / "asked").iterdir()}
    assert names == {Path(line.split(":")[0]).name for line in said[1:]}
    assert sum(name.startswith("seen-step-") for name in names) >= 1
    assert sum(name.startswith("other-place-step-") for name in names) == 2
    side = run.load_model(CPU).frame_shape[1]
    assert all(read_picture(folder / "asked" / name).shape == (3, side, side) for name in names)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"steps": 0}, "steps is 0; give 1 to 10000"),
        ({"steps": 10_001}, "steps is 10001; give 1 to 10000"),
        ({"seed": -1}, "seed is -1"),
        ({"out": "clip.mp4"}, 'cannot write a clip as "clip.mp4"; end its name with .npz'),
        ({"out": "file/clip.npz"}, "file is not a folder"),
        ({"pictures": "file"}, "file is not a folder"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, changed: dict[str, Any], complaint: str
):
    (tmp_path / "file").write_text("")
    flags = WALK | {name: value for name, value in changed.items() if name != "out"}
    flags["pictures"] = tmp_path / flags["pictures"] if flags["pictures"] else None
    with pytest.raises(InputError, match=complaint):
        record_walk(run, tmp_path / changed.get("out", "clip.npz"), **flags)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- finding


@pytest.mark.parametrize("truth", [True, False])
def test_a_picture_is_looked_up_and_drawn(run: Run, tmp_path: Path, walked: tuple[Path, list[str]], truth: bool):
    clip = walked[0] / "clip.npz"
    clip = clip if truth else without_truth(tmp_path / "own.npz", read(run, clip))
    for picture in sorted((walked[0] / "asked").iterdir())[::3]:
        out = tmp_path / "new" / "where.png"
        said = find_picture(run, clip, picture, out=out, device=CPU)
        assert said.startswith(("seen at ", "never seen (unknown 0."))
        assert said.endswith(f"figure: {out}")
        with Image.open(out) as figure:
            assert min(figure.size) > 700
        assert [path.name for path in out.parent.iterdir()] == ["where.png"]


def test_a_short_clip_is_looked_up_by_its_last_frame(run: Run, tmp_path: Path, walked: tuple[Path, list[str]]):
    clip = walked[0] / "clip.npz"
    short = without_truth(tmp_path / "short.npz", read(run, clip), slice(3, 8))
    said = find_picture(run, clip, short, out=tmp_path / "where.png", device=CPU)
    assert "unknown" in said
    assert (tmp_path / "where.png").is_file()


def test_a_frame_of_the_clip_is_most_like_itself(run: Run, walked: tuple[Path, list[str]]):
    recording = read(run, walked[0] / "clip.npz")
    model = run.load_model(CPU)
    memory, _ = model.memorise(recording.x(), recording.a(model.action_size))
    where = model.localise(memory, recording.x()[:, 4:5])
    same = np.flatnonzero((recording.frames == recording.frames[4]).all((1, 2, 3)))
    assert set(where.entry[0].tolist()) & set(same.tolist())


def test_a_model_without_landmarks_cannot_localise(run: Run, tmp_path: Path, walked: tuple[Path, list[str]]):
    experiment = replace(run.experiment, model=replace(run.experiment.model, landmark=LandmarkConfig()))
    blind = Run.create(tmp_path / "blind", run.preset, set_up(experiment, CPU))
    set_up(experiment, CPU).build_model().save(blind.folder / WEIGHTS)
    picture = next((walked[0] / "asked").iterdir())
    with pytest.raises(InputError, match=r"landmarks, and this model has none; train one with --model.landmark.form"):
        find_picture(blind, walked[0] / "clip.npz", picture, out=tmp_path / "where.png", device=CPU)
    assert not (tmp_path / "where.png").exists()


def test_a_model_that_diverged_is_refused(run: Run, tmp_path: Path, walked: tuple[Path, list[str]]):
    broken = WorldModel.load(run.folder)
    for parameter in broken.motion.parameters():
        parameter.fill_(torch.nan)
    folder = Run.create(tmp_path / "nan", run.preset, set_up(run.experiment, CPU))
    broken.save(folder.folder / WEIGHTS)
    clip, picture = walked[0] / "clip.npz", next((walked[0] / "asked").iterdir())
    with pytest.raises(InputError, match="holds NaN or infinity; train the model again"):
        find_picture(folder, clip, picture, out=tmp_path / "where.png", device=CPU)


# ---- poses laid over each other


def poses(n: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, size))


def moved(pose: np.ndarray, turn: float, shift: tuple[float, float]) -> np.ndarray:
    c, s = np.cos(turn), np.sin(turn)
    return np.hstack([pose[:, :2] @ np.array([[c, s], [-s, c]]) + shift, pose[:, 2:] + turn])


@pytest.mark.parametrize("size", [2, 3])
def test_a_turn_and_a_shift_are_found(size: int):
    mine = poses(9, size)
    theirs = moved(mine, 0.7, (2.0, -1.0))
    np.testing.assert_allclose(fit_poses(mine, theirs, metric=True)(mine), theirs, atol=1e-9)


def test_who_turns_on_the_spot_is_laid_over_by_the_heading():
    mine = np.array([[0.0, 0.0, turn] for turn in np.linspace(0, 6, 9)])
    theirs = moved(mine, 2.0, (3.0, 4.0))
    for metric in (True, False):
        np.testing.assert_allclose(np.cos(fit_poses(mine, theirs, metric)(mine) - theirs), 1, atol=1e-9)
        assert off_by(fit_poses(mine, theirs, metric)(mine), theirs) < 1e-9


def test_poses_without_a_scale_are_laid_over_by_any_linear_map():
    mine = poses(9, 3)
    theirs = np.hstack([mine[:, :2] @ np.array([[0.0, 2.0], [0.5, 1.0]]) + 3, 1 - mine[:, 2:]])
    fit = fit_poses(mine, theirs, metric=False)
    assert fit.sign == -1
    np.testing.assert_allclose(fit(mine)[:, :2], theirs[:, :2], atol=1e-9)
    np.testing.assert_allclose(np.cos(fit(mine)[:, 2] - theirs[:, 2]), 1, atol=1e-9)


# ---- words


def test_poses_are_told_with_signs_and_in_degrees():
    assert pose_in_words([3.04, -0.01]) == "row +3.0, column 0.0"
    assert pose_in_words([-1.26, 0.5, 3 * np.pi / 2]) == "x -1.3, y +0.5, heading -90°"


def answer(weights: list[float], unknown: float) -> PoseMixture:
    n = len(weights)
    pose = torch.stack([torch.arange(float(n)), -torch.arange(float(n))], 1)[None]
    return PoseMixture(
        torch.tensor([weights]), pose, torch.full((1, n, 1), 0.01), torch.arange(n)[None], torch.tensor([unknown])
    )


def test_what_was_seen_is_told_with_its_probability():
    said = told(answer([0.97, 0.005], 0.02), has_heading=False, metric=True)
    assert said == (
        "seen at row 0.0, column 0.0 (cells down and to the right of the start) ± 0.1 with probability 0.97, "
        "most like step 1; unknown 0.02"
    )


def test_at_most_three_places_are_told():
    where = answer([0.4, 0.2, 0.2, 0.1], 0.1)
    assert worth_telling(where) == [0, 1, 2]
    first, *others = told(where, has_heading=False, metric=False).splitlines()
    assert "in the model's own units" in first
    assert [line.split(" with")[0] for line in others] == [
        "or at row +1.0, column -1.0 ± 0.1",
        "or at row +2.0, column -2.0 ± 0.1",
    ]


def test_what_was_never_seen_is_told_so():
    assert (
        told(answer([0.01, 0.0], 0.99), has_heading=False, metric=True).splitlines()[0] == "never seen (unknown 0.99)"
    )


@pytest.mark.parametrize(
    ("unknown", "metric", "line"),
    [
        (0.02, True, "seen at row 0.0, column 0.0 from the start; unknown 0.02"),
        (0.02, False, "seen near step 1; unknown 0.02"),
        (0.9, True, "never seen (unknown 0.90)"),
    ],
)
def test_a_figure_says_in_short_what_it_shows(unknown: float, metric: bool, line: str):
    assert headline(answer([1 - unknown], unknown), metric) == line
