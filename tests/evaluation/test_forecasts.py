"""Scores of anything that forecasts frames."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.evaluation import forecasts, metrics
from gtmsm.evaluation.controls import BestCopy, MeanFrame, NearestCopy, control_forecasters
from gtmsm.evaluation.forecaster import ModelForecaster
from gtmsm.evaluation.forecasts import band, flip, score_forecaster, score_forecasters
from gtmsm.evaluation.score import SSIM_EVERY, EvaluationConfig, evaluate
from gtmsm.evaluation.sets import FixedSet, Recipe, Size, named_set
from gtmsm.model.gtmsm import WorldModel
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.returns import ReturnWalker
from gtmsm.worlds.walkers import PoissonWalker, Walker

SHIPPED = Path(__file__).parents[2] / "weights" / "image-walk-celeba"
ONE_NUMBER = ("psnr_pooled", "psnr_frames", "psnr_revisited", "psnr_unseen", "ssim", "retrieval_revisited")


@pytest.fixture(scope="module")
def model() -> WorldModel:
    return WorldModel.load(SHIPPED)


@pytest.fixture(scope="module")
def walks() -> FixedSet:
    return named_set("image-walk/builtin", quick=True)


@pytest.fixture(scope="module")
def scored(model: WorldModel, walks: FixedSet, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The shipped model's scores, and the file of its frames."""
    path = tmp_path_factory.mktemp("frames") / "frames.npz"
    return score_forecaster(ModelForecaster(model), walks, write=path), path


def own_set(size: Size, walker: Walker | None = None, side: int = 32) -> FixedSet:
    """Walks over noise."""
    images = torch.randint(256, (4, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    world = ImageWalk(images, ImageWalkConfig(size=side))
    return FixedSet("own", "test", False, Recipe("", lambda *_: world, walker or PoissonWalker(), size, size))


class Grey:
    """A rival of a few lines."""

    needs_poses = False
    privileges = ()

    def __init__(self, made: Tensor | None = None) -> None:
        self.made = torch.tensor(0.5) if made is None else made

    def forecast(self, x: Tensor, a: Tensor, plan: Tensor, poses: object = None) -> Tensor:
        assert poses is None
        return self.made.expand(*plan.shape[:2], *x.shape[2:])


# ---- the scores


def test_scores_are_those_of_evaluation(model: WorldModel):
    fixed = own_set(Size(6, 30, 40))
    settings = EvaluationConfig(tau=30, horizon=40, clips=6)
    theirs = evaluate(model, fixed.world, fixed.walker, settings, torch.device("cpu")).scores
    together = score_forecasters({"mine": ModelForecaster(model), **control_forecasters(model.vae)}, fixed)
    mine = together.pop("mine")
    assert mine == score_forecaster(ModelForecaster(model), fixed, name="mine")
    for key in (*ONE_NUMBER, "psnr_by_step", "revisited_fraction", "pose_r2"):
        assert mine[key] == pytest.approx(theirs[key], rel=1e-6), key
    for name, scores in together.items():
        if name in theirs["controls"]:
            both = scores, theirs["controls"][name]
            found, expected = ({key: each[key] for key in ONE_NUMBER if each[key] is not None} for each in both)
            assert found == pytest.approx(expected, rel=1e-5), name


def test_a_model_of_the_shelf_remembers_a_named_set(scored: tuple[dict[str, Any], Path], walks: FixedSet):
    scores, _ = scored
    assert scores["retrieval_revisited"] == 1
    assert scores["pose_r2"] > 0.999
    assert scores["psnr_revisited"] > 23
    assert (scores["set"], scores["differs"], scores["parameters"]) == ("image-walk/builtin", None, 243_180)
    assert walks.listed is not None and scores["sha256"] == walks.listed.sha256
    assert "the start of a walk is the origin" in scores["privileges"]


def test_scores_can_be_written_as_json(scored: tuple[dict[str, Any], Path]):
    assert json.loads(json.dumps(scored[0], allow_nan=False)) == scored[0]


def test_a_single_clip_has_no_standard_error(model: WorldModel):
    scores = score_forecaster(MeanFrame(), own_set(Size(1, 6, 4)))
    assert scores["psnr_frames_error"] is None
    assert scores["psnr_band"]["error"] == [None] * 4


def test_the_band_of_a_curve_is_that_over_clips():
    psnr = torch.arange(11.0)[:, None].double().repeat(1, 2)
    found = band(psnr)
    assert found["mean"] == [5, 5] and found["low"] == [1, 1] and found["high"] == [9, 9]
    assert found["error"] == pytest.approx([math.sqrt(11) / math.sqrt(11)] * 2)


def test_anything_with_the_right_verbs_is_scored(walks: FixedSet):
    scores = score_forecaster(Grey(), walks, name="grey")
    clip = next(walks.clips())
    error = (clip.x[:, 64:] - 0.5).square().mean((2, 3, 4))
    assert scores["psnr_pooled"] == pytest.approx(metrics.psnr_pooled(error))
    assert (scores["forecaster"], scores["parameters"], scores["retrieval_revisited"]) == ("grey", None, None)
    assert "pose_r2" not in scores


def test_true_poses_and_frames_are_for_those_who_say_so(walks: FixedSet):
    nearest, best = (score_forecaster(each, walks) for each in (NearestCopy(), BestCopy()))
    assert nearest["psnr_revisited"] == best["psnr_revisited"] == metrics.PSNR_CAP
    assert best["psnr_unseen"] > nearest["psnr_unseen"]
    assert (nearest["privileges"], best["privileges"]) == (["true poses"], ["the true frames"])


def test_of_a_return_only_what_is_seen_there_counts(model: WorldModel):
    walker = ReturnWalker(9)
    fixed = own_set(Size(4, walker.tau, walker.horizon, walker.skip), walker, 64)
    copied = score_forecaster(NearestCopy(), fixed)
    assert (copied["revisited_fraction"], copied["psnr_pooled"]) == (1, metrics.PSNR_CAP)
    assert len(copied["psnr_by_step"]) == 12
    remembered = score_forecaster(ModelForecaster(model.without_walls()), fixed)
    assert remembered["retrieval_revisited"] == 1


def test_what_cannot_be_scored_is_refused(walks: FixedSet):
    with pytest.raises(InputError, match="a int is no forecaster"):
        score_forecaster(3, walks)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"made frames of shape \(24, 63, 3, 8, 8\); expected \(24, 64, 3, 8, 8\)"):
        score_forecaster(_Short(), walks)
    with pytest.raises(InputError, match="an oracle must be told"):
        BestCopy().forecast(torch.zeros(1, 2, 3, 8, 8), torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
    with pytest.raises(InputError, match="takes true poses"):
        NearestCopy().forecast(torch.zeros(1, 2, 3, 8, 8), torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))


class _Short(Grey):
    def forecast(self, x: Tensor, a: Tensor, plan: Tensor, poses: object = None) -> Tensor:
        return super().forecast(x, a, plan[:, 1:])


def test_flip_is_nothing_for_equal_frames_and_much_for_black_and_white():
    pytest.importorskip("flip_evaluator")
    frames = torch.rand(1, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert flip(frames, frames).max() == 0
    assert flip(torch.zeros(1, 1, 3, 8, 8), torch.ones(1, 1, 3, 8, 8)).min() > 0.9


def test_without_its_package_there_is_no_flip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forecasts, "has_flip", lambda: False)
    assert score_forecaster(MeanFrame(), own_set(Size(1, 6, 4)))["flip"] is None


# ---- a second path: frames as written, scored by scikit-image


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Scores of `rotate`, in rooms."""
    pytest.importorskip("labmaze")
    path = tmp_path_factory.mktemp("turned") / "frames.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecasts, "has_flip", lambda: False)  # it takes long, and is not compared
        model = WorldModel.load(SHIPPED.parent / "rotate")
        return score_forecaster(_Unmeasured(model), named_set("rooms/rotate", quick=True), write=path), path


class _Unmeasured(Grey):
    """A world model whose poses nobody compares: to fit them takes 32 walks more."""

    def __init__(self, model: WorldModel) -> None:
        self.model = ModelForecaster(model)

    def forecast(self, x: Tensor, a: Tensor, plan: Tensor, poses: object = None) -> Tensor:
        return self.model.forecast(x, a, plan)


@pytest.mark.parametrize("which", ["scored", "turned"])
def test_the_written_frames_have_the_same_scores_by_another_library(which: str, request: pytest.FixtureRequest):
    scores, path = request.getfixturevalue(which)
    again = by_another_library(path)
    assert scores["psnr_band"]["mean"] == pytest.approx(again.pop("psnr_band_mean"), abs=1e-6)
    for name, score in again.items():
        assert scores[name] == pytest.approx(score, abs=1e-6), name


@pytest.mark.parametrize(
    ("weights", "flags"),
    [
        ("image-walk-celeba", "--images builtin --clips 140 --tau 24 --horizon 18"),  # in several batches
        ("rotate", "--clips 3"),
    ],
)
def test_the_frames_that_evaluate_writes_have_the_scores_that_it_writes(
    gtmsm, weights: str, flags: str, tmp_path: Path
):
    if weights == "rotate":
        pytest.importorskip("labmaze")
    frames = tmp_path / "new" / "frames.npz"
    words = ("evaluate", weights, *flags.split(), "--device", "cpu", "--out", tmp_path, "--frames", frames)
    assert f"frames: {frames}" in gtmsm(*words).out
    scores, again = json.loads((tmp_path / "scores.json").read_text()), by_another_library(frames)
    of_both = again.keys() & scores.keys()
    assert of_both >= {"psnr_pooled", "psnr_frames", "psnr_revisited", "psnr_unseen", "psnr_by_step", "ssim"}
    for name in of_both:
        assert scores[name] == pytest.approx(again[name], abs=1e-6), name
    assert [path.name for path in frames.parent.iterdir()] == [frames.name]


def by_another_library(path: Path) -> dict[str, Any]:
    """Scores of written frames by scikit-image."""
    with np.load(path) as file:
        forecast, truth, seen = file["forecast"], file["truth"], file["revisited"]
        assert forecast.dtype == truth.dtype == np.float32
    forecast, truth = forecast.astype(np.float64), truth.astype(np.float64)

    def psnr(x: np.ndarray, y: np.ndarray) -> float:
        return float(peak_signal_noise_ratio(x, y, data_range=1))

    pairs = [(x, y) for xs, ys in zip(truth, forecast, strict=True) for x, y in zip(xs, ys, strict=True)]
    by_frame = np.array([psnr(x, y) for x, y in pairs]).reshape(seen.shape)
    how = {"win_size": 7, "data_range": 1, "channel_axis": 0, "use_sample_covariance": False}
    every = [pair for t, pair in enumerate(pairs) if t % seen.shape[1] % SSIM_EVERY == 0]
    return {
        "psnr_pooled": psnr(truth, forecast),
        "psnr_revisited": psnr(truth[seen], forecast[seen]),
        "psnr_unseen": psnr(truth[~seen], forecast[~seen]),
        "psnr_frames": by_frame.mean(),
        "psnr_frames_revisited": by_frame[seen].mean(),
        "psnr_frames_unseen": by_frame[~seen].mean(),
        "psnr_by_step": [psnr(*both) for both in _by_step(truth, forecast)],
        "psnr_band_mean": by_frame.mean(0).tolist(),
        "ssim": np.mean([structural_similarity(x, y, **how) for x, y in every]),
    }


def _by_step(*frames: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """All clips at one step after the other."""
    return zip(*(each.swapaxes(0, 1) for each in frames), strict=True)


# ---- pitfalls (docs/protocol.md)


@pytest.mark.parametrize(
    ("made", "said"), [(127.5, "from 128 to 128"), (-1.0, "from -1 to -1"), (math.nan, "from nan")]
)
def test_frames_of_another_range_are_refused(walks: FixedSet, made: float, said: str):
    with pytest.raises(InputError, match=f"made frames {said}.*; expected .0, 1."):
        score_forecaster(Grey(torch.tensor(made)), walks)


def test_poses_are_fitted_on_other_walks_than_those_that_are_scored(model: WorldModel, monkeypatch: pytest.MonkeyPatch):
    fixed, walked, walk = own_set(Size(6, 30, 40)), list[set[tuple[Any, ...]]](), ImageWalk.walk

    def noted(self: ImageWalk, actions: Tensor) -> Any:
        walks = zip(self.image.tolist(), self.pose.tolist(), actions.tolist(), strict=True)
        walked.append({(image, *start, *done) for image, start, done in walks})
        return walk(self, actions)

    monkeypatch.setattr(ImageWalk, "walk", noted)
    assert score_forecaster(ModelForecaster(model), fixed)["pose_r2"] > 0.999
    fitted, scored = walked
    assert (len(fitted), len(scored)) == (32, 6)
    assert not fitted & scored


def test_the_two_averages_of_psnr_are_decibels_apart(scored: tuple[dict[str, Any], Path]):
    assert scored[0]["psnr_frames"] > scored[0]["psnr_pooled"] + 1
    assert scored[0]["psnr_frames_revisited"] > scored[0]["psnr_revisited"] + 1


def test_the_ten_lines_of_the_page_run(capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, known := {})
    assert known["scores"]["differs"] is None
    assert capsys.readouterr().out.split()[-1] == "None"
