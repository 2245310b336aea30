"""A walk as a video."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from imageio_ffmpeg import count_frames_and_secs

from gtmsm.data.record import as_clip
from gtmsm.errors import InputError
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import RoomsExperiment, set_up
from gtmsm.film import BLANK, _imagined, film_imagination, paint, parse_actions
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.recall import RecallConfig
from gtmsm.model.weights import WEIGHTS
from gtmsm.presets import PRESETS
from gtmsm.run import Run
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.physics import IDLE
from gtmsm.worlds.rooms import Rooms, RoomsConfig

CPU = torch.device("cpu")
FILM: dict[str, Any] = {
    "actions": "", "picture": None, "images": None, "places": None, "steps": 3, "tau": None, "seed": 0, "sample": False,
    "device": CPU,
}  # fmt: skip


@pytest.fixture(scope="module", params=["rotate", "walk"])
def rooms_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Untrained weights of a small model, in a run folder."""
    preset = PRESETS[request.param][1]
    assert isinstance(preset, RoomsExperiment)
    model = replace(
        preset.model, vae=FrameVAEConfig(width=16, code_size=4), recall=RecallConfig(neighbours=2, delta=1e-4)
    )
    experiment = replace(
        preset,
        world=RoomsConfig(textures="procedural", train_places=1, test_places=2, antialias=1),
        model=model,
        evaluation=EvaluationConfig(tau=8, horizon=4, clips=1, metric_poses=preset.evaluation.metric_poses),
    )
    setting = set_up(experiment, CPU)
    run = Run.create(tmp_path_factory.mktemp("runs") / request.param, request.param, setting)
    setting.build_model().save(run.folder / WEIGHTS)
    return run


def test_a_later_crop_lies_on_top_of_an_earlier_one():
    crops = torch.stack([torch.full((3, 2, 2), 0.25), torch.full((3, 2, 2), 0.75)])
    canvas = paint(crops, torch.tensor([[0, 0], [1, 1]]), size=4)
    first = [[0.25, 0.25, BLANK, BLANK]] * 2 + [[BLANK] * 4] * 2
    torch.testing.assert_close(canvas[0, 0], torch.tensor(first))
    expected = [[0.25, 0.25, BLANK, BLANK], [0.25, 0.75, 0.75, BLANK], [BLANK, 0.75, 0.75, BLANK], [BLANK] * 4]
    torch.testing.assert_close(canvas[1, 0], torch.tensor(expected))


def test_crops_cut_from_a_picture_paint_that_picture():
    picture = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0))
    corners = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    crops = torch.stack([picture[:, r : r + 2, c : c + 2] for r, c in corners.tolist()])
    assert torch.equal(paint(crops, corners, size=5)[-1], picture)


@pytest.mark.parametrize("world", [ImageWalk, Rooms])
def test_every_action_of_a_world_has_a_letter_of_its_own(world: type[ImageWalk] | type[Rooms]):
    numbers = list(world.action_keys.values())
    assert sorted(set(numbers) - {IDLE}) == list(range(len(world.action_names)))
    assert len(numbers) == len(set(numbers))


def test_letters_of_rooms_are_those_of_a_keyboard_and_a_dot_presses_none():
    said = parse_actions("f b a d l r q e .2", Rooms.action_names, Rooms.action_keys)
    assert said == [*range(8), IDLE, IDLE]


def test_an_unknown_letter_is_refused_with_the_letters_of_the_world():
    with pytest.raises(
        InputError, match=r'"x" in "f3 x"; use f \(forward\), .*e \(forward and turn right\), \. \(no key'
    ):
        parse_actions("f3 x", Rooms.action_names, Rooms.action_keys)


@pytest.mark.parametrize("actions", ["", "f2 l .2"])
def test_rooms_are_filmed_at_every_step(rooms_run: Run, tmp_path: Path, actions: str):
    told = film_imagination(rooms_run, out=tmp_path / "walk.mp4", **FILM | {"actions": actions})
    steps = 5 if actions else 3
    assert told.startswith(f"{steps} steps imagined after 8 memorised; PSNR ")
    assert count_frames_and_secs(tmp_path / "walk.mp4")[0] == steps


def test_a_walk_from_room_to_room_is_filmed_by_what_learned_in_single_ones(rooms_run: Run, tmp_path: Path):
    assert rooms_run.experiment.world.plan == "room"
    of_room, of_rooms = (
        film_imagination(rooms_run, out=tmp_path / f"{places}.mp4", **FILM | {"places": places})
        for places in (None, "rooms")
    )
    assert (
        of_rooms.startswith("3 steps imagined after 8 memorised; PSNR ")
        and of_rooms.split("\n")[0] != of_room.split("\n")[0]
    )


def test_walking_into_a_wall_is_told(rooms_run: Run, tmp_path: Path):
    told = film_imagination(rooms_run, out=tmp_path / "walk.mp4", **FILM | {"actions": "f70"})
    assert re.search(r"\nbumped at step \d+: no walls of rooms are known but those met before", told)
    assert "bumped" not in film_imagination(rooms_run, out=tmp_path / "turn.mp4", **FILM | {"actions": "l3"})


def test_an_imagined_walk_is_stopped_by_what_was_bumped_into_while_memorising():
    up, down, left, right, stay = range(5)
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    solid = torch.zeros(1, 9, 9, dtype=torch.bool)
    solid[0, 3:5, 5] = True
    world.place(torch.tensor([7]), torch.tensor([[4, 4]]), solid)
    met = [stay, right, up, right, up, right]  # twice it is stopped, and then it passes above
    past, future = as_clip(world, torch.tensor([[*met, left, down, right, right, down, right]])).split(len(met))
    model = WorldModel.load(Path(__file__).parents[1] / "weights" / "obstacles-celeba")
    with torch.no_grad():
        poses = _imagined(model, past, future, None).poses
        through = model.imagine(*model.memorise(past.x, past.a), future.a).poses
    assert ((poses - (future.true_pose - 4)).norm(dim=-1) < 0.5).all()  # in the right cells
    assert (through[:, -1] - poses[:, -1]).norm() > 1.8  # without it, it walks through three times


def test_a_sampled_dream_of_rooms_is_filmed_too(rooms_run: Run, tmp_path: Path):
    film_imagination(rooms_run, out=tmp_path / "walk.gif", **FILM | {"sample": True, "tau": 5})
    assert (tmp_path / "walk.gif").exists()


def test_a_picture_is_refused_where_there_are_rooms(rooms_run: Run, tmp_path: Path):
    with pytest.raises(InputError, match=r"walks through rooms cannot show mine\.png; leave out --picture"):
        film_imagination(rooms_run, out=tmp_path / "walk.mp4", **FILM | {"picture": Path("mine.png")})
    assert not list(tmp_path.iterdir())
