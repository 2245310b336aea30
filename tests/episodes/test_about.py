"""What people see of a store."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("zstandard")
pytest.importorskip("google_crc32c")

from gtmsm import cli
from gtmsm.episodes.about import describe
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store import Store
from gtmsm.errors import InputError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two red walks to the right, a third of the steps by going left."""
    frames = np.zeros((30, 8, 8, 3), np.uint8)
    frames[..., 0] = 200
    poses = np.stack([np.arange(31), np.zeros(31)], 1).astype(np.float32)
    actions = np.arange(30) % 3 - 1
    with Store.create(tmp_path / "s", Kind((8, 8, 3), ("left", "right"), 2, 2, "Toy-v0")) as store:
        store.append(*(Episode(frames, actions, poses[1:], poses[0], place, 7) for place in ("hall", "hall")))
    return tmp_path / "s"


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(word) for word in words])
    return int(end.value.code or 0)


def test_info_counts_what_there_is(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "info", path) == 0
    said = " ".join(capsys.readouterr().out.split())
    for fact in (
        "environment Toy-v0", "episodes 2 in 1 part", "writers 0 (2 episodes)", "frames 8x8 pixels, RGB", "steps 60:",
        "actions 2: left 33.3%, right 33.3%, none 33.3%", "poses x 0 to 30, y 0 to 0", "places 1: hall (2)",
    ):  # fmt: skip
        assert fact in said


def test_an_empty_store_of_vectors_is_described(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", Kind((8, 8, 1), None, 2)) as store:
        assert "0 in 0 parts" in describe(store)
        store.append(Episode(np.zeros((3, 8, 8, 1), np.uint8), np.eye(3, 2, dtype=np.float32)))
        assert "vectors of 2: 0 0 to 1, 1 0 to 1" in describe(store) and "poses       unknown" in describe(store)


def test_a_sample_shows_frames_and_ways(path: Path, tmp_path: Path) -> None:
    assert run("data", "sample", path, "--out", tmp_path / "x.png", "--steps", "3") == 0
    with Image.open(tmp_path / "x.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    assert (pixels == (200, 0, 0)).all(-1).sum() == 2 * 3 * 72 * 72
    assert (np.abs(pixels.astype(int) - (47, 134, 209)).sum(-1) < 30).any()


def test_verify_ends_with_one_where_something_is_damaged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "verify", path) == 0
    (path / "0" / "000000" / "actions" / "c.0").unlink()
    assert run("data", "verify", path) == 1
    assert "actions/c.0 is missing; lost: episodes 0 to 1" in capsys.readouterr().out
    assert run("data", "verify", path, "--repair") == 1
    assert run("data", "verify", path) == 0
    assert "whole episodes: 0" in capsys.readouterr().out


def test_without_the_codecs_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gtmsm.episodes.store_array")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(InputError, match=r'pip install "gtmsm\[own\]"'):
        importlib.import_module("gtmsm.episodes.store_array")
