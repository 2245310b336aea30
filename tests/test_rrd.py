"""`gtmsm export rrd`: what is in the file, read back by rerun itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gtmsm import Explorer, WorldModel

chunk = pytest.importorskip("rerun.chunk", reason="rerun-sdk is not installed")


def read(file: Path, name: str, column: str) -> list:
    """What was logged under a name, in its order."""
    rows = []
    for part in chunk.RrdReader(file).stream().to_chunks():
        batch = part.to_record_batch()
        if part.entity_path == name and column in batch.schema.names:
            timeline = next((time for time in ("step", "view") if time in batch.schema.names), None)
            when = [0] * len(batch) if timeline is None else batch.column(timeline).to_pylist()
            rows += zip(when, batch.column(column).to_pylist(), strict=True)
    return [value for _, value in sorted(rows, key=lambda row: row[0])]


def test_a_walk_is_written_with_frames_poses_and_map(gtmsm, toy_run: Path, tmp_path: Path):
    out = tmp_path / "new" / "walk.rrd"
    code, told, _ = gtmsm("export", "rrd", toy_run, "--tau", 12, "--steps", 5, "--seed", 2, "--out", out)
    assert code == 0
    assert told.startswith("12 steps memorised, 5 imagined")
    assert [path.name for path in out.parent.iterdir()] == ["walk.rrd"]
    real, imagined = (read(out, name, "Image:buffer") for name in ("/real", "/imagined"))
    true, inferred, psnr = (read(out, name, "Scalars:scalars") for name in ("/pose/true", "/pose/inferred", "/psnr"))
    assert len(real) == len(true) == len(inferred) == 17
    assert len(imagined) == len(psnr) == 17 - WorldModel.load(toy_run).settings.recall.neighbours
    one, other = (np.array(frames[-1][0], np.uint8).astype(float) / 255 for frames in (real, imagined))
    assert -10 * np.log10(np.square(one - other).mean()) == pytest.approx(psnr[-1][0], abs=0.2)
    assert np.abs(np.diff(np.array(true), axis=0)).sum(1).max() <= 1  # a step is one cell at most
    (path,), (places,) = (
        read(out, "/map/path", "LineStrips2D:strips"),
        read(out, "/map/memorised", "Points2D:positions"),
    )
    np.testing.assert_allclose(path[0], np.array(inferred), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(places, np.array(inferred)[:12], rtol=1e-5, atol=1e-5)


def test_an_explorers_walk_is_written_as_it_was_saved(gtmsm, toy_run: Path, tmp_path: Path):
    model = WorldModel.load(toy_run)
    explorer, saved, out = Explorer(model), tmp_path / "walk.safetensors", tmp_path / "walk.rrd"
    frames = torch.rand(9, *model.frame_shape, generator=torch.Generator().manual_seed(0))
    for i, frame in enumerate(frames):
        explorer.step(frame, i % model.action_size)
    explorer.save(saved)
    assert gtmsm("export", "rrd", toy_run, "--explorer", saved, "--out", out).out.startswith(
        "a walk of 9 steps, 9 views"
    )
    np.testing.assert_allclose(read(out, "/pose/inferred", "Scalars:scalars"), explorer.path[0], rtol=1e-5, atol=1e-5)
    remembered = np.array([row[0] for row in read(out, "/remembered", "Image:buffer")], np.uint8)
    expected = model.vae.decode(explorer.memory.code.mean)[0].permute(0, 2, 3, 1).flatten(1)
    np.testing.assert_allclose(remembered / 255, expected, atol=0.003)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "walk.mp4"), "give a name that ends in .rrd"),
        (("--steps", -1), "steps is -1"),
        (("--tau", 0), "tau is 0"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(gtmsm, toy_run: Path, words, said):
    code, _, told = gtmsm("export", "rrd", toy_run, *words)
    assert code == 2
    assert said in told
    assert told.count("\n") == 1
