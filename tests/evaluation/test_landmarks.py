"""What landmarks are worth: structure and ranges of the scores, and what is right."""

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.errors import InputError
from gtmsm.evaluation.examine import ImageWalkExaminer, RoomsExaminer, examiner_for
from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig, Trials, strangers, summary, work_of_trials
from gtmsm.evaluation.progress import Meter
from gtmsm.evaluation.score import Evaluation, EvaluationConfig, evaluate, glance
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.physics import ACTIONS
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import SlipConfig, Slipping
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, SpinWalker, Walker
from gtmsm.worlds.world import World

CPU = torch.device("cpu")
TINY = LandmarkEvaluationConfig(walks=3, steps=30, slips=(0.0, 0.2), lost=2, lost_steps=5, pictures=4)
SETTINGS = EvaluationConfig(tau=16, horizon=10, clips=3, metric_poses=True, landmarks=TINY)
TINIER = replace(TINY, walks=2, steps=12, pictures=2)
"""For rooms, whose physics takes longer."""


@cache
def images(obstacles: int = 2) -> ImageWalk:
    pictures = torch.randint(256, (4, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(pictures, ImageWalkConfig(size=20, obstacles=obstacles, obstacle_side=2))


@cache
def rooms() -> Rooms:
    return Rooms(
        draw_floorplans("room", 4, 2, load_textures("procedural"), 1),
        RoomsConfig(textures="procedural", objects=2, antialias=1),
    )


def model(form: str = "bayes", kind: str = "walled") -> WorldModel:
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind=kind, noise=0.05),
        recall=RecallConfig(neighbours=3, prior="mixture"),
        landmark=LandmarkConfig(form=form, matches=4, width=16),
    )
    shape, actions = ((3, 8, 8), 5) if kind == "walled" else ((3, 32, 32), len(ACTIONS))
    return WorldModel(settings, shape, actions)


@pytest.fixture(scope="module")
def progress() -> list[tuple[str, float]]:
    """What was told while `scored` was made."""
    return []


@pytest.fixture(scope="module")
def scored(progress: list[tuple[str, float]]) -> Evaluation:
    return evaluate(model(), images(), PoissonWalker(), SETTINGS, CPU, lambda *told: progress.append(told))


@pytest.fixture(scope="module")
def in_rooms() -> Evaluation:
    settings = replace(SETTINGS, clips=2, landmarks=TINIER)
    return evaluate(model(kind="gliding"), rooms(), ScavengerWalker(), settings, CPU)


def shares(scores: Any) -> list[float]:
    """Every number whose name says that it is a share."""
    found: list[float] = []
    for name, value in scores.items():
        if isinstance(value, dict):
            found += shares(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            found += [share for part in value for share in shares(part)]
        elif name.startswith(("within", "top1", "known", "false", "expected", "probability")):
            found += [v for v in (value if isinstance(value, list) else [value]) if v is not None]
    return found


@pytest.mark.parametrize("form", ["bayes", "paper"])
def test_either_form_of_landmarks_is_scored_over_images(scored: Evaluation, form: str):
    paper = form == "paper"
    made = evaluate(model(form), images(), PoissonWalker(), SETTINGS, CPU) if paper else scored
    landmarks = made.scores["landmarks"]
    assert [walks["probability"] for walks in landmarks["slip"]] == [0.0, 0.2]
    for walks in landmarks["slip"]:
        for way in ("landmarks", "dead_reckoning", *(() if paper else ("closing_loops", "loops_closed"))):
            assert len(walks[way]["position_error_by_step"]) == len(walks[way]["within_by_step"]) == TINY.steps
    assert landmarks["bump"] is None
    assert landmarks["unknown_start"]["trials"] == TINY.walks * TINY.lost
    assert len(landmarks["unknown_start"]["within_by_step"]) == TINY.lost_steps
    looks = landmarks["localise"]
    assert looks["visited"] + looks["unvisited"] == TINY.walks * TINY.pictures
    assert sum(looks["reliability"]["count"]) == TINY.walks * TINY.pictures + looks["foreign"]
    assert all(0 <= share <= 1 for share in shares(landmarks))


def test_few_clips_are_few_long_walks_too():
    landmarks = evaluate(model(), images(), PoissonWalker(), replace(SETTINGS, clips=1), CPU).scores["landmarks"]
    assert landmarks["walks"] == 1
    assert landmarks["unknown_start"]["trials"] == TINY.lost


def test_progress_is_told_from_nothing_to_all(scored: Evaluation, progress: list[tuple[str, float]]):
    doing, done = zip(*progress, strict=True)
    assert list(dict.fromkeys(doing)) == [
        "clips", "walks with 0% slips", "walks with 20% slips", "unknown starts", "single pictures",
    ]  # fmt: skip
    assert done[0] == 0 and done[-1] == pytest.approx(1) and list(done) == sorted(done)


def test_walks_to_score_on_are_drawn_on_the_cpu_whatever_the_device(monkeypatch: pytest.MonkeyPatch):
    real, devices, drawn = torch.Generator, {}, []

    class Noting(type):
        """What is asked for a GPU is noted as such, and made on the CPU."""

        def __call__(cls, device: torch.device | str = "cpu") -> torch.Generator:
            made = real()
            devices[made] = torch.device(device).type
            return made

        def __instancecheck__(cls, other: object) -> bool:
            return isinstance(other, real)

    class Noted(metaclass=Noting):
        """Stands for torch.Generator."""

    def noted(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator) -> Clip:
        drawn.append(devices[generator])
        return record(world, walker, n, steps, generator)

    monkeypatch.setattr(torch, "Generator", Noted)
    for module in ("data.record", "evaluation.score", "evaluation.landmarks"):
        monkeypatch.setattr(f"gtmsm.{module}.record", noted)
    evaluate(model(), images(), PoissonWalker(), SETTINGS, torch.device("cuda"))
    glance(model(), images(), PoissonWalker(), SETTINGS)
    assert set(devices.values()) == {"cpu", "cuda"}, "samples of the model are drawn where it is"
    assert len(drawn) >= 6 and set(drawn) == {"cpu"}


def test_scores_of_landmarks_can_be_written_as_json(scored, in_rooms):
    for scores in (scored.scores, in_rooms.scores):
        assert json.loads(json.dumps(scores, allow_nan=False)) == scores


def test_the_same_seed_gives_the_same_scores(scored):
    assert evaluate(model(), images(), PoissonWalker(), SETTINGS, CPU).scores == scored.scores


def test_in_rooms_headings_and_bumps_are_scored_too(in_rooms):
    landmarks = in_rooms.scores["landmarks"]
    for walks in (*landmarks["slip"], landmarks["bump"]):
        curves = walks["landmarks"]
        assert len(curves["heading_error_by_step"]) == len(curves["position_error_relative_by_step"]) == TINIER.steps
    assert all(0 <= share <= 1 for share in shares(landmarks))
    assert "degrees" not in landmarks["unit"] and "10°" in landmarks["right"]


def test_a_model_without_landmarks_has_no_such_scores_and_walks_by_its_actions():
    plain = model("off")
    scores = evaluate(plain, images(), PoissonWalker(), SETTINGS, CPU).scores
    assert "landmarks" not in scores
    for key in ("position_within_half_cell_memorised", "position_error_by_step"):
        assert scores[key] == scores[f"dead_reckoning_{key}"]


def test_what_is_scored_is_what_is_memorised_and_dreamt(scored):
    clip = record(images(), PoissonWalker(), 3, 26, torch.Generator().manual_seed(0))
    past, future = clip.split(16)
    with torch.no_grad():
        memory, here = model().memorise(past.x, past.a)
        walk = torch.cat([memory.place.mean, model().imagine(memory, here, future.a).poses], 1)
    torch.testing.assert_close(torch.from_numpy(scored.gallery.inferred_pose), walk)
    off = (walk + clip.true_start[:, None] - clip.true_pose).norm(dim=-1)
    assert scored.scores["position_error_by_step"] == pytest.approx(off.mean(0).tolist(), abs=1e-5)


def test_a_glance_sees_the_right_cells_too():
    assert "position_within_half_cell_memorised" in glance(model(), images(), PoissonWalker(), SETTINGS)


def test_worlds_that_slip_can_be_scored():
    slippery = Slipping(images(0), SlipConfig(probability=0.3))
    scores = evaluate(model(), slippery, PoissonWalker(), SETTINGS, CPU).scores
    assert 0 < scores["unhindered_fraction"] < 1
    assert scores["landmarks"]["slip"][0]["probability"] == 0.0
    assert scores["controls"]["copy_nearest_true_pose"]["psnr_unhindered"] == 100.0


# ---- parts


def test_a_stranger_is_of_another_place():
    place = torch.tensor([3, 3, 5, 3])
    who, exists = strangers(place)
    assert exists.all() and (place[who] != place).all()
    assert not strangers(torch.tensor([2, 2]))[1].any()


def test_pictures_are_summed_up_apart():
    yes, no = torch.tensor([True, True, False, False]), torch.zeros(4, dtype=torch.bool)
    seen = torch.tensor([True, False, True, False])
    found = summary(yes, yes, yes, torch.tensor([0.9, 0.9, 0.2, 0.1]), seen, torch.tensor([0.8, 0.1]))
    assert (found["visited"], found["top1_visited"], found["known_visited"]) == (2, 0.5, 0.5)
    assert (found["foreign"], found["false_known"]) == (2, 0.5)
    assert sum(found["reliability"]["count"]) == 6
    assert summary(no, no, no, torch.rand(4), seen, torch.zeros(0))["false_known"] is None


def test_half_a_cell_off_is_still_right():
    examiner = ImageWalkExaminer(images(), 16)
    believed = torch.tensor([[[0.5, 0.0], [0.0, 0.51], [0.3, 0.4], [0.4, 0.4]]])
    errors = examiner.errors(believed, torch.zeros_like(believed))
    assert examiner.within(errors).tolist() == [[True, False, True, False]]


def test_in_rooms_both_position_and_heading_must_be_right():
    world = rooms()
    world.reset(1)
    near, far, turn = 0.049 * float(world.width), 0.051 * float(world.width), math.radians(1)
    believed = torch.tensor([[[near, 0, 9 * turn], [far, 0, 0], [0, near, -11 * turn], [0, 0, 2 * math.pi]]])
    examiner = RoomsExaminer(world, 16)
    assert examiner.within(examiner.errors(believed, torch.zeros_like(believed))).tolist() == [
        [True, False, False, True]
    ]


def test_new_agents_move_into_free_cells_of_the_same_pictures_among_the_same_obstacles():
    world, generator = images(), torch.Generator().manual_seed(1)
    world.reset(20, generator)
    image, solid = world.image.clone(), world.solid.clone()
    examiner_for(world, 16).move_in(generator)
    assert torch.equal(world.image, image) and torch.equal(world.solid, solid)
    row, column = world.cell.T
    assert not solid[torch.arange(20), row, column].any()
    assert len(world.cell.unique(dim=0)) > 5


def test_new_agents_move_into_the_same_rooms():
    world, generator = rooms(), torch.Generator().manual_seed(1)
    world.reset(3, generator)
    before, pose = world.where.clone(), world.pose.clone()
    examiner_for(world, 16).move_in(generator)
    assert torch.equal(world.where, before) and not torch.equal(world.pose, pose)


def test_only_who_walks_from_object_to_object_can_bump():
    assert RoomsExaminer(rooms(), 16).clumsy(SpinWalker()) is None
    clumsy = RoomsExaminer(rooms(), 16).clumsy(ScavengerWalker())
    assert isinstance(clumsy, ScavengerWalker) and clumsy.config.may_bump
    assert RoomsExaminer(rooms(), 16).clumsy(clumsy) is None


def test_who_bumps_is_also_scored_as_one_that_does_not():
    examiner, told = RoomsExaminer(rooms(), 16, metric=True), []
    assert examiner.careful(SpinWalker()) is None and examiner.careful(ScavengerWalker()) is None
    # By seed 2 one of these walks bumps at its 7th step.
    clumsy, settings = examiner.clumsy(ScavengerWalker()), replace(TINIER, slips=(0.0,), lost=1, lost_steps=2)
    bumping, seer = (
        model(kind="gliding"),
        Meter(work_of_trials(settings, examiner, clumsy), lambda *now: told.append(now)),
    )
    with torch.no_grad():
        examiner.calibrate(bumping, clumsy, 12, 0)
        scores = Trials(bumping, examiner, settings, 2, seer).scores(rooms(), clumsy)
    assert scores["bump"] is None
    careful = scores["careful"]
    assert {"landmarks", "dead_reckoning", "closing_loops", "unknown_start", "localise"} <= careful.keys()
    curve = careful["landmarks"]["position_error_relative_by_step"]
    assert careful["landmarks"]["position_error_relative_late"] == pytest.approx(sum(curve[-3:]) / 3, abs=1e-4)
    assert curve != scores["slip"][0]["landmarks"]["position_error_relative_by_step"]
    assert "walks without bumps" in dict(told) and told[-1][1] == pytest.approx(1)


@pytest.mark.parametrize("wrong", [{"walks": 0}, {"steps": 0}, {"lost": 0}, {"lost_steps": 0}, {"pictures": 0}])
def test_nothing_to_score_is_refused(wrong: dict[str, int]):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name} is {value}; give at least 1"):
        LandmarkEvaluationConfig(**wrong)


def test_a_slip_is_a_probability():
    with pytest.raises(InputError, match="slips holds 1.5"):
        LandmarkEvaluationConfig(slips=(0.1, 1.5))
    with pytest.raises(InputError, match="slips is empty"):
        LandmarkEvaluationConfig(slips=())
