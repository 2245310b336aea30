"""Run folders: what is in them, and what is refused as one."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import save_file

from gtmsm.errors import InputError
from gtmsm.evaluation.columns import CONTROLS
from gtmsm.evaluation.score import EvaluationConfig, evaluate
from gtmsm.experiments import Setting
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import Free, MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.presets import PRESETS
from gtmsm.run import Run, begin, fresh_folder, read_scores, resume
from gtmsm.training.engine import build_fabric
from gtmsm.training.loss import Loss
from gtmsm.training.train import Outcome
from gtmsm.worlds.image_walk import MOVES
from gtmsm.worlds.world import World

CPU = torch.device("cpu")
SHIPPED = Path(__file__).parents[1] / "weights" / "image-walk-celeba"

KEYS = {
    "psnr_pooled", "psnr_frames", "psnr_revisited", "psnr_unseen", "psnr_by_step", "ssim", "retrieval_revisited",
    "retrieval_revisited_last16",
}  # fmt: skip


@pytest.fixture
def copied(toy_run: Path, tmp_path: Path) -> Path:
    """A run folder to do harm to."""
    return Path(shutil.copytree(toy_run, tmp_path / "run"))


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Somebody's hand in config.yaml."""
    plain = yaml.safe_load((run / "config.yaml").read_text())
    change(plain)
    (run / "config.yaml").write_text(yaml.safe_dump(plain))


# ---- what a run leaves


def test_a_run_leaves_these_files_and_no_others(toy_run: Path):
    expected = {"config.yaml", "checkpoint.safetensors", "weights.safetensors", "metrics.jsonl", "scores.json"}
    assert {path.name for path in toy_run.iterdir()} - {"tensorboard"} == expected | {"report.html"}


def test_a_report_says_what_the_search_for_the_motion_said(toy_run: Path):
    (verdict,) = re.findall(r'"verdict": "([^"]+)"', (toy_run / "metrics.jsonl").read_text())
    assert f"<li>{verdict[0].upper()}{verdict[1:]}.</li>" in (toy_run / "report.html").read_text()


def test_the_model_that_was_built_first_is_the_one_that_trains(toy_images: Path, tmp_path: Path, monkeypatch):
    built: list[WorldModel] = []
    trained: list[WorldModel] = []
    build = Setting.build_model

    def building(setting: Setting) -> WorldModel:
        assert not (tmp_path / "run").exists()  # what may be refused comes before a folder is made
        built.append(build(setting))
        return built[-1]

    def training(loss: Loss, *others: object, **named: object) -> Outcome:
        trained.append(loss.model)
        return Outcome(0, 0.0, True)

    monkeypatch.setattr(Setting, "build_model", building)
    monkeypatch.setattr("gtmsm.run.train", training)
    experiment = replace(PRESETS["image-walk-small"][1], images=str(toy_images))
    begin("image-walk-small", experiment, tmp_path / "run", build_fabric("cpu", 1, 32), Console(quiet=True))
    assert len(built) == len(trained) == 1
    assert built[0] is trained[0]


def test_a_config_says_all_that_is_needed_to_do_the_same_again(toy_run: Path, toy_images: Path):
    run = Run.open(toy_run)
    assert (run.preset, run.experiment.images) == ("image-walk-small", str(toy_images))
    assert run.experiment.training.optimiser.batch == 4
    assert (run.places.train, run.places.validation, run.places.test) == (60, 4, 8)
    assert len(run.places.sha256) == 64


def test_runs_from_before_there_was_validation_still_open(copied: Path):
    edit(copied, lambda plain: plain["places"].pop("validation"))
    assert Run.open(copied).places.validation == 0
    assert Run.open(SHIPPED).places.validation == 0


def test_scores_hold_every_number_for_the_model(toy_run: Path):
    scores = json.loads((toy_run / "scores.json").read_text())
    assert scores.keys() >= KEYS | {"pose_r2", "revisited_fraction", "sampled", "controls", "protocol", "converged"}
    assert len(scores["psnr_by_step"]) == 20


@pytest.mark.parametrize("control", CONTROLS)
def test_scores_hold_every_number_for_every_control(toy_run: Path, control: str):
    scores = json.loads((toy_run / "scores.json").read_text())
    assert scores["controls"].keys() == CONTROLS.keys()
    assert scores["controls"][control].keys() >= KEYS


def test_scores_say_what_was_scored_and_trained_on(toy_run: Path):
    protocol = json.loads((toy_run / "scores.json").read_text())["protocol"]
    sha256 = Run.open(toy_run).places.sha256
    assert protocol["scored_on"] == f"8 test images of toy.npz, sha256 {sha256}"
    assert protocol["trained_on"] == f"60 images of toy.npz, sha256 {sha256}"


def test_the_report_is_a_page(toy_run: Path):
    assert (toy_run / "report.html").read_text().startswith("<!doctype html>")


def test_scoring_twice_gives_the_same_numbers(toy_run: Path, tmp_path: Path):
    run = Run.open(toy_run)
    run.evaluate(run.experiment.evaluation, CPU, out=tmp_path)
    assert (tmp_path / "scores.json").read_bytes() == (toy_run / "scores.json").read_bytes()


def test_another_seed_walks_elsewhere(toy_run: Path, tmp_path: Path):
    run = Run.open(toy_run)
    scores = run.evaluate(replace(run.experiment.evaluation, seed=1), CPU, out=tmp_path)
    assert scores["psnr_pooled"] != read_scores(toy_run)["psnr_pooled"]


def test_fresh_folders_count_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert fresh_folder("toy") == Path("runs/toy-1")
    assert fresh_folder("toy") == Path("runs/toy-2")


# ---- a model that knows


def test_a_model_that_knows_the_motion_retrieves_every_revisited_place_away_from_walls(toy_run: Path):
    run = Run.open(toy_run)
    setting = run.set_up(CPU)
    settings = replace(run.experiment.model, motion=MotionConfig(kind="free"))
    model = WorldModel(settings, setting.test_world.frame_shape, 5)
    assert isinstance(model.motion, Free)
    with torch.no_grad():
        model.motion.M.copy_(torch.tensor(MOVES, dtype=torch.float32).T)

    def to_and_fro(world: World, steps: int, generator: torch.Generator) -> torch.Tensor:
        """Up, down, right, left, left, right, down, up, stay, ...: never two cells from the start."""
        return torch.tensor([0, 1, 3, 2, 2, 3, 1, 0, 4]).repeat(world.agents, steps // 9 + 1)[:, :steps]

    scores = evaluate(model, setting.test_world, to_and_fro, EvaluationConfig(tau=18, horizon=30, clips=3), CPU).scores
    assert scores["retrieval_revisited"] == 1.0
    assert scores["pose_r2"] == pytest.approx(1.0)
    assert scores["revisited_fraction"] == 1.0
    assert scores["converged"]
    assert scores["controls"]["copy_nearest_predicted_pose"]["psnr_revisited"] == 100.0


def test_an_untrained_model_does_not_count_as_converged(toy_run: Path):
    assert not read_scores(toy_run)["converged"]


# ---- what is no run


def test_a_setting_that_older_runs_have_and_that_is_none_any_more_is_passed_over(copied: Path):
    was = Run.open(copied).experiment
    edit(copied, lambda plain: plain["experiment"]["training"]["optimiser"].update(compiled=True))
    assert Run.open(copied).experiment == was


def test_a_folder_without_a_config_is_no_run(tmp_path: Path):
    with pytest.raises(InputError, match="is not a run folder: it has no config.yaml"):
        Run.open(tmp_path)


def test_an_existing_folder_is_not_trained_into(toy_run: Path):
    run = Run.open(toy_run)
    with pytest.raises(InputError, match="exists; choose another --run, or continue it with --resume"):
        Run.create(toy_run, run.preset, run.set_up(CPU))


def test_a_run_whose_config_cannot_be_written_leaves_no_folder(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(self: Run) -> None:
        raise InputError("could not write")

    run = Run.open(toy_run)
    monkeypatch.setattr(Run, "write_config", full)
    with pytest.raises(InputError, match="could not write"):
        Run.create(tmp_path / "new", run.preset, run.set_up(CPU))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "was not written by gtmsm: expected values by name, found None"),
        ("- 1\n- 2", "was not written by gtmsm"),
        ("{}", "is not a run's config: it needs preset, places and experiment"),
        ("preset: [a]\nplaces: {name: a, sha256: b, train: 1, test: 1}\nexperiment: {}", r"unknown preset \['a'\]"),
        (
            "preset: image-walk\nplaces: {name: a, sha256: 3, train: 1, test: 1}\nexperiment: {}",
            "places: sha256 is 3; input should be a valid string",
        ),
        (
            "preset: rotate\nplaces: {name: a, sha256: b, train: 1, test: 1}\nexperiment: {training: {updates: 1"
            + "0" * 9
            + "}}",
            "updates is 1000000000; no such setting is 1,000,000,000 or more",
        ),
        ("preset: [", "is not valid YAML"),
        ("preset: a\nplaces: {}\nexperiment: {}", "places needs name, sha256, train and test"),
        ("preset: rotate\nplaces: {name: a, sha256: b, train: 1, test: 1}\nexperiment: 3", "expected settings by name"),
        (
            "preset: rotat\nplaces: {name: a, sha256: b, train: 1, test: 1}\nexperiment: {}",
            "unknown preset 'rotat'; did you mean \"rotate\"\\?",
        ),
        ("\x00", "is not valid YAML"),
    ],
)
def test_a_config_of_something_else_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=complaint) as refusal:
        Run.open(tmp_path)
    assert "\n" not in str(refusal.value)
    assert "config.yaml" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c["experiment"].update(wrold={}), 'unknown setting "wrold"; did you mean "world"?'),
        (lambda c: c["experiment"]["model"]["vae"].update(widht=3), '"model.vae.widht"; did you mean "width"?'),
        (
            lambda c: c["experiment"]["training"]["curriculum"].update(warmup=3),
            '"training.curriculum.warmup"; did you mean "warm_up"?',
        ),
        (lambda c: c["experiment"]["training"].update(updates="many"), "training.updates is 'many'"),
        (lambda c: c["experiment"]["training"].update(updates=-5), "updates is -5; give at least 1"),
        (lambda c: c["experiment"]["model"]["recall"].update(neighbours=300), "neighbours is 300 but tau is 16"),
        (lambda c: c["experiment"].update(seed=float("inf")), "seed is inf"),
        (lambda c: c["experiment"]["world"].update(start="left"), "world.start is 'left'"),
    ],
)
def test_a_slip_in_a_hand_edited_config_is_named(
    copied: Path, change: Callable[[dict[str, Any]], object], complaint: str
):
    edit(copied, change)
    with pytest.raises(InputError) as refusal:
        Run.open(copied)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- weights that do not belong


def another_width(path: Path) -> None:
    WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=40, code_size=8)), (3, 8, 8), 5).save(path)


def another_frame(path: Path) -> None:
    WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8)), (3, 6, 6), 5).save(path)


def another_motion(path: Path) -> None:
    motion = MotionConfig(kind="turning")
    WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8), motion=motion), (3, 8, 8), 5).save(path)


def another_prior(path: Path) -> None:
    recall = RecallConfig(prior="query")
    WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8), recall=recall), (3, 8, 8), 5).save(path)


def foreign(path: Path) -> None:
    save_file({"layer.weight": torch.zeros(3)}, path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def a_checkpoint(path: Path) -> None:
    shutil.copy(path.parent / "checkpoint.safetensors", path)


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (another_width, "holds weights of another model: vae.width is 40 there and 32 in config.yaml"),
        (another_frame, r"holds weights of another model: frame is \(3, 6, 6\) there and \(3, 8, 8\)"),
        (another_motion, "holds weights of another model: motion.kind is turning there and walled in config.yaml"),
        (another_prior, "holds weights of another model: recall.prior is query there and mixture in config.yaml"),
        (foreign, "holds weights of another program"),
        (truncated, "cannot be read as a safetensors file .* is it whole?"),
        (a_checkpoint, "holds no weights of a world model"),
        (Path.unlink, "no weights at .*; give a run folder that holds weights.safetensors"),
    ],
)
def test_weights_that_do_not_belong_to_the_run_are_refused(copied: Path, harm: Callable[[Path], None], complaint: str):
    harm(copied / "weights.safetensors")
    with pytest.raises(InputError, match=complaint) as refusal:
        Run.open(copied).load_model(CPU)
    assert "\n" not in str(refusal.value)


def test_a_config_that_lies_about_its_checkpoint_is_refused_before_a_model_is_built(
    copied: Path, monkeypatch: pytest.MonkeyPatch
):
    edit(copied, lambda plain: plain["experiment"]["model"]["vae"].update(width=30_000))
    monkeypatch.setattr(Run, "train", lambda *any, **named: pytest.fail("a model was built"))
    run, fabric = Run.open(copied), build_fabric("cpu", 1, 4)
    with pytest.raises(InputError, match="checkpoint.safetensors holds .*describe a larger one than the file can"):
        resume(run, run.experiment, fabric, Console(quiet=True))


def test_images_that_have_vanished_are_asked_for(copied: Path, tmp_path: Path):
    edit(copied, lambda c: c["experiment"].update(images="/no/such.npz"))
    with pytest.raises(InputError, match=r'trained on toy.npz .* not at "/no/such.npz"; give .* --images'):
        Run.open(copied).set_up(CPU)


def test_images_that_have_moved_can_be_given(copied: Path, toy_images: Path):
    edit(copied, lambda c: c["experiment"].update(images="/no/such.npz"))
    run = Run.open(copied)
    assert run.set_up(CPU, str(toy_images)).places.sha256 == run.places.sha256


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("{}", "holds no scores of gtmsm"),
        ("[]", "not written by gtmsm"),
        ("", "is not valid"),
        ('{"controls": {"vae_ceiling": null}, "psnr_pooled": "high"}', "psnr_pooled of the model is 'high'"),
        ('{"controls": {"vae_ceiling": [1]}}', r"scores of vae_ceiling are \[1\]"),
        ('{"controls": 3}', "holds no scores of gtmsm"),
    ],
)
def test_scores_of_something_else_are_refused(tmp_path: Path, text: str, complaint: str):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_scores(tmp_path)


def test_a_folder_without_scores_is_told_how_to_get_them(tmp_path: Path):
    with pytest.raises(InputError, match=f"has no scores.json; make it with `gtmsm evaluate {tmp_path}`"):
        read_scores(tmp_path)
