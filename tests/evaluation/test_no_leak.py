"""No leak: robbed of what it claims to use, a model is no better than chance (docs/protocol.md has the table)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import steps_of
from gtmsm.evaluation import forecasts
from gtmsm.evaluation.controls import NearestCopy, RandomEntry
from gtmsm.evaluation.forecaster import Guess, Guessing, ModelForecaster
from gtmsm.evaluation.forecasts import score_forecaster, score_forecasters
from gtmsm.evaluation.sets import FixedSet, Size, named_set
from gtmsm.model.gtmsm import WorldModel
from gtmsm.pose import space_of
from gtmsm.tensors import TruePoses

WEIGHTS = Path(__file__).parents[2] / "weights"


@dataclass(frozen=True)
class Case:
    """Weights that are shipped, and what they are robbed on."""

    name: str
    key: str
    """The PSNR that is compared. Who walks through a room hardly ever has the very same view twice, and nobody can tell
    where a walk goes on after an obstacle that was not seen before."""
    few: Size | None = None
    """What a test can wait for; None is the quick set in full."""


CASES = {
    "image-walk": Case("image-walk/builtin", "psnr_revisited"),
    "image-walk-celeba": Case("image-walk/builtin", "psnr_revisited"),
    "obstacles-free": Case("image-walk/obstacles", "psnr_unhindered"),
    "obstacles-celeba": Case("image-walk/obstacles", "psnr_unhindered"),
    "rotate": Case("rooms/rotate", "psnr_revisited", Size(8, 33, 45)),
    "walk-strong": Case("rooms/walk", "psnr_pooled", Size(4, 30, 8)),
}


class Robbed(Guessing):
    """A forecaster that is given the memorised frames or the plan of another clip; what it said once, it says again."""

    def __init__(self, inner: Guessing, memory: bool = False, plan: bool = False) -> None:
        self.inner, self.memory, self.plan, self.said = inner, memory, plan, None
        self.needs_poses = inner.needs_poses

    def guess(self, x: Tensor, a: Tensor, plan: Tensor, poses: TruePoses | None = None) -> Guess:
        if self.said is None:
            x = x.roll(1, 0) if self.memory else x
            whose = of_another(plan) if self.plan else torch.arange(len(plan))
            if poses is not None:
                poses = poses[0], led(*poses, whose)
            told = self.inner.guess(x, a, plan[whose], poses)
            self.said = Guess(told.frames, told.retrieved)
        return self.said


def of_another(plan: Tensor) -> Tensor:
    """For each clip the number of one whose plan is another: who turns on the spot has one of two."""
    n = len(plan)
    others = ([(i - 1 - k) % n for k in range(n - 1)] for i in range(n))
    return torch.tensor([next(j for j in of if not plan[j].equal(plan[i])) for i, of in enumerate(others)])


def led(seen: Tensor, future: Tensor, whose: Tensor) -> Tensor:
    """True poses along the steps of other clips, from where each memorised walk ends."""
    before = torch.cat([seen[:, -1:], future], dim=1)
    return space_of(seen.shape[-1]).path(seen[:, -1], steps_of(before[:, 0], future)[whose])


class OthersFrames(FixedSet):
    """A set whose frames to predict are those of other clips."""

    def clips(self) -> Iterator[Clip]:
        tau = self.size.tau
        for clip in super().clips():
            yield replace(clip, x=torch.cat([clip.x[:, :tau], clip.x[:, tau:].roll(1, 0)], dim=1))


def chance() -> RandomEntry:
    return RandomEntry(torch.Generator().manual_seed(0))


def robbed(weights: str, size: Size | None = None) -> dict[str, tuple[float, float]]:
    """PSNR of a model and of the control that knows as little, by what was taken away; of the whole quick set if no
    size is given."""
    case, mine = CASES[weights], Robbed(ModelForecaster(WorldModel.load(WEIGHTS / weights)))
    walks = named_set(case.name, quick=True)
    if size is not None:
        walks = replace(walks, recipe=replace(walks.recipe, quick=size))
    others, walks = OthersFrames(case.name, "test", True, walks.recipe), replace(walks, kept=True)
    models = {
        "nothing": mine,
        "memorised frames of another clip": Robbed(mine.inner, memory=True),
        "plan of another clip": Robbed(mine.inner, plan=True),
    }
    controls = {
        "nothing": chance(),
        "memorised frames of another clip": Robbed(chance(), memory=True),
        # Told where each step truly is, and misled like the model: what a plan shows first, anybody may guess.
        "plan of another clip": Robbed(NearestCopy(), plan=True),
    }
    left, expected = (score_forecasters(each, walks) for each in (models, controls))
    found = {taken: (left[taken][case.key], expected[taken][case.key]) for taken in models}
    astray = score_forecasters({"mine": mine, "chance": chance()}, others)
    return found | {"true frames of another clip": (astray["mine"][case.key], astray["chance"][case.key])}


@pytest.mark.parametrize("weights", CASES)
def test_without_what_it_claims_to_use_a_model_is_no_better_than_chance(weights: str, monkeypatch: pytest.MonkeyPatch):
    if CASES[weights].name.startswith("rooms/"):
        pytest.importorskip("labmaze")
    monkeypatch.setattr(
        forecasts, "has_flip", lambda: False
    )  # it takes longer than all other scores, and is not compared
    found = robbed(weights, CASES[weights].few)
    mine, by_chance = found.pop("nothing")
    assert mine > by_chance + 10
    for taken, (left, expected) in found.items():
        assert left < expected + 1, taken


def test_all_shipped_weights_are_robbed():
    assert set(CASES) == {path.parent.name for path in WEIGHTS.glob("*/weights.safetensors")}


def test_a_set_with_frames_of_others_is_told_from_the_true_one():
    walks = named_set("image-walk/builtin", quick=True)
    others = OthersFrames(walks.name, walks.split, walks.quick, walks.recipe)
    assert "some of the frames differ" in str(score_forecaster(chance(), others)["differs"])
