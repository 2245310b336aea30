"""Section 4.2: walking through rooms."""

import importlib.util
import math
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from gtmsm.camera import COLUMN
from gtmsm.errors import InputError
from gtmsm.worlds import rooms as rooms_module
from gtmsm.worlds.floor_map import WALL
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.physics import ACTIONS, IDLE, PhysicsConfig
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms, seeds_of
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.world import World

LEFT, RIGHT = ACTIONS.index("turn left"), ACTIONS.index("turn right")
PLANS = ["room", "rooms"] + ["maze"] * (importlib.util.find_spec("labmaze") is not None)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@cache
def plans_of(plan):
    return draw_floorplans(plan, 20, 4, load_textures("procedural"), 1)


def world_of(plan="room", n=6, seed=0, **settings):
    world = Rooms(plans_of(plan), RoomsConfig(plan=plan, textures="procedural", **settings))
    world.reset(n, seeded(seed))
    return world


def random_actions(n, steps, seed=1):
    return torch.randint(-1, 8, (n, steps), generator=seeded(seed))


def test_rooms_are_a_world():
    world = world_of()
    assert isinstance(world, World)
    assert world.agents == 6
    assert world.look().shape[1:] == world.frame_shape == (3, 32, 32)
    assert len(world.action_names) == 8


@pytest.mark.parametrize("plan", PLANS)
def test_a_walk_is_step_and_look_in_turn(plan):
    world, actions = world_of(plan), random_actions(6, 15)
    walk = world.walk(actions)
    end = world.pose
    world = world_of(plan)
    for t in range(15):
        world.step(actions[:, t])
        assert torch.equal(walk.poses[:, t], world.pose)
        assert torch.equal(walk.frames[:, t], world.look())
    assert torch.equal(end, world.pose)


def test_a_walk_goes_on_where_the_last_one_ended():
    actions = random_actions(6, 20)
    whole = world_of().walk(actions)
    world = world_of()
    parts = [world.walk(part) for part in actions.split(7, dim=1)]
    assert torch.equal(torch.cat([part.poses for part in parts], 1), whole.poses)
    assert torch.equal(torch.cat([part.frames for part in parts], 1), whole.frames)


def test_frames_as_bytes_are_the_frames(monkeypatch):
    actions = random_actions(6, 5)
    walk = world_of().walk(actions)
    monkeypatch.setattr(rooms_module, "PIXELS_AT_ONCE", 7 * 32**2)
    frames, poses = world_of().walk_bytes(actions)
    assert frames.dtype == torch.uint8
    assert torch.equal(frames.float() / 255, walk.frames)
    assert torch.equal(poses, walk.poses)


def test_travelling_with_closed_eyes_leads_to_the_same_poses():
    actions = random_actions(6, 9)
    assert torch.equal(world_of().travel(actions), world_of().walk(actions).poses)


def test_a_copy_on_another_device_has_its_agents_where_they_are():
    world, actions = world_of(), random_actions(6, 9)
    world.travel(actions)
    copy = world.to("cpu")
    assert copy is not world
    assert torch.equal(copy.travel(actions), world.travel(actions))
    assert world.to("meta").pose.device.type == "meta"


def test_the_same_seed_gives_the_same_agents():
    first, second, other = world_of(seed=3), world_of(seed=3), world_of(seed=4)
    assert torch.equal(first.pose, second.pose) and torch.equal(first.where, second.where)
    assert not torch.equal(first.pose, other.pose)


def test_agents_start_at_rest_everywhere_and_look_anywhere():
    world = world_of(n=2000)
    assert world.body.velocity.abs().max() == 0
    assert set(world.where.tolist()) == set(range(20))
    assert world.pose[:, 2].min() < 0.1 and world.pose[:, 2].max() > 2 * math.pi - 0.1


def test_without_a_generator_agents_stand_on_the_first_spots_in_order():
    world = world_of()
    world.reset(22)
    assert world.where.tolist() == [*range(20), 0, 1]
    assert torch.equal(world.pose[:20, :2], world.plans.spots[:, 0])
    assert world.pose[:, 2].abs().max() == 0


def test_41_turns_show_the_same_frame_again():
    world = world_of()
    before, heading = world.look(), world.pose[:, 2]
    walk = world.walk(torch.full((6, 41), LEFT))
    assert torch.allclose(walk.poses[:, -1, 2], heading + 2 * math.pi, atol=1e-5)
    assert (walk.frames[:, -1] - before).abs().mean() < 1e-3
    assert (walk.frames[:, 20] - before).abs().mean() > 1e-2


def test_left_then_right_show_the_same_frame_again():
    world = world_of()
    before = world.look()
    world.travel(torch.tensor([[LEFT] * 5 + [RIGHT] * 5]).repeat(6, 1))
    assert torch.equal(world.look(), before)


def test_doing_nothing_at_rest_changes_nothing():
    world = world_of()
    before = world.look()
    world.step(torch.full((6,), IDLE))
    assert torch.equal(world.look(), before)


def test_what_is_to_the_left_is_seen_on_the_left_and_grows_as_one_walks_up_to_it():
    plans = draw_floorplans("room", 1, 1, load_textures("procedural"), 0)
    tower = torch.tensor([[[0.5, 0.0, 0.2, 0.9, 0.0]]])
    paint = torch.tensor([[[1.0, 0.0, 1.0]]])
    scene = replace(plans.scene, objects=tower, object_kind=torch.full((1, 1), COLUMN), object_colour=paint)
    world = Rooms(replace(plans, scene=scene), RoomsConfig(textures="procedural", objects=1))

    def columns_painted():
        red, green, blue = world.look()[0]
        return ((red > 0.3) & (blue > 0.3) & (green < 0.1)).float().mean(0)

    columns = torch.arange(32.0)
    shares = []
    for heading in (-0.3, 0.0, 0.3):
        world.place(torch.tensor([0]), torch.tensor([[-1.0, 0.0, heading]]))
        painted = columns_painted()
        shares.append((painted * columns).sum() / painted.sum())
    assert shares[0] < 12 < shares[1] < 20 < shares[2]

    world.place(torch.tensor([0]), torch.tensor([[-1.0, 0.0, 0.0]]))
    before = columns_painted().sum()
    world.travel(torch.zeros(1, 5, dtype=torch.long))
    assert columns_painted().sum() > 1.3 * before


@pytest.mark.parametrize("plan", PLANS)
def test_nobody_leaves_a_place_or_enters_an_object(plan):
    world = world_of(plan, n=200)
    start = world.plans.region_at(world.where, world.pose[:, :2])
    assert (start >= 0).all()
    held = random_actions(200, 30).clamp(min=0).repeat_interleave(5, 1)
    for action in held.unbind(1):
        world.step(action)
        assert world.obstacles.clearance(world.pose[:, :2]).min() > 0.15 - 5e-3
    if plan != "room":
        assert (world.plans.region_at(world.where, world.pose[:, :2]) >= 0).all()
    else:
        x0, y0, x1, y1 = world.plans.scene.walls[world.where].unbind(-1)
        left_of_wall = (x1 - x0) * (world.pose[:, 1:2] - y0) - (y1 - y0) * (world.pose[:, :1] - x0)
        assert (left_of_wall >= 0).all()


def test_agents_can_be_put_anywhere():
    world = world_of()
    pose = torch.tensor([[0.25, -0.5, 9.0]])
    world.place(torch.tensor([7]), pose)
    assert torch.equal(world.pose, pose)
    assert world.agents == 1 and world.where.tolist() == [7]
    assert world.width[0] == world.plans.width[7]


@pytest.mark.parametrize(
    ("place", "pose", "complaint"),
    [
        ([20], [[0.0, 0.0, 0.0]], "place 20 does not exist; choose from 0 to 19"),
        ([-1], [[0.0, 0.0, 0.0]], "place -1 does not exist"),
        ([0], [[math.nan, 0.0, 0.0]], "a pose is not finite"),
        ([0, 1], [[0.0, 0.0, 0.0]], "got 2 places but 1 poses|pose"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(place, pose, complaint):
    with pytest.raises((InputError, TypeError), match=complaint):
        world_of().place(torch.tensor(place), torch.tensor(pose))


def test_walks_without_agents_or_steps_are_refused():
    world = world_of()
    with pytest.raises(InputError, match="number of agents is 0; give a whole number from 1"):
        world.reset(0)
    with pytest.raises(InputError, match="for 3 agents; this world has 6"):
        world.walk(torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(InputError, match="at least one step"):
        world.walk(torch.zeros(6, 0, dtype=torch.long))


def test_places_to_learn_from_and_to_be_tested_on_differ_but_their_textures_do_not():
    config = RoomsConfig(textures="procedural")
    train, test = (draw_rooms(config, count, seed) for count, seed in ((5, seeds_of(0).train), (3, seeds_of(0).test)))
    assert (train.plans.places, test.plans.places) == (5, 3)
    assert not torch.equal(train.plans.width[:3], test.plans.width)
    assert torch.equal(train.plans.scene.textures, test.plans.scene.textures)
    again = draw_rooms(config, 5, seeds_of(0).train)
    assert torch.equal(train.plans.scene.objects, again.plans.scene.objects)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"pixels": 16}, "pixels is 16; expected 32 to 128"),
        ({"field_of_view": 180.0}, "field_of_view is 180.0; expected 20 to 140"),
        ({"antialias": 0}, "antialias is 0"),
        ({"objects": 13}, 'objects is 13; a place of plan "room" holds 0 to 12'),
        ({"train_places": 0}, "train_places is 0; give a whole number from 1 to 1000000"),
        ({"plan": "rom"}, 'plan is "rom"; did you mean|plan'),
    ],
)
def test_rooms_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises((InputError, TypeError), match=complaint):
        RoomsConfig(**settings)


@pytest.mark.parametrize(
    ("plan", "objects", "radius", "limit"),
    [
        ("room", 4, 0.25, "past an object, is 0.5 wide: make it less than 0.25"),
        ("rooms", 1, 5.0, "past an object, is 0.5 wide: make it less than 0.25"),
        ("room", 0, 1.4, "around a start, is 0.7 wide: make it less than 0.35"),
        ("rooms", 0, 0.8, "around a start, is 0.7 wide: make it less than 0.35"),
    ],
)
def test_a_body_too_wide_for_the_gaps_is_refused(plan, objects, radius, limit):
    with pytest.raises(InputError, match=f"radius is {radius}; the narrowest way, {limit}"):
        RoomsConfig(plan=plan, objects=objects, physics=PhysicsConfig(radius=radius))


@pytest.mark.parametrize("objects", [0, 4])
def test_a_body_that_just_fits_starts_in_the_free(objects):
    radius = 0.24 if objects else 0.34
    plans = draw_floorplans("rooms", 20, objects, load_textures("procedural"), 1)
    world = Rooms(plans, RoomsConfig(plan="rooms", objects=objects, physics=PhysicsConfig(radius=radius)))
    world.reset(50, seeded())
    world.step(torch.full((50,), IDLE))
    assert not world.body.touched.any()


def test_without_labmaze_a_maze_is_refused_before_anything_is_said_of_textures(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "labmaze", None)
    with pytest.raises(InputError, match='plan "maze" needs labmaze'):
        draw_rooms(RoomsConfig(plan="maze"), 1, 0)
    assert capsys.readouterr() == ("", "")


# ---- maps


@pytest.mark.parametrize("plan", PLANS)
def test_a_map_has_its_size_and_dark_walls(plan):
    picture = world_of(plan).map(0, 200).pixels()
    assert picture.shape == (200, 200, 3)
    assert (picture == np.array(WALL)).all(-1).any()


def test_north_is_up_and_east_is_right_on_a_map():
    world = world_of()
    middle = world.plans.scene.walls[0, :4, :2].mean(0)
    blank, marks = world.map(0, 200), []
    for offset in ((1.0, 0.0), (0.0, 1.0)):
        marked = blank.dots((middle + torch.tensor(offset))[None], (1, 2, 3)).pixels()
        rows, columns = np.nonzero((marked != blank.pixels()).any(-1))
        marks.append((rows.mean(), columns.mean()))
    (east_row, east_column), (north_row, north_column) = marks
    assert east_column > north_column and north_row < east_row


def test_drawing_on_a_map_leaves_the_map_as_it_was():
    world = world_of()
    blank = world.map(0, 100)
    before = blank.pixels()
    drawn = blank.path(world.travel(random_actions(6, 30))[0]).agent(world.pose[0])
    assert np.array_equal(blank.pixels(), before)
    assert not np.array_equal(drawn.pixels(), before)


def test_a_map_of_no_place_or_no_size_is_refused():
    with pytest.raises(InputError, match="place 20 does not exist"):
        world_of().map(20)
    with pytest.raises(InputError, match="size is 3; a map needs at least 16 pixels"):
        world_of().map(0, 3)


def test_a_world_says_when_something_was_in_the_way():
    world = world_of("room", n=4)
    world.travel(torch.full((4, 120), ACTIONS.index("forward")))
    assert world.bumped.shape == (4, 120)
    assert not world.bumped[:, 0].any(), "they start on free spots"
    assert world.bumped[:, -1].all(), "no room is 120 steps long"
    world.travel(torch.full((4, 3), IDLE))
    assert world.bumped.shape == (4, 3)
