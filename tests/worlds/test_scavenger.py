"""Walking from object to object without bumping."""

import importlib.util
from functools import cache

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker, ScavengerWalkerConfig
from gtmsm.worlds.textures import load_textures

PLANS = ["room", "rooms"] + ["maze"] * (importlib.util.find_spec("labmaze") is not None)
CLIPS = 30


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@cache
def plans_of(plan, objects=4):
    return draw_floorplans(plan, 60, objects, load_textures("procedural"), 1)


def world_of(plan="room", objects=4):
    world = Rooms(plans_of(plan, objects), RoomsConfig(plan=plan, textures="procedural", objects=objects))
    world.reset(CLIPS, seeded())
    return world


def lived(plan, steps, **settings):
    """A scavenger's actions, and what came of them: poses and touches."""
    world = world_of(plan)
    actions, bodies = foreseen(world, steps, **settings)
    return world, actions, torch.stack([body.pose for body in bodies], 1), torch.stack([b.touched for b in bodies], 1)


def foreseen(world, steps, **settings):
    """A scavenger's actions, and the bodies it foresaw while it planned them."""
    bodies, step = [], world.physics.step

    def noted(body, action, obstacles=None):
        made = step(body, action, obstacles)
        if obstacles is not None:  # else it only asks what would happen
            bodies.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.physics, "step", noted)
        actions = ScavengerWalker(ScavengerWalkerConfig(**settings))(world, steps, seeded(1))
    return actions, bodies


@cache
def long_walks(plan):
    return lived(plan, {"room": 250, "rooms": 250, "maze": 400}[plan])


@pytest.mark.parametrize("plan", PLANS)
def test_a_scavenger_hardly_ever_bumps(plan):
    _, _, _, touched = long_walks(plan)
    assert touched.float().mean() < 0.001


@pytest.mark.parametrize("plan", PLANS)
def test_a_scavenger_never_stands_still_for_long(plan):
    _, _, poses, _ = long_walks(plan)
    moved = (poses[:, 40:, :2] - poses[:, :-40, :2]).norm(dim=-1)
    paths = (poses[:, 1:, :2] - poses[:, :-1, :2]).norm(dim=-1).unfold(1, 40, 1).sum(-1)
    assert paths.min() > 0.2
    assert moved.mean() > 0.8


def test_a_scavenger_gets_near_most_objects_and_around_most_of_a_room():
    world, _, poses, _ = long_walks("room")
    for points, near, share in (
        (world.plans.scene.objects[world.where, :, :2], 1.0, 0.9),
        (world.plans.spots[world.where], 0.75, 0.75),
    ):
        distance = torch.cdist(points, poses[..., :2]).amin(-1)
        assert (distance < near).float().mean() > share


@pytest.mark.parametrize("plan", PLANS[1:])
def test_a_scavenger_enters_other_rooms_and_comes_back(plan):
    world, _, poses, _ = long_walks(plan)
    entered, returned = [], []
    for agent in range(CLIPS):
        place = world.where[agent].expand(poses.shape[1])
        regions = world.plans.region_at(place, poses[agent, :, :2])
        rooms = [region for region in regions.tolist() if world.plans.is_room[world.where[agent], region]]
        visits = [room for last, room in zip([None, *rooms], rooms, strict=False) if room != last]
        entered.append(len(set(visits)) >= 2)
        returned.append(len(visits) > len(set(visits)))
    assert sum(entered) > 0.9 * CLIPS
    assert sum(returned) > 0.8 * CLIPS


def test_planning_a_walk_leaves_the_world_as_it_is():
    world = world_of()
    body, where = world.body, world.where
    ScavengerWalker()(world, 5, seeded())
    assert world.body is body and world.where is where


def test_the_world_does_what_the_scavenger_foresaw():
    world = world_of()
    actions, bodies = foreseen(world, 20)
    assert torch.equal(world.travel(actions), torch.stack([body.pose for body in bodies], 1))


def test_the_same_seed_walks_the_same_way():
    first, second, other = (ScavengerWalker()(world_of(), 10, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_who_may_bump_does():
    _, _, _, touched = lived("room", 50, may_bump=True)
    assert 0.02 < touched.float().mean() < 0.6


def test_random_actions_take_their_share_of_the_steps():
    without, always = (lived("room", 25, exploration=share)[1] for share in (0.0, 1.0))
    strafes = torch.tensor([1, 2, 3, -1])
    assert not torch.isin(without, strafes).any()
    assert torch.isin(always, strafes).float().mean() > 0.25


def test_an_empty_room_is_walked_from_spot_to_spot():
    world = world_of(objects=0)
    actions = ScavengerWalker()(world, 50, seeded())
    assert world.travel(actions)[..., :2].std(1).mean() > 0.3


def test_a_scavenger_needs_rooms():
    pictures = ImageWalk(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), ImageWalkConfig())
    with pytest.raises(InputError, match="walks in Rooms, not in ImageWalk"):
        ScavengerWalker()(pictures, 3, seeded())


@pytest.mark.parametrize("name", ["exploration", "spot_share"])
def test_what_is_no_share_is_refused(name):
    with pytest.raises(InputError, match=f"{name} is 1.5; expected a share from 0 to 1"):
        ScavengerWalkerConfig(**{name: 1.5})
