"""Films as they are written, and read back."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from gtmsm.errors import InputError
from gtmsm.evaluation import video


def film(steps: int = 7, height: int = 32, width: int = 48) -> np.ndarray:
    """Smooth colours that change from step to step, so that no codec may merge frames."""
    t, y, x = np.meshgrid(np.arange(steps), np.arange(height), np.arange(width), indexing="ij")
    return np.stack([30 * t, 5 * y, 4 * x], -1).astype(np.uint8)


def clips(n: int, steps: int = 3, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((n, steps, channels, 8, 8))


def decode(path: Path) -> tuple[np.ndarray, float]:
    """The frames of a film and its pace, by ffmpeg."""
    command = [
        get_ffmpeg_exe(),
        "-i",
        str(path),
        "-fps_mode",
        "passthrough",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, check=True)
    about = re.search(r"Video: .* (\d+)x(\d+).* ([\d.]+) fps", done.stderr.decode())
    assert about
    width, height, fps = (float(part) for part in about.groups())
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, int(height), int(width), 3), fps


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".MP4"])
def test_a_film_comes_back_with_its_frames_and_size(tmp_path: Path, suffix: str):
    frames = film()
    video.write_video(tmp_path / f"walk{suffix}", frames, fps=10)
    back, _ = decode(tmp_path / f"walk{suffix}")
    assert back.shape == frames.shape
    assert np.abs(back.astype(float) - frames).mean() < 8


def test_an_odd_size_is_rounded_up_by_repeating_the_edge(tmp_path: Path):
    video.write_video(tmp_path / "walk.mp4", film(height=31, width=47), fps=10)
    assert decode(tmp_path / "walk.mp4")[0].shape == (7, 32, 48, 3)


def test_a_film_keeps_its_pace(tmp_path: Path):
    video.write_video(tmp_path / "walk.mp4", film(steps=20), fps=5)
    assert decode(tmp_path / "walk.mp4")[1] == pytest.approx(5)


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path):
    with pytest.raises(InputError, match=r'"walk.avi".*\.mp4 or \.gif'):
        video.write_video(tmp_path / "walk.avi", film(), fps=10)


def test_a_film_without_frames_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="0 frames"):
        video.write_video(tmp_path / "walk.mp4", film(steps=0), fps=10)


def test_what_ffmpeg_refuses_is_an_error_in_its_words(tmp_path: Path):
    with pytest.raises(OSError, match="ffmpeg could not write"):
        video._write_mp4(tmp_path / "nowhere" / "walk.mp4", film(), 10)


def test_a_machine_without_ffmpeg_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def nowhere() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr("gtmsm.evaluation.video.get_ffmpeg_exe", nowhere)
    with pytest.raises(InputError, match="set IMAGEIO_FFMPEG_EXE"):
        video.write_video(tmp_path / "film.mp4", np.zeros((2, 8, 8, 3), np.uint8), 8)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_where_there_is_none(tmp_path: Path):
    video.write_video(tmp_path / "new" / "walk.gif", film(), fps=10)
    assert (tmp_path / "new" / "walk.gif").exists()


def test_an_interrupted_film_leaves_the_old_one_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "walk.mp4"
    path.write_bytes(b"old")

    def interrupted(draft: Path, *_: object) -> None:
        draft.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "_write_mp4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        video.write_video(path, film(), fps=10)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["walk.mp4"]


def test_every_pixel_becomes_a_square_of_its_colour():
    one = clips(1)[0]
    sheet = video.side_by_side([one], ["t"], scale=10)
    picture = sheet[:, -80:, :80]
    expected = (one * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(picture[:, 5::10, 5::10], expected)
    np.testing.assert_array_equal(picture[:, :10, :10], np.broadcast_to(expected[:, :1, :1], (3, 10, 10, 3)))


def test_each_column_has_a_label_of_its_own_above_it():
    one = clips(1)[0] * 0
    sheet = video.side_by_side([one, one], ["truth", ""], scale=20)
    above, half = sheet[0, : -8 * 20], sheet.shape[2] // 2
    assert above[:, :half].max() > 200
    assert above[:, half:].max() == video.PAPER


def test_a_label_wider_than_its_film_gets_the_room_it_needs():
    narrow = video.side_by_side([clips(1)[0]], ["t"], scale=2)
    wide = video.side_by_side([clips(1)[0]], ["a label that is long"], scale=2)
    assert wide.shape[2] > narrow.shape[2]


def test_captions_change_with_the_step():
    still = np.zeros((2, 3, 8, 8))
    sheet = video.side_by_side([still], [""], scale=20, captions=["step 1", "step 2"])
    assert (sheet[0] != sheet[1]).any()


def test_grey_films_are_shown_grey():
    sheet = video.side_by_side([clips(1, channels=1)[0]], [""], scale=2)
    assert (sheet[..., 0] == sheet[..., 2]).all()


def test_films_of_different_length_do_not_stand_side_by_side():
    with pytest.raises(InputError, match=r"lengths \[3, 4\]"):
        video.side_by_side([clips(1, steps=3)[0], clips(1, steps=4)[0]], ["a", "b"], scale=2)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_comparison_shows_every_clip_at_every_step(n: int):
    truth = clips(n)
    sheet = video.comparison(truth, truth, np.ones((n, 3), bool), tau=256, scale=16)
    one = video.comparison(truth[:1], truth[:1], np.ones((1, 3), bool), tau=256, scale=16)
    down, across = {1: (1, 1), 2: (1, 2), 3: (2, 2)}[n]
    assert len(sheet) == 3
    assert sheet.shape[2] == across * one.shape[2]
    assert sheet.shape[1] == down * one.shape[1]


def test_a_perfect_prediction_has_a_black_error_and_a_wrong_one_a_bright_one():
    truth = np.full((1, 1, 3, 8, 8), 0.9)
    seen = np.ones((1, 1), bool)
    right, wrong = (video.comparison(truth, guess, seen, 8, 16)[0] for guess in (truth, truth - 0.6))
    middle = (right.shape[0] // 2, right.shape[1] * 5 // 6)
    assert right[middle].tolist() == [0, 0, 0]
    assert wrong[middle].tolist() == [255, 255, 255]


def test_a_comparison_says_whether_the_place_was_seen():
    truth = clips(1, steps=1)
    known, unknown = (video.comparison(truth, truth, np.full((1, 1), seen), 8, 16) for seen in (True, False))
    assert (known != unknown).any()


def test_a_film_of_bytes_is_shown_as_it_is_beside_one_that_is_enlarged():
    floor = np.random.default_rng(1).integers(0, 255, (3, 64, 64, 3), dtype=np.uint8)
    sheet = video.side_by_side([floor, clips(1)[0]], ["", ""], scale=8)
    np.testing.assert_array_equal(sheet[:, -64:, :64], floor)


def test_with_maps_every_clip_has_a_row_that_begins_with_its_map():
    truth = clips(2)
    maps = [np.full((3, 128, 128, 3), level, np.uint8) for level in (100, 200)]
    sheet = video.comparison(truth, truth, np.ones((2, 3), bool), 8, 16, maps)
    alone = video.comparison(truth[:1], truth[:1], np.ones((1, 3), bool), 8, 16, maps[:1])
    assert sheet.shape[2] == alone.shape[2]
    assert sheet.shape[1] == 2 * alone.shape[1]
    quarter = sheet.shape[1] // 4
    assert sheet[0, quarter, 80].tolist() == [100] * 3
    assert sheet[0, 3 * quarter, 80].tolist() == [200] * 3
