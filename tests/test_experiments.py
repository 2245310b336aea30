"""The presets: each can be set up, and parts that do not fit together are refused in one line."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gtmsm.config import as_plain, changed, read_config
from gtmsm.errors import InputError
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import (
    Experiment,
    ImageWalkExperiment,
    PoolConfig,
    RoomsExperiment,
    RoomsSetting,
    RoomsWalkerConfig,
    Setting,
    in_other_places,
    set_up,
)
from gtmsm.kernels.operator import Operator
from gtmsm.model.frame_vae import patch_grid
from gtmsm.model.gtmsm import WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.presets import PRESETS
from gtmsm.training.curriculum import CurriculumConfig
from gtmsm.training.loss import Loss, ObjectiveConfig
from gtmsm.training.train import TrainingConfig
from gtmsm.training.update import build_optimiser
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms, seeds_of
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import SlipConfig, Slipping
from gtmsm.worlds.walkers import SpinWalker
from gtmsm.worlds.world import World

CPU = torch.device("cpu")
TINY = RoomsConfig(textures="procedural", objects=0, train_places=3, test_places=2, antialias=1)
ROOMS = [name for name, (_, experiment) in PRESETS.items() if isinstance(experiment, RoomsExperiment)]


def tiny(preset: str, **parts: Any) -> RoomsExperiment:
    """A preset in a world of a few bare rooms, with clips of a few steps."""
    experiment = PRESETS[preset][1]
    assert isinstance(experiment, RoomsExperiment)
    training = experiment.training
    short = replace(
        training,
        curriculum=replace(training.curriculum, tau=12, horizon=4, warm_up_tau=0),
        objective=replace(training.objective, displacement_after=0),
        prospect=replace(training.prospect, tau=12, horizon=4),
    )
    world = replace(TINY, pixels=experiment.world.pixels)
    return replace(experiment, **{"world": world, "pool": PoolConfig(clips=2, steps=16), "training": short, **parts})


# ---- presets


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "own"])  # which proposes for what it is given
def test_every_preset_can_be_set_up_and_built(preset: str, toy_images: Path):
    experiment = PRESETS[preset][1]
    if isinstance(experiment, ImageWalkExperiment):
        experiment = replace(experiment, images=str(toy_images), world=replace(experiment.world, size=20))
    else:
        experiment = tiny(preset)
    setting = set_up(experiment, CPU)
    model = setting.build_model()
    assert model.frame_shape == setting.test_world.frame_shape
    assert model.action_size == len(setting.test_world.action_names)


@pytest.mark.parametrize("preset", ROOMS)
def test_every_agent_with_a_heading_can_be_trained_on_its_pool(preset: str):
    setting = set_up(tiny(preset), CPU)
    settings = setting.experiment
    clip = setting.source(1, 6, torch.Generator().manual_seed(0))
    reading = replace(settings.model.recall, neighbours=2)
    objective = replace(settings.training.objective, displacement_after=2, targets=2)
    loss, *_ = Loss(setting.build_model(), objective)(
        clip.x, clip.a, clip.true_step, 3, reading, torch.Generator().manual_seed(0)
    )
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("preset", ["walk-strong", "walk-strong-64"])
def test_an_update_of_a_strong_preset_is_finite_and_calls_kernels_only_with_sizes_they_support(
    preset: str, triton_device: str, monkeypatch: pytest.MonkeyPatch
):
    called, call = set(), Operator.__call__

    def spied(operator: Operator[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(operator.readable).bind(*args, **kwargs)
        given.apply_defaults()
        if "cuda" in operator.devices:
            fast = operator.load("cuda")
            assert fast is not None and fast.supports(*given.args), operator.name
            called.add(operator.name)
        return call(operator, *args, **kwargs)

    setting = set_up(tiny(preset), CPU)
    settings, chance = setting.experiment, torch.Generator().manual_seed(0)
    clip = setting.source(1, 14, chance)
    loss = Loss(setting.build_model(), settings.training.objective)
    optimiser = build_optimiser(loss.groups, settings.training.optimiser)
    monkeypatch.setattr(Operator, "__call__", spied)
    with torch.autocast("cpu", torch.bfloat16):  # as on a GPU
        total, *_ = loss(clip.x, clip.a, clip.true_step, 12, settings.model.recall, chance)
    total.backward()
    optimiser.step(total)
    assert (int(optimiser.count), int(optimiser.first_bad)) == (1, 0)
    strong = {"activated", "shortcut", "edge_conv_out", "normed_sum", "attend", "gathered_views", "most_visible"}
    assert called >= strong | {"glide_steps", "adam_step"}


def test_frames_of_64_pixels_have_the_tokens_of_32_and_the_steps_of_published_scores():
    strong, large = PRESETS["walk-strong"][1], PRESETS["walk-strong-64"][1]
    grids = [patch_grid((3, each.world.pixels, each.world.pixels), each.model.vae.patch) for each in (strong, large)]
    assert grids == [(8, 8), (8, 8)]
    assert (large.evaluation.tau, large.evaluation.horizon) == (144, 156)
    pool = large.pool.clips * large.pool.steps * 3 * large.world.pixels**2
    assert pool <= strong.pool.clips * strong.pool.steps * 3 * strong.world.pixels**2


def test_the_papers_numbers_are_in_the_presets():
    rotate, walk = PRESETS["rotate"][1], PRESETS["walk"][1]
    assert (rotate.training.curriculum.tau, rotate.evaluation.horizon) == (33, 45)  # section 4.2.1
    assert (walk.training.curriculum.tau, walk.evaluation.horizon) == (150, 150)  # section 4.2.2
    assert rotate.world.physics.turn_steps == 41
    assert rotate.world.pixels == walk.world.pixels == 32


# ---- settings


def test_train_and_test_places_differ_and_the_test_places_are_the_same_for_every_seed():
    first, other = (set_up(tiny("rotate", seed=seed), CPU) for seed in (0, 1))
    spots = first.test_world.plans.spots
    assert torch.equal(spots, other.test_world.plans.spots)
    assert not torch.equal(first.pool.frames, other.pool.frames)


def test_no_place_is_in_two_parts():
    setting = set_up(tiny("rotate"), CPU)
    train = draw_rooms(TINY, TINY.train_places, seeds_of(0).train)
    starts = [{tuple(spot) for spot in world.plans.spots[:, 0].tolist()} for world in (train, *held_out(setting))]
    assert len(set().union(*starts)) == sum(map(len, starts)) == 3 + 64 + 2


@pytest.mark.parametrize("kind", ["rooms", "images"])
def test_what_is_watched_while_training_never_touches_the_test(kind: str, toy_images: Path, monkeypatch):
    setting = set_up(tiny("rotate") if kind == "rooms" else toy_walk(toy_images), CPU)
    model = setting.build_model()
    tested = setting.test_world

    def refuse(*_: object) -> None:
        raise AssertionError("somebody walks in the test")

    for verb in ("reset", "walk", "look", "step"):
        monkeypatch.setattr(tested, verb, refuse)
    assert setting.watched is not tested
    assert setting.watch()(model)["psnr"] > 0


def held_out(setting: Setting) -> tuple[World, World]:
    return setting.watched, setting.test_world


def test_the_same_seed_makes_the_same_pool_and_the_same_weights():
    first, again = (set_up(tiny("rotate"), CPU) for _ in range(2))
    assert torch.equal(first.pool.frames, again.pool.frames)
    assert torch.equal(first.pool.a, again.pool.a)
    mine, theirs = (setting.build_model().state_dict() for setting in (first, again))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_building_a_model_leaves_chance_as_it_was():
    setting = set_up(tiny("rotate"), CPU)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    setting.build_model()
    assert torch.equal(before, torch.get_rng_state())


def test_nothing_is_rendered_before_somebody_trains():
    setting = set_up(tiny("rotate"), CPU)
    setting.build_model()
    assert isinstance(setting, RoomsSetting)
    assert "pool" not in vars(setting)


def test_places_say_what_they_are():
    places = set_up(tiny("rotate"), CPU).places
    assert places.name == "room with procedural textures"
    assert (places.train, places.test, len(places.sha256)) == (3, 2, 64)


@pytest.mark.parametrize(("kind", "walker"), [("spin", SpinWalker), ("scavenger", ScavengerWalker)])
def test_settings_name_who_walks(kind: Any, walker: type):
    assert isinstance(RoomsWalkerConfig(kind=kind).build(), walker)


def test_a_model_may_be_tested_in_places_of_another_plan():
    elsewhere = in_other_places(tiny("walk"), "rooms")
    assert elsewhere.world.plan == "rooms"
    assert elsewhere.model == PRESETS["walk"][1].model


# ---- obstacles and slips (App. D)


def toy_walk(toy_images: Path, **parts: Any) -> ImageWalkExperiment:
    world = ImageWalkConfig(size=20, obstacles=2)
    return replace(PRESETS["image-walk"][1], **{"images": str(toy_images), "world": world, **parts})


def test_actions_slip_in_training_and_where_asked_in_tests(toy_images: Path):
    slippery = toy_walk(toy_images, slip=SlipConfig(probability=0.5))
    setting = set_up(slippery, CPU)
    assert isinstance(setting.train_world, Slipping) and isinstance(setting.train_world.world, ImageWalk)
    assert isinstance(setting.test_world, ImageWalk)
    setting.source(4, 30, torch.Generator().manual_seed(0))
    assert setting.train_world.slipped.any()
    assert setting.train_world.world.blocked.any()
    tested = set_up(replace(slippery, evaluation=replace(slippery.evaluation, slip=0.2)), CPU).test_world
    assert isinstance(tested, Slipping) and tested.config.probability == 0.2


def test_actions_slip_in_rooms():
    slippery, steady = (set_up(tiny("rotate", slip=SlipConfig(probability=p)), CPU) for p in (0.5, 0.0))
    assert torch.equal(slippery.pool.a, steady.pool.a)
    assert not torch.equal(slippery.pool.true_pose, steady.pool.true_pose)
    assert slippery.build_model().action_size == 8


def test_worlds_without_slips_are_bare(toy_images: Path):
    assert type(set_up(toy_walk(toy_images), CPU).test_world) is ImageWalk
    assert type(set_up(tiny("rotate"), CPU).test_world) is Rooms


@pytest.mark.parametrize(
    "parts",
    [{"world": ImageWalkConfig(obstacles=1)}, {"slip": SlipConfig(probability=0.1)}],
    ids=["obstacles", "slips"],
)
def test_displacements_may_be_learned_from_where_something_is_in_the_way(parts: dict[str, Any]):
    training = TrainingConfig(objective=ObjectiveConfig(displacement=1.0))
    assert replace(PRESETS["image-walk"][1], training=training, **parts).training.objective.displacement == 1.0


@pytest.mark.parametrize("preset", ["image-walk", "walk"])
def test_settings_written_before_there_were_obstacles_and_slips_still_say_the_same(preset: str):
    experiment = PRESETS[preset][1]
    old = as_plain(experiment)
    del old["slip"]
    for name in ("obstacles", "obstacle_side") if preset == "image-walk" else ():
        del old["world"][name]
    assert read_config(type(experiment), old, "config.yaml") == experiment


# ---- refusals


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(InputError) as refused:
        make()
    assert "\n" not in str(refused.value)
    return str(refused.value)


ROTATE = PRESETS["rotate"][1]
WALK = PRESETS["walk"][1]
IMAGE_WALK = PRESETS["image-walk"][1]
ALL_AT_ONCE = TrainingConfig(curriculum=CurriculumConfig(tau=33, horizon=16, grow=(), prospect=False))


@pytest.mark.parametrize(
    ("experiment", "parts", "said"),
    [
        (
            ROTATE,
            {"pool": PoolConfig(steps=48)},
            "pool.steps is 48, shorter than tau + horizon = 49; make clips longer",
        ),
        (ROTATE, {"pool": PoolConfig(steps=60)}, "pool.steps is 60, shorter than the 78 steps that prospecting looks"),
        (
            ROTATE,
            {"evaluation": EvaluationConfig(metric_poses=True)},
            "only the displacement loss teaches poses in the world's units",
        ),
        (WALK, {"evaluation": EvaluationConfig(metric_poses=False)}, "or a weight with --evaluation.metric-poses"),
        (
            WALK,
            {"training": replace(WALK.training, objective=ObjectiveConfig())},
            "only the displacement loss teaches poses in the world's units",
        ),
        (
            IMAGE_WALK,
            {"training": TrainingConfig(objective=ObjectiveConfig(displacement=1.0))},
            "displacement is 1.0; walls make true displacements no target on images: leave it 0, or put something in "
            "the way with --world.obstacles or --slip.probability",
        ),
        (
            ROTATE,
            {"model": replace(ROTATE.model, recall=replace(ROTATE.model.recall, choice="visible"))},
            "choice is visible, which asks for poses in units of a wall's height: that needs --displacement above 0",
        ),
        (
            ROTATE,
            {"world": RoomsConfig(field_of_view=60.0)},
            "model.recall.field_of_view is 80.0 but the world's is 60.0; give the same",
        ),
        (
            ROTATE,
            {"model": WorldModelConfig(motion=MotionConfig(kind="walled"))},
            "kind is walled; an agent in rooms has a heading: use turning, for one",
        ),
        (
            IMAGE_WALK,
            {"model": WorldModelConfig(motion=MotionConfig(kind="turning"))},
            "kind is turning; who walks over an image has no heading: use walled",
        ),
        (
            IMAGE_WALK,
            {"model": WorldModelConfig(motion=MotionConfig(state_size=3))},
            "state_size is 3; an image is walked in 2 dimensions",
        ),
        (
            ROTATE,
            {"model": replace(ROTATE.model, recall=RecallConfig(prior="query", neighbours=34))},
            "neighbours is 34 but tau is 33; memory would hold fewer than K entries",
        ),
        (ROTATE, {"evaluation": EvaluationConfig(tau=3)}, "neighbours is 4 but evaluation.tau is 3"),
        (
            WALK,
            {"training": replace(WALK.training, objective=replace(WALK.training.objective, displacement_after=182))},
            "displacement_after is 182 but the shortest clips trained on have 182 steps; leave some of them",
        ),
        (ROTATE, {"seed": -1}, "seed is -1; give a whole number from 0"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(experiment: Experiment, parts: dict[str, Any], said: str):
    assert said in refusal(lambda: replace(experiment, **parts))


def test_without_a_search_clips_may_be_as_short_as_training_allows():
    assert replace(ROTATE, pool=PoolConfig(steps=49), training=ALL_AT_ONCE).pool.steps == 49


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"clips": 0}, "clips is 0; training needs at least 1"), ({"steps": 1}, "steps is 1; a clip needs at least 2")],
)
def test_an_empty_pool_is_refused(wrong: dict[str, int], said: str):
    assert said in refusal(lambda: PoolConfig(**wrong))


def test_a_pool_larger_than_memory_is_refused_before_it_is_filled():
    setting = RoomsSetting(tiny("rotate", pool=PoolConfig(clips=10**8, steps=80)), torch.device("cpu"))
    told = refusal(lambda: setting.pool)
    assert told.startswith("the pool of clips needs ") and told.endswith(" free; give fewer --pool.clips")


def test_rooms_have_no_images():
    assert refusal(lambda: set_up(tiny("rotate"), CPU, "builtin")) == "rooms have no images; leave out --images"


def test_images_have_no_rooms():
    assert "this run walks over images" in refusal(lambda: in_other_places(IMAGE_WALK, "rooms"))


def test_an_experiment_without_a_world_is_refused():
    assert "a Experiment has no world; use a preset" in refusal(lambda: set_up(Experiment(), CPU))


@pytest.mark.parametrize(
    ("preset", "wrong", "said"),
    [
        (
            "obstacles",
            {"model.landmark.closure": 0, "model.landmark.form": "paper"},
            "learns from the bound alone: give --poses-from-bound",
        ),
        ("obstacles", {"model.landmark.form": "paper"}, "cannot close loops; use form bayes, or closure 0"),
        ("obstacles", {"training.optimiser.batch": 1}, "batch is 1, but what is strange is learned from another walk"),
        ("walk-landmarks", {"model.landmark.form": "off"}, "recognition_only needs landmarks"),
        ("walk-landmarks", {"training.objective.doubled": 1.0}, "doubled is 1.0, .* without a heading; leave it 0"),
        ("image-walk", {"training.objective.doubled": 1.0}, "doubled is 1.0, .* landmarks of form bayes"),
        ("obstacles-free-slips", {"training.objective.recognition": 0.0}, "doubled is 0.3, .* --recognition above 0"),
    ],
)
def test_landmarks_that_could_not_be_learned_are_refused(preset: str, wrong: dict[str, object], said: str):
    def changed(settings: Any, path: list[str], value: object) -> Any:
        name, *rest = path
        return replace(settings, **{name: changed(getattr(settings, name), rest, value) if rest else value})

    settings = PRESETS[preset][1]
    with pytest.raises(InputError, match=said):
        for path, value in wrong.items():
            settings = changed(settings, path.split("."), value)


def test_muon_is_refused_where_it_has_nothing_to_move():
    with pytest.raises(
        InputError, match=r"muon is 3.0, but there are no matrices for it; leave it 0, or use prior rays"
    ):
        changed(PRESETS["image-walk"][1], {"training.optimiser.muon": 3.0})
    assert PRESETS["walk-landmarks"][1].training.optimiser.muon == PRESETS["walk-strong"][1].training.optimiser.muon > 0
