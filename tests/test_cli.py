"""The command line: what it makes, and how it refuses."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image

from gtmsm import cli
from gtmsm.errors import InputError
from gtmsm.film import MOST_STEPS, parse_actions
from gtmsm.presets import PRESETS
from gtmsm.worlds.image_walk import ACTIONS

TRAIN = ("train", "image-walk-small")


def files_below(folder: Path) -> dict[Path, bytes]:
    """Every file there is, to see whether anything was written."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture
def copied(toy_run: Path, tmp_path: Path) -> Path:
    """A run folder to do harm to."""
    return Path(shutil.copytree(toy_run, tmp_path / "run"))


# ---- help


def test_help_lists_the_verbs(gtmsm):
    code, out, _ = gtmsm("--help")
    assert code == 0
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in cli.VERBS)


def test_no_words_at_all_are_a_call_for_help(gtmsm):
    assert gtmsm() == gtmsm("--help")


def test_the_version_is_told(gtmsm):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", gtmsm("--version").out)


def test_train_without_a_preset_lists_them(gtmsm):
    assert all(preset in gtmsm("train").out for preset in PRESETS)


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        ("demo", cli.DemoFlags),
        ("evaluate", cli.EvaluateFlags),
        ("imagine", cli.ImagineFlags),
        ("record", cli.RecordFlags),
        ("localise", cli.LocaliseFlags),
        ("bench", cli.BenchFlags),
    ],
)
def test_the_help_of_a_verb_lists_each_flag_with_its_default(gtmsm, verb: str, kind: type):
    code, out, _ = gtmsm(verb, "--help")
    assert code == 0
    text = " ".join(out.replace("│", " ").split())
    positional = {
        "demo": {"name"}, "record": {"run", "out"}, "localise": {"run", "clip", "picture"}, "bench": {"names"},
    }.get(verb, {"run"})  # fmt: skip
    for field in (field for field in fields(kind) if field.name not in positional):
        assert re.search(rf"--{field.name}\b.*?\(default: |--{field.name}\b.*?default:", text), field.name


def test_the_help_of_localise_names_what_to_give(gtmsm):
    assert "usage: gtmsm localise [-h] RUN CLIP PICTURE" in gtmsm("localise", "--help").out.replace("[OPTIONS] ", "")
    assert "RUN OUT.npz" in gtmsm("record", "--help").out


def test_the_help_of_compare_says_what_to_give(gtmsm):
    assert "Run folders" in gtmsm("compare", "--help").out


def test_the_help_of_train_lists_each_flag_with_its_default(gtmsm):
    code, out, _ = gtmsm(*TRAIN, "--help")
    text = " ".join(out.replace("│", " ").split())
    assert code == 0
    for flag, default in [
        ("--images", "builtin"), ("--seed", "0"), ("--updates", "2500"), ("--batch", "32"), ("--tau", "256"),
        ("--grow", "800 600 400"), ("--prospect.candidates", "256"), ("--world.size", "32"),
        ("--model.recall.neighbours", "5"), ("--evaluation.clips", "100"), ("--device", "auto"), ("--devices", "1"),
        ("--walker.mean-repeats", "3.0"), ("--model.vae.coder", "dense"),
    ]:  # fmt: skip
        assert re.search(rf"{flag} [^(]*(\([^)]*\)[^(]*)*?\(default: {default}\)", text), flag


# ---- words that mean nothing


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["trian"], 'unknown verb "trian"; did you mean "train"?'),
        (["xyz"], 'unknown verb "xyz"; choose from demo, train, evaluate, imagine, record, localise, compare, bench'),
        (["train", "image-walk-smal"], 'unknown preset "image-walk-smal"; did you mean "image-walk-small"?'),
        (
            ["train", "rooms"],
            "rooms trains nothing; it tests a walk in several rooms: gtmsm evaluate RUN --places rooms",
        ),
        (["train", "lab"], 'unknown preset "lab"; choose from image-walk, image-walk-small'),
        ([*TRAIN, "--batchh", "3"], 'unknown flag "--batchh"; did you mean --batch?'),
        (
            [*TRAIN, "--neighbors", "3"],
            'unknown flag "--neighbors"; did you mean --prospect.neighbours or --model.recall.neighbours?',
        ),
        ([*TRAIN, "--no-tau"], 'unknown flag "--no-tau"; did you mean --tau?'),
        (["demo", "--sede", "3"], 'unknown flag "--sede"; did you mean --seed?'),
        (["evaluate", "x", "--zzz"], 'unknown flag "--zzz"; gtmsm evaluate --help lists them'),
        (["evaluate"], "Missing from gtmsm evaluate"),
        (["imagine"], "Missing from gtmsm imagine"),
        (["record", "x"], "Missing from gtmsm record"),
        (["localise", "x", "y"], "Missing from gtmsm localise"),
        (["localize"], 'unknown verb "localize"; did you mean "localise"?'),
        (["compare"], "compare needs at least one run folder"),
        (["evaluate", "a", "b"], "Unrecognized options: b"),
        ([*TRAIN, "--learning-rate", "fast"], "--learning-rate: could not convert string to float: 'fast'"),
        ([*TRAIN, "--updates", "1.5"], "--updates: invalid literal for int"),
        ([*TRAIN, "--model.vae.coder", "cube"], "'cube' for argument '--model.vae.coder'. Expected one of"),
        ([*TRAIN, "--grow", "a"], "--grow"),
        ([*TRAIN, "--updates"], "--updates"),
        (["evaluate", "x", "--clips", "few"], "Error parsing --clips: no type matching INT"),
        (["evaluate", "x", "--device", "gpu"], "'gpu' for argument '--device'"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_a_suggestion(refused, words: list[str], complaint: str):
    assert complaint in refused(*words)


def test_what_a_part_refuses_is_told_in_its_own_words_alone(refused):
    told = refused("train", "rotate", "--model.recall.delta", "0")
    assert told == "delta is 0.0; an exact revisit would divide by it: it must be above 0"


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
        ("--seed -1", "seed is -1; give a number from 0"),
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


def images(n: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, *shape)).astype(dtype)


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


def test_resuming_without_a_checkpoint_is_refused(refused, copied: Path):
    (copied / "checkpoint.safetensors").unlink()
    before = files_below(copied)
    assert "nothing to resume" in refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu")
    assert files_below(copied) == before


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
    assert told == "a resumed run keeps its settings: only --updates may be given anew, and --images where it has any"
    assert files_below(copied) == before


def test_a_resumed_run_may_be_given_its_own_settings_again(gtmsm, copied: Path, toy_flags: list[str]):
    assert gtmsm(*TRAIN, *toy_flags, f"--run={copied}", "--resume", "--no-evaluate").code == 0


def test_a_run_that_is_prolonged_remembers_it(gtmsm, copied: Path):
    words = ("--run", copied, "--resume", "--device", "cpu", "--no-evaluate")
    assert "18 updates" in gtmsm(*TRAIN, *words, "--updates", 18).out
    assert yaml.safe_load((copied / "config.yaml").read_text())["experiment"]["training"]["updates"] == 18


def test_a_run_is_not_resumed_to_its_past(refused, copied: Path):
    before = files_below(copied)
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", "--updates", 3)
    assert told == f"{copied} has 16 updates behind it; give 16 or more --updates"
    assert files_below(copied) == before


def test_a_run_is_not_resumed_on_other_images(refused, copied: Path, tmp_path: Path):
    np.savez(tmp_path / "i.npz", train=images(4, 20, 20, 3), test=images(4, 20, 20, 3))
    told = refused(*TRAIN, "--run", copied, "--resume", "--device", "cpu", "--images", tmp_path / "i.npz")
    assert told == f"i.npz is not what {copied} was trained on: toy.npz with other contents"


def test_a_run_can_be_resumed_where_its_images_have_moved(gtmsm, copied: Path, toy_images: Path, tmp_path: Path):
    moved = shutil.copy(toy_images, tmp_path / "toy.npz")
    words = ("--run", copied, "--resume", "--device", "cpu", "--no-evaluate", "--updates", 17, "--images", moved)
    assert gtmsm(*TRAIN, *words).code == 0


# ---- evaluate


def test_evaluate_writes_where_it_is_told(gtmsm, toy_run: Path, tmp_path: Path):
    code, out, _ = gtmsm("evaluate", toy_run, "--clips", 2, "--horizon", 5, "--out", tmp_path / "a" / "b")
    assert code == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"scores.json", "report.html"}
    protocol = json.loads((tmp_path / "a" / "b" / "scores.json").read_text())["protocol"]
    assert (protocol["clips"], protocol["horizon"], protocol["tau"]) == (2, 5, 16)
    assert f"report: {tmp_path / 'a' / 'b' / 'report.html'}" in out


def test_evaluate_shows_the_model_and_its_controls(gtmsm, toy_run: Path, tmp_path: Path):
    out = gtmsm("evaluate", toy_run, "--clips", 2, "--horizon", 5, "--out", tmp_path).out
    assert all(label in out for label in ("imagined", "VAE ceiling", "memory at true poses", "random retrieval"))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--tau 0", "tau is 0; give at least 1 step to memorise"),
        ("--tau 4", "the model reads 5 neighbours but tau is 4; memorise at least 5 steps"),
        ("--horizon 0", "horizon is 0"),
        ("--clips -1", "clips is -1"),
        ("--seed -1", "seed is -1"),
        ("--images /no/such", 'images "/no/such": no such file or folder'),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_written(
    refused, toy_run: Path, tmp_path: Path, flags: str, complaint: str
):
    assert complaint in refused("evaluate", toy_run, *flags.split(), "--out", tmp_path / "out")
    assert not files_below(tmp_path)


def test_evaluate_refuses_what_is_no_run(refused, tmp_path: Path):
    assert f"{tmp_path} is not a run folder" in refused("evaluate", tmp_path)
    assert "is not a run folder" in refused("evaluate", tmp_path / "none")


@pytest.mark.parametrize("below", ["", "below"])
def test_evaluate_does_not_write_into_a_file(refused, toy_run: Path, tmp_path: Path, below: str):
    (tmp_path / "file").write_text("mine")
    assert "file is not a folder" in refused("evaluate", toy_run, "--out", tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "mine"


def test_images_that_vanished_since_training_are_asked_for(refused, copied: Path):
    config = copied / "config.yaml"
    config.write_text(re.sub("images: /.*toy.npz", "images: /gone/toy.npz", config.read_text()))
    before = files_below(copied)
    for verb in ("evaluate", "imagine"):
        assert 'not at "/gone/toy.npz"; give it, or other images, with --images' in refused(verb, copied)
    assert files_below(copied) == before


# ---- imagine


def digests(film: Path) -> list[str]:
    """A digest of every frame that a player would show."""
    command = [get_ffmpeg_exe(), "-v", "error", "-i", film, "-fps_mode", "passthrough", "-f", "framemd5", "-"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(",")[-1] for line in told.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name", ["walk.mp4", "walk.gif"])
def test_imagine_films_every_step(gtmsm, toy_run: Path, tmp_path: Path, name: str):
    out = tmp_path / "new" / name
    code, told, _ = gtmsm("imagine", toy_run, "--actions", "r3 u2 l", "--out", out, "--seed", 3)
    assert code == 0
    assert told.startswith("6 steps imagined after 16 memorised; ")
    assert f"video: {out}" in told
    frames = digests(out)
    assert len(frames) == len(set(frames)) == 6
    assert [path.name for path in out.parent.iterdir()] == [name]


def test_imagine_walks_on_by_itself_where_it_is_not_told_how(gtmsm, toy_run: Path, tmp_path: Path):
    words = ("imagine", toy_run, "--steps", 4, "--tau", 9, "--sample", "--out", tmp_path / "walk.gif")
    assert gtmsm(*words).out.startswith("4 steps imagined after 9 memorised")


def test_imagine_walks_over_any_picture(gtmsm, toy_run: Path, tmp_path: Path):
    Image.fromarray(images(30, 40, 3)).save(tmp_path / "mine.png")
    words = ("imagine", toy_run, "--picture", tmp_path / "mine.png", "--steps", 2, "--out", tmp_path / "walk.gif")
    assert gtmsm(*words).code == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--actions", "r3 x2"], 'unknown action "x" in "r3 x2"; use u (up), d (down), l (left), r (right), s (stay)'),
        (["--actions", "10 r"], 'unknown action "10"'),
        (["--actions", "r0"], '"r0" holds no actions'),
        (["--actions", "r99999"], f'"r99999" holds more than {MOST_STEPS} actions'),
        (["--steps", "0"], "steps is 0"),
        (["--tau", "0"], "tau is 0; give at least 1 step to memorise"),
        (["--tau", "-3"], "tau is -3"),
        (["--tau", "4"], "tau is 4 but the model reads 5 neighbours"),
        (["--seed", "-1"], "seed is -1"),
        (["--out", "walk.avi"], 'cannot write a video as "walk.avi"; end its name with .mp4 or .gif'),
        (["--out", "walk"], 'cannot write a video as "walk"'),
        (["--out", "folder.mp4"], "cannot write folder.mp4: it is a folder"),
        (["--out", "file/walk.mp4"], "file is not a folder"),
        (["--picture", "nowhere.png"], "nowhere.png: no such picture"),
        (["--picture", "file"], "file: cannot be read as a PNG or JPEG picture"),
        (["--picture", "folder.mp4"], "folder.mp4: cannot be read as a PNG or JPEG picture"),
    ],
)
def test_what_cannot_be_filmed_is_refused_before_anything_is_written(
    refused, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], complaint: str
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder.mp4").mkdir()
    before = files_below(tmp_path)
    assert complaint in refused("imagine", toy_run, *flags)
    assert files_below(tmp_path) == before


def test_imagine_refuses_what_is_no_run(refused, tmp_path: Path):
    assert "is not a run folder" in refused("imagine", tmp_path)


def test_imagine_refuses_weights_of_another_model(refused, copied: Path, tmp_path: Path):
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace("width: 32", "width: 64"))
    assert "vae.width is 32 there and 64 in config.yaml" in refused("imagine", copied, "--out", tmp_path / "a.gif")
    assert "vae.width is 32 there and 64 in config.yaml" in refused("evaluate", copied, "--out", tmp_path / "out")


def test_actions_are_initials_with_numbers():
    assert parse_actions("r3 u,s2\tD l 2", ACTIONS) == [3, 3, 3, 0, 4, 4, 1, 2, 2]


@pytest.mark.parametrize("text", ["up", "r-3", "3", "?"])
def test_actions_that_are_no_initials_are_refused(text: str):
    with pytest.raises(InputError, match="unknown action"):
        parse_actions(text, ACTIONS)


# ---- record and localise

LANDMARKS = "--model.landmark.form bayes --model.landmark.matches 6 --model.landmark.width 16 --model.motion.noise 0.05"


@pytest.fixture(scope="session")
def seeing_run(tmp_path_factory: pytest.TempPathFactory, toy_flags: list[str]) -> Path:
    """A run whose model has landmarks."""
    folder = tmp_path_factory.mktemp("runs") / "seeing"
    flags = [*toy_flags, *LANDMARKS.split(), "--updates", "2", "--no-evaluate", "--run", str(folder)]
    with pytest.raises(SystemExit) as ended:
        cli.main([*TRAIN, *flags])
    assert ended.value.code == 0
    return folder


@pytest.fixture
def asked(gtmsm, seeing_run: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run, a clip to memorise, and a picture of the same place."""
    clip = tmp_path / "clip.npz"
    assert gtmsm("record", seeing_run, clip, "--steps", 12, "--pictures", tmp_path / "pictures").code == 0
    return seeing_run, clip, next((tmp_path / "pictures").glob("seen-*.png"))


def test_record_says_what_it_wrote(gtmsm, toy_run: Path, tmp_path: Path):
    words = ("record", toy_run, tmp_path / "clip.npz", "--steps", 9, "--seed", 4, "--pictures", tmp_path / "pictures")
    code, out, _ = gtmsm(*words)
    assert code == 0
    assert out.startswith(f"9 steps of 8x8 pixels, with the truth: {tmp_path / 'clip.npz'}\n")
    assert all(str(path) in out for path in (tmp_path / "pictures").iterdir())
    with np.load(tmp_path / "clip.npz", allow_pickle=False) as clip:
        assert clip["frames"].shape == (9, 8, 8, 3)


def test_record_walks_as_long_as_the_run_memorises(gtmsm, toy_run: Path, tmp_path: Path):
    assert gtmsm("record", toy_run, tmp_path / "clip.npz").out.startswith("16 steps")


def test_localise_says_and_draws_where_a_picture_was_seen(gtmsm, asked, tmp_path: Path):
    code, out, _ = gtmsm("localise", *asked, "--out", tmp_path / "where.png")
    assert code == 0
    assert re.match(r"(seen at row .*, column |never seen \(unknown )", out)
    assert out.endswith(f"figure: {tmp_path / 'where.png'}\n")
    assert (tmp_path / "where.png").read_bytes().startswith(b"\x89PNG")


def test_localise_takes_a_jpeg_and_a_short_clip(gtmsm, asked, tmp_path: Path):
    run, clip, picture = asked
    Image.open(picture).save(tmp_path / "mine.jpg")
    for given in (tmp_path / "mine.jpg", clip):
        assert gtmsm("localise", run, clip, given, "--out", tmp_path / "where.png").code == 0


def test_a_picture_of_another_size_is_not_resized(refused, asked, tmp_path: Path):
    run, clip, _ = asked
    Image.new("RGB", (64, 48)).save(tmp_path / "large.png")
    told = refused("localise", run, clip, tmp_path / "large.png")
    assert told == f"{tmp_path / 'large.png'}: 64x48 pixels; this model sees 8x8: cut or scale to that size"


def test_what_is_no_picture_is_refused(refused, asked, tmp_path: Path):
    run, clip, _ = asked
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert "no such picture" in refused("localise", run, clip, tmp_path / "none.png")
    assert "cannot be read as a PNG or JPEG picture" in refused("localise", run, clip, tmp_path / "broken.png")


def test_a_clip_that_is_not_there_is_refused(refused, asked, tmp_path: Path):
    run, _, picture = asked
    told = refused("localise", run, tmp_path / "none.npz", picture)
    assert told.startswith(f"{tmp_path / 'none.npz'}: no such clip; make one with `gtmsm record`")


def test_a_clip_of_rooms_is_not_looked_up_in_images(refused, asked, tmp_path: Path):
    run, _, picture = asked
    np.savez(tmp_path / "c.npz", frames=images(9, 8, 8, 3), actions=np.zeros(9, int), kind="rooms")
    assert "a clip of kind rooms; this run is of kind image-walk" in refused(
        "localise", run, tmp_path / "c.npz", picture
    )
    np.savez(tmp_path / "c.npz", frames=images(9, 8, 8, 3), actions=np.zeros(9, int), poses=np.zeros((9, 3)))
    assert "poses have 3 numbers; this model's have 2" in refused("localise", run, tmp_path / "c.npz", picture)


def test_a_memory_smaller_than_what_is_looked_up_is_refused(gtmsm, refused, asked, tmp_path: Path):
    run, _, picture = asked
    assert gtmsm("record", run, tmp_path / "short.npz", "--steps", 5).code == 0
    told = refused("localise", run, tmp_path / "short.npz", picture, "--out", tmp_path / "where.png")
    assert told == "this model looks up 6 entries (K') but memory holds 5; memorise at least 6 steps"
    assert not (tmp_path / "where.png").exists()


def test_a_clip_without_steps_is_refused(refused, asked, tmp_path: Path):
    run, clip, picture = asked
    np.savez(tmp_path / "empty.npz", frames=images(0, 8, 8, 3), actions=np.zeros(0, int))
    for words in ((tmp_path / "empty.npz", picture), (clip, tmp_path / "empty.npz")):
        assert refused("localise", run, *words) == f"{tmp_path / 'empty.npz'}: has 0 steps; a clip needs at least 1"


def test_a_model_without_landmarks_says_how_to_train_one(refused, toy_run: Path, asked):
    told = refused("localise", toy_run, *asked[1:])
    assert told == "to localise takes landmarks, and this model has none; train one with --model.landmark.form"


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("where.svg", 'cannot write a figure as "where.svg"; end its name with .png'),
        ("clip.npz/w.png", "is not a folder"),
    ],
)
def test_a_figure_that_cannot_be_written_is_refused(refused, asked, tmp_path: Path, out: str, complaint: str):
    before = files_below(tmp_path)
    assert complaint in refused("localise", *asked, "--out", tmp_path / out)
    assert files_below(tmp_path) == before


# ---- compare


def test_compare_sets_runs_side_by_side(gtmsm, toy_run: Path, copied: Path):
    scores = json.loads((copied / "scores.json").read_text())
    (copied / "scores.json").write_text(json.dumps(scores | {"converged": True, "pose_r2": 0.9987}))
    code, out, _ = gtmsm("compare", toy_run, copied)
    assert code == 0
    assert "1 of 2 converged" in out
    assert f"{scores['pose_r2']:.4f}" in out
    assert "0.9987" in out


def test_compare_leaves_out_what_has_no_scores_and_says_so(gtmsm, refused, toy_run: Path, tmp_path: Path):
    code, out, _ = gtmsm("compare", toy_run, tmp_path, tmp_path / "nothing")
    assert code == 0
    told = " ".join(out.split())
    assert f"left out: {tmp_path} has no scores.json" in told
    assert f"left out: {tmp_path / 'nothing'} is no folder" in told
    assert f"{tmp_path} has no scores.json" in refused("compare", tmp_path)


def test_compare_refuses_damaged_scores(refused, copied: Path):
    (copied / "scores.json").write_text('{"psnr_poo')
    assert "is not valid JSON; make it anew with" in refused("compare", copied)


# ---- rooms

ROOMS_FLAGS = (
    "--world.textures procedural --world.objects 0 --world.train-places 3 --world.test-places 2 --world.antialias 1 "
    "--pool.clips 4 --pool.steps 60 --model.vae.width 16 --model.vae.code-size 8 --model.recall.width 16 --batch 2 "
    "--horizon 4 --warm-up 2 --warm-up-tau 4 --updates 4 --prospect.angles 16 --prospect.clips 2 --prospect.tau 33 "
    "--prospect.horizon 20 --log-every 2 --watch-every 4 --save-every 2 --evaluation.horizon 12 --evaluation.clips 2 "
    "--device cpu"
)


@pytest.mark.slow
def test_an_agent_that_turns_is_trained_resumed_scored_and_reported(gtmsm, refused, tmp_path: Path):
    run, train = tmp_path / "run", ("train", "rotate")
    code, out, err = gtmsm(*train, *ROOMS_FLAGS.split(), "--run", run, "--no-evaluate")
    assert (code, err) == (0, "")
    assert "training rotate on 3 places (room with procedural textures; 2 held out)" in out
    resumed = ("--run", run, "--resume", "--device", "cpu")
    assert "only --updates may be given anew" in refused(*train, *resumed, "--pool.clips", 5)
    code, out, _ = gtmsm(*train, *resumed, "--updates", 6)
    assert code == 0
    assert "6 updates behind it" in out
    assert "Heading" in out or "heading" in out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "prospect" in line] == [2]
    scores = json.loads((run / "scores.json").read_text())
    assert scores["protocol"]["trained_on"].startswith("3 places of room with procedural textures, textures' sha256 ")
    assert len(scores["heading_error_by_step"]) == 33 + 12
    assert (run / "report.html").read_text().startswith("<!doctype html>")

    words = ("evaluate", run, "--device", "cpu", "--clips", 1, "--out", tmp_path / "rooms")
    assert gtmsm(*words, "--places", "rooms", "--horizon", 8).code == 0
    elsewhere = json.loads((tmp_path / "rooms" / "scores.json").read_text())
    assert "rooms with procedural textures" in elsewhere["protocol"]["scored_on"]
    assert "psnr_reentered_rooms" in elsewhere
    assert gtmsm("compare", run, tmp_path / "rooms").code == 0


@pytest.mark.slow
def test_a_run_of_rooms_in_two_goes_equals_a_run_at_once(gtmsm, tmp_path: Path):
    train, quiet = ("train", "rotate"), "--no-evaluate"
    assert gtmsm(*train, *ROOMS_FLAGS.split(), "--run", tmp_path / "once", "--updates", 6, quiet).code == 0
    assert gtmsm(*train, *ROOMS_FLAGS.split(), "--run", tmp_path / "two", "--updates", 3, quiet).code == 0
    again = ("--run", tmp_path / "two", "--resume", "--updates", 6, "--device", "cpu", quiet)
    assert gtmsm(*train, *again).code == 0
    once, two = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("once", "two"))
    assert once == two


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--pool.steps 36", "pool.steps is 36, shorter than tau + horizon = 37"),
        ("--pool.steps 50", "pool.steps is 50, shorter than the 53 steps that prospecting looks at"),
        ("--evaluation.metric-poses", "only the displacement loss teaches poses in the world's units"),
        ("--displacement 5", "only the displacement loss teaches poses in the world's units"),
        ("--world.field-of-view 90", "model.recall.field_of_view is 80.0 but the world's is 90.0"),
        ("--model.motion.kind walled", "kind is walled; an agent in rooms has a heading"),
        ("--model.recall.prior rays --model.recall.width 64", "prior rays needs spatial codes but coder is conv"),
        ("--model.vae.coder spatial", "code_size is 8; a spatial code of 8x8 patches needs a multiple of 64"),
        ("--foresight -1", "foresight is -1.0; give 0 or more"),
        ("--warm-up-tau 40", "warm_up_tau is 40, longer than tau = 33"),
        ("--images builtin", 'unknown flag "--images"'),
    ],
)
def test_settings_of_rooms_that_make_no_sense_are_refused_before_anything_is_written(
    refused, tmp_path: Path, flags: str, complaint: str
):
    assert complaint in refused("train", "rotate", *ROOMS_FLAGS.split(), "--run", tmp_path / "run", *flags.split())
    assert not files_below(tmp_path)


def test_a_model_of_images_is_not_scored_in_rooms(refused, toy_run: Path, tmp_path: Path):
    told = refused("evaluate", toy_run, "--places", "rooms", "--out", tmp_path / "out")
    assert told == "this run walks over images, and no rooms can be walked with it; leave out --places"
    assert not files_below(tmp_path)


# ---- other ends


def test_a_file_that_cannot_be_read_is_one_line(refused, monkeypatch: pytest.MonkeyPatch):
    def fail(words: list[str]) -> int:
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr(cli, "_compare", fail)
    assert refused("compare") == "[Errno 5] Input/output error: 'disk'"


def test_an_interrupted_verb_ends_with_130(gtmsm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "_compare", lambda words: signal.raise_signal(signal.SIGINT))
    assert gtmsm("compare") == (130, "", "gtmsm: interrupted\n")


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "_compare", lambda words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["compare"])


def test_in_a_real_process_too_a_mistake_is_one_line_and_a_closed_pipe_is_none():
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m gtmsm.cli"
    done = subprocess.run(
        f"{command} --help | true; {command} trian", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == 'gtmsm: unknown verb "trian"; did you mean "train"?\n'
