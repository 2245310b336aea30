"""Scores of a model, put together."""

import json

import pytest
import torch

from gtmsm.data.record import record
from gtmsm.errors import InputError
from gtmsm.evaluation import metrics
from gtmsm.evaluation.score import Evaluation, EvaluationConfig, evaluate, glance
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker
from gtmsm.worlds.world import World

CPU = torch.device("cpu")
imagine = WorldModel.imagine
SETTINGS = EvaluationConfig(tau=30, horizon=40, clips=6)


@pytest.fixture(scope="module")
def world() -> ImageWalk:
    images = torch.randint(256, (4, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(images, ImageWalkConfig(size=20))


@pytest.fixture(scope="module")
def model() -> WorldModel:
    torch.manual_seed(0)
    settings = WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8), recall=RecallConfig(neighbours=3))
    return WorldModel(settings, (3, 8, 8), 5)


@pytest.fixture(scope="module")
def scored(model: WorldModel, world: ImageWalk) -> Evaluation:
    return evaluate(model, world, PoissonWalker(), SETTINGS, CPU)


def test_the_same_seed_gives_the_same_scores(model, world, scored):
    assert evaluate(model, world, PoissonWalker(), SETTINGS, CPU).scores == scored.scores


def test_the_same_walks_are_scored_whatever_the_model(world):
    several_batches = EvaluationConfig(tau=12, horizon=8, clips=120, seed=3)
    small, large = (
        evaluate(
            WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=16, code_size=z)), (3, 8, 8), 5),
            world,
            PoissonWalker(),
            several_batches,
            CPU,
        ).scores
        for z in (2, 7)
    )
    for control in ("last_frame", "mean_frame", "copy_nearest_true_pose"):
        assert small["controls"][control]["psnr_pooled"] == large["controls"][control]["psnr_pooled"]
    assert small["revisited_fraction"] == large["revisited_fraction"]


def test_scores_are_what_the_metrics_say(model, world, scored):
    generator = torch.Generator().manual_seed(SETTINGS.seed)
    clip = record(world, PoissonWalker(), SETTINGS.clips, 70, generator)
    past, future = clip.split(30)
    with torch.no_grad():
        dream = model.imagine(*model.memorise(past.x, past.a), future.a)
        mse = metrics.frame_mse(future.x, dream.frames)
    same = (clip.true_pose[:, 30:, None] == clip.true_pose[:, None, :30]).all(-1)
    seen = same.any(-1)
    assert scored.scores["psnr_pooled"] == pytest.approx(metrics.psnr_pooled(mse))
    assert scored.scores["psnr_revisited"] == pytest.approx(metrics.psnr_pooled(mse, seen))
    assert scored.scores["psnr_unseen"] == pytest.approx(metrics.psnr_pooled(mse, ~seen))
    assert scored.scores["revisited_fraction"] == pytest.approx(seen.float().mean().item())
    hit = same.gather(2, dream.retrieved[..., None])[..., 0]
    assert scored.scores["retrieval_revisited"] == pytest.approx(hit[seen].float().mean().item())
    late = hit[:, -16:][seen[:, -16:]]
    assert scored.scores["retrieval_revisited_last16"] == pytest.approx(late.float().mean().item())


def test_a_copy_at_the_true_pose_is_exact_where_it_was_before(scored):
    assert scored.scores["controls"]["copy_nearest_true_pose"]["psnr_revisited"] == metrics.PSNR_CAP


def test_nothing_shown_from_memory_beats_the_answer_in_hand(scored):
    controls = scored.scores["controls"]
    assert controls["vae_ceiling"]["psnr_revisited"] == pytest.approx(controls["true_pose_memory"]["psnr_revisited"])
    assert controls["vae_ceiling"]["psnr_unseen"] >= controls["true_pose_memory"]["psnr_unseen"]


def test_only_what_searches_memory_without_the_true_pose_has_a_retrieval(scored):
    without = {name for name, values in scored.scores["controls"].items() if values["retrieval_revisited"] is None}
    told = {"true_pose_memory", "copy_nearest_true_pose"}
    assert without == {"vae_ceiling", "best_copy", "last_frame", "mean_frame"} | told


def test_every_step_has_a_score(scored):
    for values in (scored.scores, scored.scores["sampled"], *scored.scores["controls"].values()):
        assert len(values["psnr_by_step"]) == SETTINGS.horizon


def test_scores_can_be_written_as_json(scored):
    assert json.loads(json.dumps(scored.scores, allow_nan=False)) == scored.scores


def test_random_guesses_do_not_depend_on_how_much_chance_a_model_uses(model, world, scored, monkeypatch):
    monkeypatch.setattr(
        WorldModel, "imagine", lambda self, memory, here, a, chance=None: imagine(self, memory, here, a)
    )
    again = evaluate(model, world, PoissonWalker(), SETTINGS, CPU).scores
    assert again["sampled"] != scored.scores["sampled"]
    assert again["controls"]["random_retrieval"] == scored.scores["controls"]["random_retrieval"]


def test_a_single_clip_of_a_single_step_can_be_scored(model, world):
    scores = evaluate(model, world, PoissonWalker(), EvaluationConfig(tau=3, horizon=1, clips=1), CPU).scores
    assert len(scores["psnr_by_step"]) == 1
    json.dumps(scores, allow_nan=False)


def test_what_was_never_revisited_has_no_score(model, world):
    def onwards(world: World, steps: int, generator: torch.Generator) -> torch.Tensor:
        """Stand still, then walk up."""
        return torch.tensor([4, 4, 4, 0, 0]).repeat(world.agents, 1)

    scores = evaluate(model, world, onwards, EvaluationConfig(tau=3, horizon=2, clips=2), CPU).scores
    assert scores["revisited_fraction"] == 0
    assert scores["psnr_revisited"] is None
    assert scores["retrieval_revisited"] is None
    assert not scores["converged"]


def test_a_model_is_not_asked_for_more_neighbours_than_memory_holds(model, world):
    with pytest.raises(InputError, match="the model reads 3 neighbours but tau is 2; memorise at least 3 steps"):
        evaluate(model, world, PoissonWalker(), EvaluationConfig(tau=2, horizon=2, clips=1), CPU)


def test_a_glance_agrees_with_the_scores(model, world, scored):
    seen = glance(model, world, PoissonWalker(), SETTINGS)
    assert seen["psnr"] == pytest.approx(scored.scores["psnr_pooled"])
    assert seen["retrieval"] == pytest.approx(scored.scores["retrieval_revisited"])
    assert seen["pose_r2"] == pytest.approx(scored.scores["pose_r2"])


def test_a_glance_leaves_no_gradients(model, world):
    glance(model, world, PoissonWalker(), SETTINGS)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "wrong", [{"tau": 0}, {"horizon": 0}, {"clips": 0}, {"tau": -1}, {"seed": -1}, {"seed": 2**64}]
)
def test_an_evaluation_of_nothing_is_refused(wrong: dict[str, int]):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name} is {value}"):
        EvaluationConfig(**wrong)
