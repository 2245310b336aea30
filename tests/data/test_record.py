"""A world and a walker become a clip."""

import math

import pytest
import torch

from gtmsm.data.record import as_clip, record, record_in_batches
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import MOVES, ImageWalk, ImageWalkConfig
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import SlipConfig, slipping
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, SpinWalker, SpinWalkerConfig


@pytest.fixture
def world():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageWalk(images, ImageWalkConfig(start="random"))


def recorded(world, seed=1, n=4, steps=30):
    return record(world, PoissonWalker(), n, steps, torch.Generator().manual_seed(seed))


def test_a_clip_has_a_frame_an_action_and_a_pose_for_every_step(world):
    clip = recorded(world)
    assert clip.x.shape == (4, 30, 3, 8, 8)
    assert clip.a.shape == (4, 30, 5)
    assert clip.true_pose.shape == (4, 30, 2)


def test_many_clips_come_in_portions(world, monkeypatch):
    monkeypatch.setattr("gtmsm.data.record.AT_ONCE", 3)
    clips = list(record_in_batches(world, PoissonWalker(), 7, 5, torch.Generator().manual_seed(0)))
    assert [clip.x.shape[:2] for clip in clips] == [(3, 5), (3, 5), (1, 5)]


def test_actions_are_one_hot(world):
    a = recorded(world).a
    assert a.dtype == torch.float32
    assert torch.equal(a.sum(-1), torch.ones(4, 30))
    assert torch.equal(a.max(-1).values, torch.ones(4, 30))


def test_each_pose_is_what_its_action_led_to(world):
    clip = recorded(world)
    moves = torch.tensor(MOVES)[clip.a.argmax(-1)].float()
    expected = (clip.true_pose[:, :-1] + moves[:, 1:]).clamp(0, 8)
    assert torch.equal(clip.true_pose[:, 1:], expected)


def test_each_frame_is_what_is_seen_from_its_pose(world):
    clip = recorded(world)
    for t in (0, 13, 29):
        world.place(world.image, clip.true_pose[:, t].long())
        assert torch.equal(world.look(), clip.x[:, t])


def test_the_same_seed_records_the_same_clip(world):
    first, second = recorded(world), recorded(world)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.a, second.a)
    assert torch.equal(first.true_pose, second.true_pose)


def test_another_seed_records_another_clip(world):
    assert not torch.equal(recorded(world, seed=1).a, recorded(world, seed=2).a)


@pytest.fixture
def rooms():
    plans = draw_floorplans("room", 3, 2, load_textures("procedural"), 0)
    return Rooms(plans, RoomsConfig(textures="procedural", objects=2))


def test_rooms_are_recorded_like_images(rooms):
    first, second = (record(rooms, ScavengerWalker(), 2, 12, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.x.shape == (2, 12, 3, 32, 32)
    assert first.a.shape == (2, 12, 8)
    assert first.true_pose.shape == (2, 12, 3)
    assert torch.equal(first.x, second.x)


def test_pressing_no_key_is_the_zero_vector(rooms):
    rooms.reset(1)
    a = as_clip(rooms, torch.tensor([[0, -1, 7]])).a[0]
    assert a.sum(-1).tolist() == [1, 0, 1]
    assert a.argmax(-1).tolist() == [0, 0, 7]


def test_true_steps_lead_from_cell_to_cell(world):
    clip = recorded(world)
    assert torch.equal(clip.true_step[:, 1:], clip.true_pose[:, 1:] - clip.true_pose[:, :-1])
    world.reset(4, torch.Generator().manual_seed(1))
    assert torch.equal(clip.true_start, world.pose)


def test_true_steps_in_rooms_are_those_that_the_agent_feels(rooms):
    turn_left = rooms.action_names.index("turn left")
    rooms.reset(2, torch.Generator().manual_seed(2))
    start = rooms.pose
    clip = as_clip(rooms, torch.full((2, 5), turn_left))
    expected = torch.tensor([0.0, 0.0, 2 * math.pi / 41]).expand(2, 5, 3)
    torch.testing.assert_close(clip.true_step, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(clip.true_start, start, rtol=0, atol=1e-5)


def test_walking_ahead_is_a_step_ahead_wherever_one_looks(rooms):
    spot = rooms.plans.spots[0, 0]
    for heading in (0.0, 1.0, 2.0, -2.5):
        rooms.place(torch.tensor([0]), torch.cat([spot, torch.tensor([heading])])[None])
        step = as_clip(rooms, torch.tensor([[0]])).true_step[0, 0]
        assert step[0] > 0.01
        torch.testing.assert_close(step[1:], torch.zeros(2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("obstacles", [0, 2])
@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_random_numbers_of_a_walk_on_an_image_are_drawn_where_the_generator_is(obstacles, slip):
    def recorded_on(device):
        generator = torch.Generator().manual_seed(1)
        images = torch.zeros(5, 3, 32, 32, dtype=torch.uint8, device=device)
        world = ImageWalk(images, ImageWalkConfig(start="random", obstacles=obstacles))
        clip = record(slipping(world, SlipConfig(probability=slip)), PoissonWalker(), 3, 20, generator)
        return clip, generator.get_state()

    (here, after), (elsewhere, after_elsewhere) = recorded_on("cpu"), recorded_on("meta")
    assert elsewhere.x.device.type == elsewhere.a.device.type == "meta"
    assert (elsewhere.x.shape, elsewhere.a.shape) == (here.x.shape, here.a.shape)
    assert torch.equal(after, after_elsewhere)


@pytest.mark.parametrize("walker", [PoissonWalker(actions=8), SpinWalker(), SpinWalker(SpinWalkerConfig(pauses=True))])
def test_random_numbers_of_a_walk_in_rooms_are_drawn_where_the_generator_is(walker, rooms):
    def walked_on(device):
        generator = torch.Generator().manual_seed(1)
        world = Rooms(rooms.plans.to(device), RoomsConfig())
        world.reset(3, generator)
        return world.travel(walker(world, 2, generator)), generator.get_state()

    (here, after), (elsewhere, after_elsewhere) = walked_on("cpu"), walked_on("meta")
    assert elsewhere.device.type == "meta" and elsewhere.shape == here.shape
    assert torch.equal(after, after_elsewhere)


def test_a_scavenger_plans_its_walk_where_the_generator_is(rooms, monkeypatch):
    here, elsewhere = rooms, rooms.to("meta")
    monkeypatch.setattr(elsewhere, "to", {torch.device("cpu"): here}.__getitem__)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    actions = [ScavengerWalker()(world, 5, chance) for world, chance in zip((here, elsewhere), generators, strict=True)]
    assert [a.device.type for a in actions] == ["cpu", "meta"]
    assert torch.equal(*(chance.get_state() for chance in generators))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
@pytest.mark.parametrize("walker", [PoissonWalker(actions=8), ScavengerWalker()])
def test_a_seed_of_the_cpu_gives_the_same_actions_on_a_gpu(walker, rooms):
    here, there = (
        record(world, walker, 4, 60, torch.Generator().manual_seed(1)) for world in (rooms, rooms.to("cuda"))
    )
    assert there.x.is_cuda
    assert torch.equal(here.a, there.a.cpu())
    torch.testing.assert_close(here.true_pose, there.true_pose.cpu(), rtol=0, atol=1e-3)
