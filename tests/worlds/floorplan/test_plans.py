"""Places drawn from a seed."""

import importlib.util
import sys
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch

from gtmsm.camera import BOX, SPHERE
from gtmsm.errors import InputError
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.floorplan.plans import MOST_OBJECTS
from gtmsm.worlds.floorplan.regions import split_into_regions
from gtmsm.worlds.physics import Obstacles
from gtmsm.worlds.textures import load_textures

KINDS = [
    "room",
    "rooms",
    pytest.param(
        "maze", marks=pytest.mark.skipif(importlib.util.find_spec("labmaze") is None, reason="labmaze is not installed")
    ),
]


@cache
def plans_of(kind, objects=4, count=60, seed=1):
    return draw_floorplans(kind, count, objects, load_textures("procedural"), seed)


def clearances(plans, points):
    """How far every point is from the nearest wall or object of its place."""
    return Obstacles.of(plans.scene).clearance(points)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_places(kind):
    first, second, other = (draw_floorplans(kind, 5, 3, load_textures("procedural"), seed) for seed in (1, 1, 2))
    for field in fields(first):
        if field.name != "scene":
            assert torch.equal(getattr(first, field.name), getattr(second, field.name))
    assert torch.equal(first.scene.walls, second.scene.walls)
    assert torch.equal(first.scene.objects, second.scene.objects)
    assert not torch.equal(first.scene.objects, other.scene.objects)


@pytest.mark.parametrize("kind", KINDS)
def test_spots_are_free_of_walls_and_objects(kind):
    plans = plans_of(kind)
    assert clearances(plans, plans.spots).min() >= 0.35 - 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_spots_lie_in_rooms(kind):
    plans = plans_of(kind)
    place = torch.arange(plans.places)
    for spot in range(plans.spots.shape[1]):
        region = plans.region_at(place, plans.spots[:, spot])
        assert (region >= 0).all() and plans.is_room[place, region].all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objects", [4, 12])
def test_objects_stand_apart_and_leave_room_to_walk(kind, objects):
    scene = plans_of(kind, objects, count=20).scene
    centre = scene.objects[..., :2]
    reach = scene.objects[..., 2] * torch.where(scene.object_kind == BOX, 2**0.5, 1.0)
    apart = torch.cdist(centre, centre) - reach[:, None] - reach[:, :, None]
    apart += 100 * torch.eye(objects)
    assert apart.min() >= 0.5 - 1e-5
    walls = Obstacles(**{name: value[:, : scene.walls.shape[1]] for name, value in vars(Obstacles.of(scene)).items()})
    assert (walls.clearance(centre) - reach).min() >= 0.5 - 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_objects_have_the_sizes_of_furniture(kind):
    scene = plans_of(kind).scene
    _, _, radius, height, _ = scene.objects.unbind(-1)
    assert radius.min() >= 0.12 and radius.max() <= 0.3
    assert height.min() >= 0.25 and height.max() <= 0.9
    spheres = scene.object_kind == SPHERE
    assert torch.allclose(height[spheres], 2 * radius[spheres])
    assert scene.object_colour.min() >= 0 and scene.object_colour.max() <= 1


def test_single_rooms_are_closed_convex_polygons_of_four_to_eight_corners():
    plans = plans_of("room")
    corners = set()
    for walls in plans.scene.walls:
        walls = walls[(walls[:, :2] != walls[:, 2:]).any(1)]
        corners.add(len(walls))
        assert torch.equal(walls[:, 2:], walls[:, :2].roll(-1, 0))
        along = walls[:, 2:] - walls[:, :2]
        follower = along.roll(-1, 0)
        assert (along[:, 0] * follower[:, 1] - along[:, 1] * follower[:, 0] > 0).all()
        assert along.norm(dim=1).min() > 0.4
    assert corners == {4, 5, 6, 7, 8}


def test_single_rooms_are_three_to_six_units_wide():
    width = plans_of("room").width
    assert width.min() > 2.8 and width.max() < 6.5 and 4 < width.mean() < 5


def test_some_rooms_have_walls_alike_and_others_do_not():
    plans = plans_of("room")
    exists = (plans.scene.walls[..., :2] != plans.scene.walls[..., 2:]).any(-1)
    alike = [len(set(row[there].tolist())) == 1 for row, there in zip(plans.scene.wall_texture, exists, strict=True)]
    assert 0.3 < np.mean(alike) < 0.7


@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_region_leads_to_every_other(kind):
    plans = plans_of(kind)
    for place in range(0, plans.places, 6):
        regions = int(plans.region[place].max()) + 1
        for start in range(regions):
            for goal in range(regions):
                here, doors = start, 0
                while here != goal:
                    behind = plans.doorway[place, here, goal, 2:]
                    here, doors = int(plans.region_at(torch.tensor([place]), behind[None])), doors + 1
                    assert doors <= regions


@pytest.mark.parametrize("kind", KINDS[1:])
def test_doors_are_wide_enough_to_pass(kind):
    plans = plans_of(kind)
    obstacles = Obstacles.of(plans.scene)
    here, there = (plans.doorway[..., :2].flatten(1, 2), plans.doorway[..., 2:].flatten(1, 2))
    exists = (here != there).any(-1)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        clearance = obstacles.clearance(here + share * (there - here))
        assert clearance[exists].min() >= 0.3


def test_two_to_four_rooms_hang_together():
    plans = plans_of("rooms")
    assert set(plans.is_room.sum(1).tolist()) == {2, 3, 4}


def test_neighbouring_rooms_have_other_floors():
    plans = plans_of("rooms")
    for place in range(plans.places):
        tiles = plans.region[place] >= 0
        floors = {
            (int(region), int(floor))
            for region, floor in zip(plans.region[place][tiles], plans.scene.floor_texture[place][tiles], strict=True)
        }
        rooms = [floor for region, floor in floors if plans.is_room[place, region]]
        assert len(rooms) == len(set(rooms)) == int(plans.is_room[place].sum())


def test_a_grid_is_cut_into_rectangles_that_cover_it_once():
    grid = np.array([[1, 1, 0, 2], [1, 1, -1, 2], [-1, -1, -1, 0], [0, 0, 0, 0]])
    regions = split_into_regions(grid)
    areas = (regions.bounds[:, 2:] - regions.bounds[:, :2]).prod(1)
    assert areas.sum() == (grid >= 0).sum()
    for number, kind in enumerate(regions.kind):
        assert (grid[regions.of_cell == number] == kind).all()
    assert ((regions.of_cell < 0) == (grid < 0)).all()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("rooom", 1, 4), 'plan is "rooom"; did you mean "room"'),
        (("room", 0, 4), "number of places is 0; give a whole number from 1"),
        (("room", 1, -1), 'objects is -1; a place of plan "room" holds 0 to 12'),
        (("room", 1, 50), 'objects is 50; a place of plan "room" holds 0 to 12'),
    ],
)
def test_places_that_cannot_be_built_are_refused(arguments, complaint):
    with pytest.raises((InputError, TypeError), match=complaint + "|rooom"):
        draw_floorplans(*arguments, load_textures("procedural"), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_objects_fit_as_is_promised(kind):
    plans = plans_of(kind, MOST_OBJECTS, count=20)
    assert plans.scene.objects.shape[1] == MOST_OBJECTS


def test_rooms_may_be_empty():
    assert plans_of("room", 0, count=3).scene.objects.shape == (3, 0, 5)


def test_without_labmaze_a_maze_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "labmaze", None)
    with pytest.raises(InputError, match=r'plan "maze" needs labmaze, which is not installed; run: pip install'):
        draw_floorplans("maze", 1, 0, load_textures("procedural"), 0)
