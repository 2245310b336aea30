"""Scores of anything that forecasts frames."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.errors import InputError
from gtmsm.evaluation import forecasts, metrics
from gtmsm.evaluation.controls import BestCopy, MeanFrame, NearestCopy, RandomEntry, control_forecasters
from gtmsm.evaluation.forecaster import Forecaster, Guess, Guessing, ModelForecaster
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


def test_the_written_frames_have_the_same_scores_by_another_library(scored: tuple[dict[str, Any], Path]):
    scores, path = scored
    with np.load(path) as file:
        forecast, truth, seen = file["forecast"], file["truth"], file["revisited"]
        assert forecast.dtype == truth.dtype == np.float32
    pairs = [
        (x.astype(np.float64), y.astype(np.float64)) for xs, ys in zip(truth, forecast, strict=True)
        for x, y in zip(xs, ys, strict=True)
    ]  # fmt: skip
    pooled = peak_signal_noise_ratio(truth.astype(np.float64), forecast.astype(np.float64), data_range=1)
    by_frame = np.array([peak_signal_noise_ratio(x, y, data_range=1) for x, y in pairs]).reshape(seen.shape)
    assert scores["psnr_pooled"] == pytest.approx(pooled, abs=1e-6)
    assert scores["psnr_frames"] == pytest.approx(by_frame.mean(), abs=1e-6)
    assert scores["psnr_frames_revisited"] == pytest.approx(by_frame[seen].mean(), abs=1e-6)
    assert scores["psnr_band"]["mean"] == pytest.approx(by_frame.mean(0).tolist(), abs=1e-5)
    how = {"win_size": 7, "data_range": 1, "channel_axis": 0, "use_sample_covariance": False}
    every = [pair for t, pair in enumerate(pairs) if t % seen.shape[1] % SSIM_EVERY == 0]
    assert scores["ssim"] == pytest.approx(np.mean([structural_similarity(x, y, **how) for x, y in every]), abs=1e-6)


# ---- no leak: without what it claims to use, a model is no better than a control


class Robbed(Guessing):
    """A forecaster that is given the frames or the plan of others."""

    def __init__(self, inner: Guessing, memory: bool = False, plan: bool = False) -> None:
        self.inner, self.memory, self.plan = inner, memory, plan

    def guess(self, x: Tensor, a: Tensor, plan: Tensor, poses: object = None) -> Guess:
        x, plan = x.roll(1, 0) if self.memory else x, plan.roll(1, 0) if self.plan else plan
        told = self.inner.guess(x, a, plan)
        return Guess(told.frames, told.retrieved, reckoned=told.reckoned)


class OthersFrames(FixedSet):
    """A set whose frames to predict are those of other clips."""

    def clips(self) -> Iterator[Clip]:
        tau = self.size.tau
        for clip in super().clips():
            yield replace(clip, x=torch.cat([clip.x[:, :tau], clip.x[:, tau:].roll(1, 0)], dim=1))


def chance() -> RandomEntry:
    return RandomEntry(torch.Generator().manual_seed(0))


def revisited(forecaster: Forecaster, fixed: FixedSet) -> float:
    psnr: float = score_forecaster(forecaster, fixed)["psnr_revisited"]
    return psnr


def robbed(model: WorldModel, walks: FixedSet) -> dict[str, tuple[float, float]]:
    """PSNR at revisited places of the model and of chance, by what was taken away; docs/protocol.md has the table."""
    others, mine = OthersFrames(walks.name, walks.split, walks.quick, walks.recipe), ModelForecaster(model)
    of_others = Robbed(mine, memory=True), Robbed(chance(), memory=True)
    return {
        "nothing": (revisited(mine, walks), revisited(chance(), walks)),
        "memorised frames of another clip": (revisited(of_others[0], walks), revisited(of_others[1], walks)),
        "plan of another clip": (revisited(Robbed(mine, plan=True), walks), revisited(chance(), walks)),
        "true frames of another clip": (revisited(mine, others), revisited(chance(), others)),
    }


def test_without_what_it_claims_to_use_a_model_is_as_good_as_chance(model: WorldModel, walks: FixedSet):
    found = robbed(model, walks)
    mine, by_chance = found.pop("nothing")
    assert mine > by_chance + 10
    for taken, (left, expected) in found.items():
        assert left == pytest.approx(expected, abs=1), taken


def test_a_set_with_frames_of_others_is_told_from_the_true_one(walks: FixedSet):
    others = OthersFrames(walks.name, walks.split, walks.quick, walks.recipe)
    assert "some of the frames differ" in str(score_forecaster(chance(), others)["differs"])


# ---- pitfalls (docs/protocol.md)


@pytest.mark.parametrize(
    ("made", "said"), [(127.5, "from 128 to 128"), (-1.0, "from -1 to -1"), (math.nan, "from nan")]
)
def test_frames_of_another_range_are_refused(walks: FixedSet, made: float, said: str):
    with pytest.raises(InputError, match=f"made frames {said}.*; expected .0, 1."):
        score_forecaster(Grey(torch.tensor(made)), walks)


def test_the_two_averages_of_psnr_are_decibels_apart(scored: tuple[dict[str, Any], Path]):
    assert scored[0]["psnr_frames"] > scored[0]["psnr_pooled"] + 1
    assert scored[0]["psnr_frames_revisited"] > scored[0]["psnr_revisited"] + 1


def test_the_ten_lines_of_the_page_run(capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, known := {})
    assert known["scores"]["differs"] is None
    assert capsys.readouterr().out.split()[-1] == "None"
