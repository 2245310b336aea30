"""`gtmsm train`: what it refuses, what it leaves behind, and how it is resumed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import TRAIN, files_below, images
from PIL import Image

from gtmsm import cli
from gtmsm.files import locked

# ---- training


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--tau 0", "tau is 0; give at least 1 step to memorise"),
        ("--model.recall.neighbours 17", "neighbours is 17 but tau is 16; memory would hold fewer than K entries"),
        ("--evaluation.tau 4", "neighbours is 5 but evaluation.tau is 4"),
        ("--learning-rate nan", "learning_rate is nan"),
        ("--learning-rate inf", "learning_rate is inf; give a finite number"),
        ("--learning-rate -1", "learning_rate is -1.0; give a positive one"),
        ("--final-learning-rate -1", "final_learning_rate is -1.0; give a positive one"),
        ("--wall-rate inf", "wall_rate is inf"),
        ("--clip-norm nan", "clip_norm is nan"),
        ("--model.motion.noise inf", "noise is inf; give a finite number"),
        ("--model.motion.open-bias nan", "open_bias is nan"),
        ("--model.recall.delta 0", "delta is 0.0; an exact revisit would divide by it"),
        ("--prospect.delta nan", "delta is nan"),
        ("--prospect.elite 5", "elite is 5.0; give the share to keep"),
        ("--prospect.clips 0", "a search needs at least 1 clip"),
        ("--walker.mean-repeats -1", "mean_repeats is -1.0"),
        ("--updates -5", "updates is -5; give at least 1"),
        ("--seed -1", "seed is -1; give a whole number from 0"),
        ("--evaluation.seed -1", "seed is -1"),
        ("--seed 99999999999999999999", "seed is 99999999999999999999"),
        ("--batch 0", "batch is 0; give at least 1 clip"),
        ("--grow 3 -3", "grow is (3, -3); every stage needs at least 1 update"),
        ("--world.crop 30", "crop is 30, larger than the image of size 20"),
        ("--world.crop 6 --model.vae.coder conv", "6x6 does not divide by 4; use coder dense"),
        ("--devices 0", "devices is 0; give 1 to"),
        ("--devices 10000", "devices is 10000; give 1 to"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    refused, tmp_path: Path, toy_flags: list[str], flags: str, complaint: str
):
    assert complaint in refused(*TRAIN, *toy_flags, "--run", tmp_path / "run", *flags.split())
    assert not files_below(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(refused, tmp_path: Path, toy_flags: list[str], toy_run: Path):
    advice = "device is cuda but PyTorch sees no GPU; use --device cpu"
    assert refused(*TRAIN, *toy_flags, "--run", tmp_path / "run", "--device", "cuda") == advice
    assert refused("evaluate", toy_run, "--device", "cuda") == advice
    assert not files_below(tmp_path)


@pytest.mark.skipif((cli.os.cpu_count() or 1) < 2, reason="there is one core")
def test_a_batch_that_cannot_be_shared_is_refused(refused, tmp_path: Path, toy_flags: list[str]):
    told = refused(*TRAIN, *toy_flags, "--run", tmp_path / "run", "--batch", "5", "--devices", "2")
    assert told == "batch is 5; 2 devices cannot share it evenly"


def broken_npz(path: Path) -> Path:
    np.savez(path / "i.npz", train=images(4, 20, 20, 3), test=images(4, 20, 20, 3))
    (path / "i.npz").write_bytes((path / "i.npz").read_bytes()[:1000])
    return path / "i.npz"


def floats(path: Path) -> Path:
    np.savez(path / "i.npz", train=images(4, 20, 20, 3, dtype=float), test=images(4, 20, 20, 3))
    return path / "i.npz"


def greys(path: Path) -> Path:
    np.savez(path / "i.npz", train=images(4, 20, 20), test=images(4, 20, 20))
    return path / "i.npz"


def one_image(path: Path) -> Path:
    np.savez(path / "i.npz", train=images(1, 20, 20, 3), test=images(1, 20, 20, 3))
    return path / "i.npz"


def one_picture(path: Path) -> Path:
    Image.new("RGB", (20, 20)).save(path / "one.png")
    return path


def broken_picture(path: Path) -> Path:
    for name in "abc":
        Image.new("RGB", (20, 20)).save(path / f"{name}.png")
    (path / "b.png").write_bytes(b"not a picture")
    return path


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: path / "nowhere.npz", "no such file or folder; give"),
        (broken_npz, "not a readable .npz"),
        (floats, "train is float64 of shape (4, 20, 20, 3); expected uint8 of shape (N, H, W, 3)"),
        (greys, "train is uint8 of shape (4, 20, 20); expected"),
        (one_image, "gives 1 training and 1 test images; at least 2 and 1 are needed"),
        (one_picture, "gives 0 training and 1 test images; at least 2 and 1 are needed"),
        (broken_picture, "b.png: cannot be read as a PNG or JPEG picture"),
    ],
)
def test_images_that_cannot_be_used_are_refused_before_anything_is_written(
    refused, tmp_path: Path, toy_flags: list[str], make: Callable[[Path], Path], complaint: str
):
    (tmp_path / "images").mkdir()
    given = make(tmp_path / "images")
    before = files_below(tmp_path)
    assert complaint in refused(*TRAIN, *toy_flags, "--run", tmp_path / "run", "--images", given)
    assert files_below(tmp_path) == before


def test_a_run_folder_that_exists_is_not_touched(refused, copied: Path, toy_flags: list[str]):
    before = files_below(copied)
    assert f"{copied} exists; choose another --run" in refused(*TRAIN, *toy_flags, "--run", copied)
    assert files_below(copied) == before


def test_a_folder_of_something_else_is_refused_and_not_called_a_run(refused, tmp_path: Path, toy_flags: list[str]):
    (tmp_path / "notes.txt").write_text("mine")
    told = refused(*TRAIN, *toy_flags, "--run", tmp_path)
    assert told == f"{tmp_path} exists and is no run folder, since it has no config.yaml; choose another --run"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_folder_below_a_file_is_refused(refused, tmp_path: Path, toy_flags: list[str]):
    (tmp_path / "file").write_text("")
    told = refused(*TRAIN, *toy_flags, "--run", tmp_path / "file" / "run")
    assert told == f"cannot make the run folder {tmp_path / 'file' / 'run'}: Not a directory"


def test_a_run_without_a_name_gets_one(gtmsm, tmp_path: Path, toy_flags: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert gtmsm(*TRAIN, *toy_flags, "--updates", 1, "--no-evaluate").code == 0
    assert (tmp_path / "runs" / "image-walk-small-1" / "weights.safetensors").is_file()


# ---- resuming


def test_resuming_needs_a_run(refused, toy_flags: list[str]):
    assert refused(*TRAIN, "--resume") == "--resume needs --run DIR, the run to continue"


def test_resuming_what_is_no_run_is_refused(refused, tmp_path: Path):
    told = refused(*TRAIN, "--run", tmp_path / "none", "--resume")
    assert "is not a run folder: it has no config.yaml" in told
    assert not files_below(tmp_path)


def test_weights_without_a_checkpoint_are_nothing_to_resume(refused, copied: Path):
    (copied / "checkpoint.safetensors").unlink()
    before = files_below(copied)
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu")
    assert told.startswith(f"nothing to resume: {copied} has weights but no checkpoint.safetensors")
    assert files_below(copied) == before


def test_a_run_killed_before_its_first_checkpoint_is_resumed_from_the_beginning(gtmsm, toy_run: Path, tmp_path: Path):
    for name, text in {
        "metrics.jsonl": '{"update": 3, "elbo": 1.0}\n{"upd',
        ".gtmsm-lock": "1",
        ".gtmsm-01234567": "",
    }.items():
        (tmp_path / name).write_text(text)
    shutil.copy(toy_run / "config.yaml", tmp_path)
    done = gtmsm(*TRAIN, "--run", tmp_path, "--resume", "--device", "cpu", "--no-evaluate")
    assert f"{tmp_path} has no checkpoint.safetensors yet: training begins at update 0" in done.out
    for name in ("weights.safetensors", "checkpoint.safetensors", "metrics.jsonl"):
        assert (tmp_path / name).read_bytes() == (toy_run / name).read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_killed_before_its_config_was_written_is_begun_again(gtmsm, tmp_path: Path, toy_flags: list[str]):
    (tmp_path / ".gtmsm-01234567.yaml").write_text("preset: im")
    assert gtmsm(*TRAIN, *toy_flags, "--run", tmp_path, "--no-evaluate", "--updates", 1).code == 0


def test_two_trainings_do_not_share_a_folder(refused, copied: Path, tmp_path: Path, toy_flags: list[str]):
    (tmp_path / "new").mkdir()
    for folder, words in ((copied, ["--resume", "--updates", "20", "--device", "cpu"]), (tmp_path / "new", toy_flags)):
        with locked(folder):
            before = files_below(folder)
            told = refused(*TRAIN, "--run", folder, *words)
            assert told.startswith(f"{folder} is being trained by process {os.getpid()}")
            assert files_below(folder) == before


def test_resuming_from_a_truncated_checkpoint_is_refused(refused, copied: Path):
    path = copied / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = files_below(copied)
    assert f"{path} cannot be read" in refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", "--updates", 18)
    assert files_below(copied) == before


@pytest.mark.parametrize("changed", ["--batch 8", "--seed 1", "--model.vae.width 64", "--grow 4 5", "--world.stride 2"])
def test_a_resumed_run_keeps_its_settings(refused, copied: Path, changed: str):
    before = files_below(copied)
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", *changed.split())
    assert (
        told
        == "a resumed run keeps its settings: only --updates may be given anew, and --images or --data where it has any"
    )
    assert files_below(copied) == before


def test_a_resumed_run_may_be_given_its_own_settings_again(gtmsm, copied: Path, toy_flags: list[str]):
    assert gtmsm(*TRAIN, *toy_flags, f"--run={copied}", "--resume", "--no-evaluate").code == 0


def test_a_run_that_is_prolonged_remembers_it(gtmsm, copied: Path):
    words = ("--run", copied, "--resume", "--device", "cpu", "--no-evaluate")
    assert "18 updates" in gtmsm(*TRAIN, *words, "--updates", 18).out
    assert yaml.safe_load((copied / "config.yaml").read_text())["experiment"]["training"]["updates"] == 18


def test_a_learning_rate_that_falls_over_other_updates_than_are_made_is_told(
    gtmsm, tmp_path: Path, toy_flags: list[str]
):
    for updates, told in ("16", True), ("4", False):
        flags = [*toy_flags, "--updates", "4", "--anneal-updates", updates, "--no-evaluate", "--device", "cpu"]
        out = gtmsm(*TRAIN, *flags, "--run", tmp_path / updates).out
        assert ("the learning rate falls over 16 updates (--anneal-updates), and 4 are made" in out) == told


def test_a_run_is_not_resumed_to_its_past(refused, copied: Path):
    before = files_below(copied)
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", "--updates", 3)
    assert told == f"{copied} has 16 updates behind it; give 16 or more --updates"
    assert files_below(copied) == before


def test_a_run_is_not_resumed_on_other_images(refused, copied: Path, tmp_path: Path):
    np.savez(tmp_path / "i.npz", train=images(4, 20, 20, 3), test=images(4, 20, 20, 3))
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", "--images", tmp_path / "i.npz")
    assert told.startswith(f"i.npz is not what {copied} was trained on: toy.npz with other contents; ")
    assert told.endswith(f"begin a new run with --begin-with {copied}")


def test_a_run_can_be_resumed_where_its_images_have_moved(gtmsm, copied: Path, toy_images: Path, tmp_path: Path):
    moved = shutil.copy(toy_images, tmp_path / "toy.npz")
    words = ("--run", copied, "--resume", "--device", "cpu", "--no-evaluate", "--updates", 17, "--images", moved)
    assert gtmsm(*TRAIN, *words).code == 0
