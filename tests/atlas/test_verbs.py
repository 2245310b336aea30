"""`gtmsm atlas`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from gtmsm import cli
from gtmsm.data.record import as_clip
from gtmsm.data.store import Recording, write_clip
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

SHIPPED = str(Path(__file__).parents[2] / "weights" / "obstacles-celeba")
Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Said:
    """What a verb of this atlas prints."""

    def run(verb: str, *words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["atlas", verb, str(tmp_path / "atlas.db"), *map(str, words)])
        shown = capsys.readouterr()
        assert ended.value.code == 0, shown.err
        return shown.out.strip()

    return run


@pytest.fixture
def clips(tmp_path: Path) -> tuple[Path, Path]:
    """Two walks through one picture."""
    world = ImageWalk(load_images("builtin", 32).test[7:8], ImageWalkConfig())
    world.place(torch.zeros(2, dtype=torch.long), torch.tensor([[6, 2], [2, 6]]))
    clip = as_clip(world, PoissonWalker()(world, 200, torch.Generator().manual_seed(0)))
    paths = tmp_path / "anna.npz", tmp_path / "bert.npz"
    for i, path in enumerate(paths):
        write_clip(path, Recording.of(clip[i : i + 1]))
    frame = (255 * clip.x[1, 50]).byte().permute(1, 2, 0).numpy()
    Image.fromarray(frame).save(tmp_path / "view.png")
    return paths


def test_every_verb_does_what_it_says(said: Said, clips: tuple[Path, Path], tmp_path: Path):
    for path in clips:
        told = said("add", SHIPPED, path, "--world", "gallery", "--agent", path.stem)
        assert told == f"200 entries of {path.stem} added to gallery: 200 in all"
    merged = said("merge", SHIPPED)
    assert merged.startswith("gallery: bert set out from row -4.0, column +4.0 of anna ± 0.")
    info = said("info")
    assert "gallery: 400 entries, 3 lines" in info and "  anna: 200 entries" in info and merged[9:] in info
    assert "seen at row" in said("where", SHIPPED, tmp_path / "view.png", "--world", "gallery", "--agent", "anna")
    assert "gallery: like what bert saw" in said("where", SHIPPED, tmp_path / "view.png")
    place = ("--world", "gallery", "--agent", "anna", "--at", -2, 1, "--out", tmp_path / "walk.gif")
    assert said("imagine", SHIPPED, "--actions", "r3d", *place).startswith("4 steps to row -1.0, column +4.0")
    assert (tmp_path / "walk.gif").stat().st_size > 0
    assert said("prune", SHIPPED, "--world", "gallery", "--keep", 300).startswith("400 entries before, ")
    assert said("export", tmp_path / "copy.db").endswith(f"entries copied to {tmp_path / 'copy.db'}")


def test_mistakes_are_one_line(refused: Callable[..., str], tmp_path: Path, clips: tuple[Path, Path]):
    there = tmp_path / "none.db"
    assert "no such atlas" in refused("atlas", "info", there)
    assert 'did you mean "merge"' in refused("atlas", "merg", there)
    assert "give a name" in refused("atlas", "add", there, SHIPPED, clips[0], "--world", "'; --", "--agent", "x")
    assert not there.exists() or there.stat().st_size
