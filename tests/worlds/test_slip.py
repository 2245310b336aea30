"""Actions that go wrong now and then."""

from functools import cache

import pytest
import torch

from gtmsm.data.record import one_hot, record
from gtmsm.data.windows import record_windows
from gtmsm.errors import InputError
from gtmsm.evaluation.examine import examiner_for
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.physics import ACTIONS, IDLE
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import SlipConfig, Slipping, slipping, unwrapped
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, SpinWalker
from gtmsm.worlds.world import World

STAY = 4
KINDS = ["images", "obstacles", "rooms"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@cache
def plans():
    return draw_floorplans("room", 5, 4, load_textures("procedural"), 1)


def bare(kind):
    if kind == "rooms":
        return Rooms(plans(), RoomsConfig(textures="procedural", antialias=1))
    images = torch.randint(0, 256, (6, 3, 32, 32), generator=seeded(), dtype=torch.uint8)
    return ImageWalk(images, ImageWalkConfig(obstacles=4 * (kind == "obstacles")))


def slippery(kind, probability=0.3, repeat=0.5):
    return Slipping(bare(kind), SlipConfig(probability=float(probability), repeat=float(repeat)))


def actions_of(world, n, steps, seed=1):
    return torch.randint(len(world.action_names), (n, steps), generator=seeded(seed))


def same(first, second):
    return torch.equal(first.frames, second.frames) and torch.equal(first.poses, second.poses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slippery_world_is_a_world_like_the_one_inside(kind):
    world, inside = slippery(kind), bare(kind)
    world.reset(5, seeded())
    inside.reset(5, seeded())
    assert isinstance(world, World)
    assert world.agents == 5
    assert torch.equal(world.pose, inside.pose)
    assert torch.equal(world.look(), inside.look())
    for name in ("action_names", "action_keys", "frame_shape"):
        assert getattr(world, name) == getattr(inside, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slippery_walk_is_step_and_look_in_turn(kind):
    world = slippery(kind)
    actions = actions_of(world, 3, 12)
    world.reset(3, seeded(2))
    walk, slipped = world.walk(actions), world.slipped
    assert slipped.any() and not slipped.all()
    world.reset(3, seeded(2))
    for t in range(12):
        world.step(actions[:, t])
        assert torch.equal(walk.poses[:, t], world.pose)
        assert torch.equal(walk.frames[:, t], world.look())
        assert torch.equal(slipped[:, t : t + 1], world.slipped)


@pytest.mark.parametrize("kind", KINDS)
def test_without_slips_it_is_the_bare_world_to_the_bit(kind):
    world, inside = slippery(kind, probability=0), bare(kind)
    chances = seeded(2), seeded(2)
    actions = actions_of(world, 4, 12)
    for either, chance in zip((world, inside), chances, strict=True):
        either.reset(4, chance)
    assert same(world.walk(actions), inside.walk(actions))
    assert torch.equal(*(chance.get_state() for chance in chances))
    assert not world.slipped.any()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_generator_nothing_slips(kind):
    world, inside = slippery(kind, probability=1), bare(kind)
    actions = actions_of(world, 3, 8)
    world.reset(3, seeded())
    for either in (world, inside):
        either.reset(3)
    assert same(world.walk(actions), inside.walk(actions))
    assert not world.slipped.any()


@pytest.mark.parametrize("kind", KINDS)
def test_who_always_drops_an_action_only_rests(kind):
    world, inside = slippery(kind, probability=1, repeat=0), bare(kind)
    world.reset(3, seeded())
    inside.reset(3, seeded())
    rest = torch.full((3, 8), IDLE if kind == "rooms" else STAY)
    assert same(world.walk(actions_of(world, 3, 8)), inside.walk(rest))
    assert world.slipped.all()


@pytest.mark.parametrize("kind", KINDS)
def test_who_always_repeats_an_action_takes_every_step_twice(kind):
    world, inside = slippery(kind, probability=1, repeat=1), bare(kind)
    actions = actions_of(world, 3, 8)
    world.reset(3, seeded())
    inside.reset(3, seeded())
    walk = world.walk(actions)
    both = inside.walk(actions.repeat_interleave(2, 1))
    assert torch.equal(walk.frames, both.frames[:, 1::2])
    assert torch.equal(walk.poses, both.poses[:, 1::2])


@pytest.mark.parametrize("repeat", [0.0, 0.25, 1.0])
def test_actions_go_wrong_as_often_as_they_should(repeat):
    images = torch.zeros(1, 3, 208, 208, dtype=torch.uint8)
    world = Slipping(ImageWalk(images, ImageWalkConfig(size=208, stride=1)), SlipConfig(probability=0.2, repeat=repeat))
    world.reset(500, seeded())
    start = world.pose[:, None]
    poses = world.walk(torch.full((500, 40), 3)).poses
    moved = (poses - torch.cat([start, poses[:, :-1]], 1))[..., 1]
    assert world.slipped.float().mean() == pytest.approx(0.2, abs=0.01)
    assert (moved == 2).float().mean() == pytest.approx(0.2 * repeat, abs=0.01)
    assert (moved == 0).float().mean() == pytest.approx(0.2 * (1 - repeat), abs=0.01)
    assert torch.equal(moved != 1, world.slipped)


def test_momentum_goes_on_where_an_action_is_dropped():
    world = slippery("rooms", probability=1, repeat=0)
    inside = unwrapped(world)
    world.reset(1, seeded())
    inside.place(torch.tensor([0]), torch.cat([plans().spots[0, 0], torch.zeros(1)])[None])
    inside.travel(torch.zeros(1, 3, dtype=torch.long))
    before = world.pose
    world.step(torch.tensor([ACTIONS.index("turn left")]))
    assert (world.pose - before)[0, :2].norm() > 0.01
    assert world.pose[0, 2] == before[0, 2]


def test_a_bump_during_either_of_two_steps_counts_and_one_that_did_not_happen_does_not():
    world, once = bare("rooms"), bare("rooms")
    actions, twice = actions_of(world, 5, 60), torch.rand(5, 60, generator=seeded(3)) < 0.5
    actions[:, 10:] = 0
    for either in (world, once):
        either.reset(5, seeded())
    world.travel(actions, twice)
    bumped = []
    for action, again in zip(actions.unbind(1), twice.unbind(1), strict=True):
        before = once.body
        once.step(action)
        first = once.body
        once.step(action)
        bumped.append(first.touched | (once.body.touched & again))
        once.body = type(before)(
            *(
                torch.where(again if late.ndim == 1 else again[:, None], late, early)
                for late, early in zip(vars(once.body).values(), vars(first).values(), strict=True)
            )
        )
    assert world.bumped.any() and not world.bumped.all()
    assert torch.equal(world.bumped, torch.stack(bumped, 1))
    assert torch.equal(world.pose, once.pose)


def test_a_clip_records_what_was_chosen_and_where_that_really_led():
    world = slippery("images")
    clip = record(world, PoissonWalker(), 6, 50, seeded(4))
    inside, generator = bare("images"), seeded(4)
    inside.reset(6, generator)
    chosen = PoissonWalker()(inside, 50, generator)
    assert torch.equal(clip.a, one_hot(chosen, 5))
    assert not torch.equal(clip.true_pose, inside.walk(chosen).poses)
    shown = bare("images")
    for t in (0, 20, 49):
        shown.place(world.world.image, clip.true_pose[:, t].long())
        assert torch.equal(shown.look(), clip.x[:, t])


@pytest.mark.parametrize("walker", [SpinWalker(), ScavengerWalker()])
def test_pools_of_slippery_clips_are_the_same_for_the_same_seed(walker):
    first, again, other = (record_windows(slippery("rooms"), walker, 2, 20, seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.frames, again.frames)
    assert torch.equal(first.true_pose, again.true_pose)
    assert not torch.equal(first.true_pose, other.true_pose)
    steady = record_windows(bare("rooms"), walker, 2, 20, seeded())
    assert torch.equal(first.a, steady.a)
    assert not torch.equal(first.true_pose, steady.true_pose)


def test_the_world_inside_can_be_had():
    world = slippery("rooms")
    assert unwrapped(world) is world.world
    assert unwrapped(world.world) is world.world
    assert examiner_for(world, tau=1).world is world.world


def test_a_world_is_only_wrapped_where_something_can_go_wrong():
    world = bare("images")
    assert slipping(world, SlipConfig()) is world
    assert isinstance(slipping(world, SlipConfig(probability=0.1)), Slipping)


@pytest.mark.parametrize("name", ["probability", "repeat"])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_what_is_no_share_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; expected a share from 0 to 1"):
        SlipConfig(**{name: value})


def test_images_give_no_bytes():
    with pytest.raises(InputError, match="ImageWalk gives no bytes; use `walk`, or Rooms"):
        slippery("images").walk_bytes(torch.zeros(1, 3, dtype=torch.long))


def test_nobody_slips_twice():
    # Where types are checked as the tests run, the check speaks first, with a TypeError.
    with pytest.raises((InputError, TypeError), match="actions cannot slip in a Slipping|world"):
        Slipping(slippery("images"), SlipConfig())
