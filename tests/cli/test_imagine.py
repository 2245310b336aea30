"""`gtmsm imagine`."""

import subprocess
from pathlib import Path

import pytest
from commands import files_below, images
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image

from gtmsm.errors import InputError
from gtmsm.film import MOST_STEPS, parse_actions
from gtmsm.worlds.image_walk import ACTIONS


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
        (["--actions", "r999999999"], f'"r999999999" holds more than {MOST_STEPS} actions'),
        (["--actions", "r" + "9" * 5_000], f'…{"9" * 29}" holds more than {MOST_STEPS} actions'),
        (["--tau", "10001"], "tau is 10001; give at most 10000 steps to memorise"),
        (["--steps", "0"], "steps is 0"),
        (["--tau", "0"], "tau is 0; give at least 1 step to memorise"),
        (["--tau", "-3"], "tau is -3"),
        (["--tau", "4"], "tau is 4 but the model reads 5 neighbours"),
        (["--seed", "-1"], "seed is -1"),
        (["--out", "walk.avi"], 'cannot write a video as "walk.avi"; end its name with .mp4 or .gif'),
        (["--out", "walk"], 'cannot write a video as "walk"'),
        (["--out", "folder.mp4"], "cannot write folder.mp4: it is a folder"),
        (["--out", "file/walk.mp4"], "file is not a folder"),
        (["--places", "rooms"], "this run walks over images, and no rooms can be walked with it; leave out --places"),
        (["--picture", "nowhere.png"], "nowhere.png: no such file"),
        (["--picture", "file"], "file: cannot be read as a PNG or JPEG picture"),
        (["--picture", "folder.mp4"], "folder.mp4: a folder, a pipe or a device"),
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
