"""Plans lead where they say, around what is in the way, or say that they do not."""

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gtmsm import Explorer, InputError, PlanConfig, WorldModel, WorldModelConfig
from gtmsm.data.record import record
from gtmsm.explore import TravelConfig, travel
from gtmsm.model.motion import MotionConfig
from gtmsm.model.motion.turning import Gliding
from gtmsm.model.planning import Terrain, Walked, course, find_goal, goal
from gtmsm.model.planning.beam import _cells
from gtmsm.model.planning.gait import brake, gait
from gtmsm.model.planning.goal import _compared
from gtmsm.tensors import Belief
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

WEIGHTS = Path(__file__).parents[2] / "weights"
UP, DOWN, LEFT, RIGHT, STAY = range(5)
SMALL = PlanConfig(candidates=256, horizon=32, rounds=4, elite=32)


@pytest.fixture(scope="module")
def model():
    """Steps of one along either axis, no walls."""
    made = WorldModel(WorldModelConfig(motion=MotionConfig(kind="free")), (3, 8, 8), 5)
    made.motion.M.data = torch.tensor([[-1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 0.0]])
    return made.eval().requires_grad_(False)


def memory_of(model, actions, seed=0):
    """What a walk of these actions leaves, every frame another one, and where it was before and after each step."""
    frames = torch.rand(1, len(actions), 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    a = torch.eye(5)[torch.tensor(actions)][None]
    memory, here = model.memorise(frames, a)
    path = memory.place.mean[0]
    return memory, here, frames[0], Walked(torch.cat([torch.zeros(1, 2), path[:-1]]), a[0], path)


SQUARE = [STAY] + [RIGHT] * 4 + [DOWN] * 4 + [LEFT] * 4 + [UP] * 3


def test_a_plan_goes_back_the_way_it_came_where_no_other_ground_is_known(model):
    memory, here, frames, walked = memory_of(model, [STAY] + [RIGHT] * 4 + [DOWN] * 4 + [LEFT] * 4)
    plan = model.plan(memory, here, frames[0], walked, SMALL)
    assert plan.found and plan.choices == (RIGHT,) * 4 + (UP,) * 4 + (LEFT,) * 4
    torch.testing.assert_close(plan.poses[-1], torch.zeros(2))
    assert plan.frames.shape == (12, 3, 8, 8) and plan.confidence == 1


def test_ground_that_is_known_to_be_open_is_a_shorter_way(model):
    memory, here, frames, walked = memory_of(model, [STAY] + [RIGHT] * 4 + [DOWN] * 4 + [LEFT] * 4)
    across = torch.stack([torch.arange(1.0, 4.0), torch.zeros(3)], 1)
    assert model.plan(memory, here, frames[0], replace(walked, open=across), SMALL).choices == (UP,) * 4
    beyond = model.plan(memory, here, torch.tensor([6.0, 0.0]), replace(walked, open=across + across[[0]] * 4), SMALL)
    assert beyond.found and beyond.choices == (DOWN,) * 2


def test_a_loop_is_left_by_its_shorter_side(model):
    memory, here, frames, walked = memory_of(model, SQUARE)
    assert model.plan(memory, here, frames[0], walked, SMALL).choices == (UP,)


def test_a_pose_is_a_goal_like_a_picture(model):
    memory, here, frames, walked = memory_of(model, SQUARE)
    by_pose = model.plan(memory, here, torch.tensor([4.0, 4.0]), walked, SMALL)
    by_picture = model.plan(memory, here, frames[8], walked, SMALL)
    assert by_pose.choices == by_picture.choices and len(by_pose.choices) == 7


def test_standing_at_the_goal_there_is_nothing_to_do(model):
    memory, here, frames, walked = memory_of(model, SQUARE)
    plan = model.plan(memory, here, here.mean[0], walked, SMALL)
    assert plan.found and plan.choices == () and plan.poses.shape == (0, 2)


def test_an_explorer_of_vectors_plans_with_what_it_did_or_with_what_it_is_given():
    model = WorldModel(WorldModelConfig(motion=MotionConfig(kind="free")), (3, 8, 8), 2)
    model.motion.M.data = torch.eye(2)
    explorer = Explorer(model.eval().requires_grad_(False))
    frames = torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    explorer.step(frames[0])
    for frame, action in zip(frames[1:], 4 * [[0.5, 0.5], [0.5, -0.5]], strict=True):
        explorer.step(frame, action)
    onwards = explorer.plan(torch.tensor([6.0, 0.0]), replace(SMALL, margin=4.0))
    assert onwards.found and {tuple(a) for a in onwards.actions.tolist()} == {(0.5, 0.5), (0.5, -0.5)}
    given = torch.tensor([[-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    back = explorer.plan(frames[0], replace(SMALL, margin=1.0), choices=given)
    assert back.found and back.choices == (0,) * 4


def test_views_of_little_contrast_do_not_pass_for_each_other():
    stripes = (0.05 * torch.tensor([-1.0, 1.0])).repeat_interleave(8).expand(3, 16, 16)
    picture, turned = 0.5 + stripes, 0.5 + stripes.transpose(1, 2)
    assert _compared(picture, turned[None]).known < 0.1
    fit = _compared(picture, torch.stack([turned, 0.8 * picture]))
    assert fit.best == 1 and fit.known == pytest.approx(1)


def test_what_was_never_seen_is_a_place_that_is_not_known(model):
    memory, here, _, walked = memory_of(model, SQUARE)
    plan = model.plan(memory, here, torch.tensor([20.0, 0.0]), walked, SMALL)
    assert not plan.found and plan.choices == () and plan.confidence == 0
    assert plan.reason == "I do not know this place: the goal is 16.0 steps away from anything memorised"


def test_a_goal_beyond_the_horizon_is_approached(model):
    memory, here, frames, walked = memory_of(model, [STAY] + [RIGHT] * 40)
    plan = model.plan(memory, here, frames[0], walked, SMALL)
    assert not plan.found and "no way found within 32 steps" in plan.reason
    assert plan.poses[-1, 1] < 20 and set(plan.choices) == {LEFT}


def test_the_same_seed_gives_the_same_plan(model):
    memory, here, frames, walked = memory_of(model, SQUARE)
    plans = [model.plan(memory, here, frames[6], walked, SMALL) for _ in range(2)]
    assert plans[0].choices == plans[1].choices


@pytest.mark.parametrize(("part", "work"), [(4, 1), (16, 1), (16, 10**6)])
def test_how_many_steps_are_unrolled_at_once_changes_no_plan(model, monkeypatch, part, work):
    memory, here, frames, walked = memory_of(model, SQUARE)
    usual = model.plan(memory, here, frames[6], walked, SMALL)
    monkeypatch.setattr(course, "PART", part)
    monkeypatch.setattr(course, "WORK", work)
    assert model.plan(memory, here, frames[6], walked, SMALL).choices == usual.choices


def test_every_position_has_a_square_even_one_that_is_no_number(model):
    terrain = Terrain.of(model, memory_of(model, SQUARE)[0], None, PlanConfig(), torch.eye(5))
    rows, columns = terrain.far.shape
    far = torch.tensor([[-1e30, -1e30], [1e30, 1e30], [-math.inf, math.inf], [math.nan, 0.0]])
    squares = terrain.squares(far).tolist()
    assert squares[:3] == [0, rows * columns - 1, columns - 1] and 0 <= squares[3] < rows * columns


def test_steps_that_failed_are_those_that_led_less_than_half_of_the_way(model):
    before = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    after = torch.tensor([[0.0, 1.0], [0.0, 1.1], [0.0, 2.0]])
    walked = Walked(before, torch.eye(5)[[RIGHT, RIGHT, STAY]], after)
    ends, length = walked.failed(model.motion)
    assert ends.tolist() == [[0.0, 2.0]] and length.tolist() == [1.0]


@pytest.fixture(scope="module")
def obstacles():
    """A model that recognises places, and a picture with obstacles in the way."""
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    solid = torch.zeros(1, 9, 9, dtype=torch.bool)
    solid[0, 3:6, 5] = True
    world.place(torch.tensor([7]), torch.tensor([[4, 4]]), solid)
    explorer = Explorer(WorldModel.load(WEIGHTS / "obstacles-celeba"))

    def act(action):
        world.step(torch.tensor([action]))
        return world.look()[0]

    # Bumping into it from the left, from the right and from below.
    around = [
        STAY,
        RIGHT,
        UP,
        RIGHT,
        UP,
        RIGHT,
        RIGHT,
        DOWN,
        DOWN,
        LEFT,
        RIGHT,
        DOWN,
        DOWN,
        LEFT,
        LEFT,
        UP,
        LEFT,
        UP,
        UP,
    ]
    for action in around:
        explorer.step(act(action), action)
    return explorer, world, act


def test_a_journey_goes_around_what_was_bumped_into(obstacles):
    explorer, world, act = obstacles
    explorer = explorer.fork()
    seen = {tuple(p) for p in (explorer.walked.failed(explorer.model.motion)[0].round() + 4).tolist()}
    assert {(4, 5), (3, 5)} <= seen
    goal = torch.tensor([0.0, 2.0])  # two cells to the right, behind the obstacle
    plan = explorer.plan(goal)
    assert plan.found and len(plan.choices) == 6
    journey = travel(explorer, goal, act, TravelConfig(every=2))
    assert journey.arrived and world.cell[0].tolist() == [4, 6]


@pytest.mark.parametrize("slips_at", [1, 2, 3])
def test_a_journey_without_landmarks_plans_anew_as_soon_as_a_view_shows_that_a_step_was_not_made(slips_at):
    model = WorldModel.load(WEIGHTS / "image-walk-celeba").without_walls()
    world, explorer, cells = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig()), Explorer(model), []
    world.place(torch.tensor([7]), torch.tensor([[4, 1]]))

    def act(action):
        world.step(torch.tensor([action]))
        return world.look()[0]

    for action in [STAY] + 4 * [RIGHT] + 3 * [DOWN] + 3 * [UP] + 4 * [LEFT]:
        explorer.step(act(action), action)

    def slip_once(action):
        seen = act(STAY if len(cells) == slips_at else action)
        cells.append(world.cell[0].tolist())
        return seen

    below = explorer.path[0, 7]
    journey = travel(explorer, below, slip_once, TravelConfig(every=16))
    assert cells[slips_at] == cells[slips_at - 1] and cells[-1] == [7, 5]
    assert journey.arrived and journey.choices == (RIGHT,) * 5 + (DOWN,) * 3
    anew = [t for t in range(1, 8) if journey.plans[t] is not journey.plans[t - 1]]
    assert anew == [slips_at + 1]


def test_walls_end_the_ground(obstacles):
    explorer = obstacles[0]
    model, memory = explorer.model, explorer.memory.snapshot()
    terrain = Terrain.of(model, memory, None, PlanConfig(), torch.eye(5))
    inside, outside = torch.tensor([[0.0, 0.0], [3.9, 3.9]]), torch.tensor([[0.0, 5.0], [-5.2, 0.0]])
    assert not terrain.barred[terrain.squares(inside)].any() and terrain.barred[terrain.squares(outside)].all()


@pytest.fixture(scope="module")
def strong():
    """An agent with momentum that has walked ahead and turned to the left: its model, memory and place."""
    model = WorldModel.load(WEIGHTS / "walk-strong")
    actions = torch.eye(8)[[0] * 20 + [4] * 8][None]
    return model, *model.memorise(torch.rand(1, 28, 3, 32, 32, generator=torch.Generator().manual_seed(0)), actions)


def test_an_agent_with_momentum_comes_to_rest_at_the_goal(strong):
    model, memory, here = strong
    motion = model.motion
    pace = gait(motion, torch.eye(8))
    assert pace.stride == pytest.approx(2.0 * 4 / 60, rel=0.05) and pace.turn == pytest.approx(
        2 * math.pi / 41, rel=0.01
    )
    plan = model.plan(memory, here, torch.zeros(3), settings=PlanConfig(rounds=10))
    assert plan.found
    after = motion.unroll(plan.poses[None, -1], torch.zeros(1, 20, 8))[0, -1]
    assert after[:2].norm() < 2 * plan.near and after[2].abs() < 0.3


def test_a_goal_of_two_numbers_may_be_reached_with_any_heading(strong):
    model, memory, here = strong
    anyhow = model.plan(memory, here, torch.zeros(2))
    turned = model.plan(memory, here, torch.tensor([0.0, 0.0, -math.pi / 2]))
    assert anyhow.found and len(anyhow.choices) < len(turned.choices)
    with pytest.raises(InputError, match="a pose of 3 numbers, or 2 for any heading, or a picture"):
        model.plan(memory, here, torch.zeros(1))


def test_sequences_that_grow_step_by_step_stay_on_ground_that_random_ones_leave(strong):
    model, _, _ = strong
    ahead, left, right = 0, 4, 5
    walk = [ahead] * 14 + [left] * 10 + [ahead] * 14 + [right] * 10 + [ahead] * 14
    frames = torch.rand(1, len(walk), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    memory, here = model.memorise(frames, torch.eye(8)[walk][None])
    narrow = PlanConfig(candidates=64, elite=32, rounds=2, horizon=80, margin=0.15)
    assert not model.plan(memory, here, torch.zeros(2), settings=narrow).found
    plan = model.plan(memory, here, torch.zeros(2), settings=replace(narrow, beam=64))
    terrain = Terrain.of(model, memory, None, narrow, torch.eye(8))
    assert plan.found and not terrain.barred[terrain.squares(plan.poses[:, :2])].any()
    turned = model.plan(memory, here, torch.tensor([0.0, 0.0, math.pi / 2]), settings=replace(narrow, beam=64))
    assert turned.found and len(turned.choices) >= len(plan.choices)


@pytest.fixture(scope="module")
def walked_ahead(turner):
    """An agent without momentum that has gone four times ahead: its model, memory and place."""
    frames = torch.rand(1, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return turner, *turner.memorise(frames, torch.eye(4)[[0] * 4][None])


@pytest.mark.parametrize(("heading", "choices"), [(0.4, ()), (0.7, (2,)), (-0.7, (3,)), (2 * math.pi - 0.7, (3,))])
def test_of_ways_as_long_as_each_other_the_one_that_ends_nearer_to_the_heading_is_taken(walked_ahead, heading, choices):
    model, memory, here = walked_ahead
    assert model.plan(memory, here, torch.tensor([8.0, 0.0, heading])).choices == choices


def test_a_beam_turns_towards_the_way_before_it_walks_it(walked_ahead):
    model, memory, here = walked_ahead
    beam = PlanConfig(candidates=1, elite=1, rounds=1, beam=1)
    plan = model.plan(memory, here, torch.tensor([2.0, 0.0]), settings=beam)
    assert plan.found and plan.choices == (2,) * 7 + (0,) * 2  # half a turn by the larger of its turns, and back


def test_a_beam_keeps_states_apart_that_differ_in_their_heading(walked_ahead):
    model, memory, _ = walked_ahead
    terrain, goal = Terrain.of(model, memory, None, PlanConfig(), torch.eye(4)), torch.zeros(2)
    on = course.Course(model.motion, terrain, terrain.steps_to(goal), goal, model.motion.start(1), torch.eye(4))
    states = torch.tensor([[0.0, 0.0, 0.1], [0.0, 0.0, 0.1 + 2 * math.pi], [0.0, 0.0, 0.55], [0.0, 0.1, 0.1]])
    first, around, turned, aside = _cells(on, states).tolist()
    assert first == around == aside != turned


def test_who_looks_elsewhere_is_not_there(walked_ahead):
    model, memory, _ = walked_ahead
    terrain = Terrain.of(model, memory, None, PlanConfig(), torch.eye(4))
    states = torch.tensor([[8.0, 0.0, heading] for heading in (1.0, 1.4, 1.5, 1.0 - math.pi, 1.0 + 4 * math.pi)])
    goal = torch.tensor([[8.0, 0.0, 1.0]]).expand(5, -1)
    assert terrain.there(states, goal).tolist() == [True, True, False, False, True]
    assert not terrain.there(states + torch.tensor([3.1, 0.0, 0.0]), goal).any()


def test_a_picture_taken_a_step_beside_the_walk_is_found_beside_it(strong, monkeypatch):
    monkeypatch.setattr(goal, "ROUNDS", (1.0,))  # that is quicker
    model, memory, _ = strong
    beside = model.motion.pose_at(memory.place.mean[0, 12]) + torch.tensor([0.0, 0.13, 0.0])
    picture = model.vae.decode(model.read(memory, Belief(model.motion.place(beside)[None, None])).peak())[0, 0]
    found = find_goal(model, memory, picture)
    torch.testing.assert_close(found.pose, beside, rtol=0, atol=0.03)
    assert found.known > 0.9


class WalksOn(Gliding):
    """A motion that was never shown zeros: by them it walks ahead."""

    def unroll(self, start, a, noise=None):
        return super().unroll(start, a + (a.sum(-1, keepdim=True) == 0) * torch.eye(8)[0], noise)


def test_who_was_never_shown_zeros_comes_to_rest_by_an_action_that_does_not_move_it(strong):
    model, memory, _ = strong
    walks_on = WalksOn(model.motion.settings, 8)
    walks_on.load_state_dict(model.motion.state_dict())
    walks_on.requires_grad_(False)
    by, nothing = brake(model.motion, torch.eye(8))
    assert nothing and not by.any()
    by, nothing = brake(walks_on, torch.eye(8))
    assert not nothing and int(by.argmax()) in (4, 5)  # it turns
    assert gait(walks_on, torch.eye(8)).coast == pytest.approx(gait(model.motion, torch.eye(8)).coast, rel=0.4)
    unshown = deepcopy(model)
    unshown.motion = walks_on
    # The search has one sequence, which does nothing at its third step, and a goal six steps ahead.
    once, here = PlanConfig(candidates=1, elite=1, rounds=1), Belief(model.motion.start(1))
    ahead = model.motion.unroll(here.mean, torch.eye(8)[[0] * 6][None])[0, -1, :2]
    before = replace(model.plan(memory, here, ahead, settings=once), choices=(0, 0, -1, 0, 0, 0, 0))
    coasting = model.plan(memory, here, ahead, settings=once, before=before)
    assert coasting.found and coasting.choices[:4] == (0, 0, -1, 0) and not coasting.actions[2].any()
    assert unshown.plan(memory, here, ahead, settings=once, before=before).actions.any(-1).all()


def test_goals_and_memories_that_do_not_fit_are_refused(model):
    memory, here, _, _ = memory_of(model, SQUARE)
    with pytest.raises(InputError, match="give a pose of 2 numbers, or a picture"):
        model.plan(memory, here, torch.zeros(3))
    with pytest.raises(InputError, match="one memory and one place"):
        model.plan(memory, Belief(here.mean.repeat(2, 1)), torch.zeros(2))
    with pytest.raises(InputError, match="elite is 64"):
        PlanConfig(candidates=8)
    with pytest.raises(InputError, match="beam is -1"):
        PlanConfig(beam=-1)
    with pytest.raises(InputError, match="nothing is memorised yet"):
        Explorer(model).plan(torch.zeros(2))


def test_a_walk_over_a_new_picture_is_planned_by_the_learned_motion():
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    clip = record(world, PoissonWalker(), 1, 96, torch.Generator().manual_seed(2))
    model = WorldModel.load(WEIGHTS / "image-walk-celeba")
    memory, here = model.memorise(clip.x, clip.a)
    for t in (5, 40):
        plan = model.plan(memory, here, clip.x[0, t])
        world.walk(torch.tensor([plan.choices]))
        steps = (clip.true_pose[0, -1] - clip.true_pose[0, t]).abs().sum()
        assert world.cell[0].tolist() == clip.true_pose[0, t].tolist() and len(plan.choices) == steps
        world.place(world.image, clip.true_pose[:, -1].long())
