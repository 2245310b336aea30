"""`gtmsm record` and `localise`."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import TRAIN, files_below, images
from PIL import Image

from gtmsm import cli

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
    assert "no such file" in refused("localise", run, clip, tmp_path / "none.png")
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
