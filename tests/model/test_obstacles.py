"""What was bumped into stops an imagined agent."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gtmsm import InputError, WorldModel, WorldModelConfig
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.planning import Obstacles, Walked
from gtmsm.model.planning.gait import gait
from gtmsm.model.recall import RecallConfig
from gtmsm.tensors import Belief, Gaussian

WEIGHTS = Path(__file__).parents[2] / "weights"
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def a_model(distance="euclidean") -> WorldModel:
    """Steps of one along either axis, no walls."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=8, code_size=4),
        motion=MotionConfig(kind="free"),
        recall=RecallConfig(distance=distance),
    )
    model = WorldModel(settings, (3, 8, 8), 5).eval().requires_grad_(False)
    model.motion.M.copy_(torch.tensor([[-1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 0.0]]))
    return model


def walked_to_the_right(model: WorldModel):
    """Two steps to the right, and one that fails."""
    a = torch.eye(5)[[RIGHT, RIGHT, RIGHT]]
    path = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 2.0]])
    memory, _ = model.memorise(torch.rand(1, 3, 3, 8, 8, generator=seeded()), torch.eye(5)[None, [RIGHT, RIGHT, STAY]])
    return memory, Walked(path[:-1], a, path[1:])


@pytest.mark.parametrize("kind", ["free", "walled", "turning", "drifting", "gliding", "rolling"])
@pytest.mark.parametrize(("batch", "time"), [(1, 1), (1, 40), (9, 40)])
@pytest.mark.parametrize("noisy", [False, True])
def test_all_steps_at_once_are_those_of_step_after_step(kind, batch, time, noisy):
    torch.manual_seed(0)
    motion = build_motion(MotionConfig(kind=kind, noise=0.05), 4).requires_grad_(False).double()
    for name, parameter in motion.named_parameters():
        if name in ("move", "turn", "V", "spin_V"):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=seeded(3)))
    actions = torch.eye(4).double()[torch.randint(4, (batch, time), generator=seeded(1))]
    start, noise = motion.start(batch), motion.draw_noise(actions, seeded(2)) if noisy else None
    free = motion.unroll(start, actions, noise)[..., :2]
    reach = float(free.diff(dim=1).norm(dim=-1).mean()) if time > 1 else 0.1
    bumped = free[:, 5::6].flatten(0, 1).numpy()
    visited = np.random.default_rng(0).normal(0, 2.0, (60, 2))
    obstacles = Obstacles(motion, bumped if len(bumped) else visited + 9, visited, reach, 0.5 * reach)

    def barred(state):
        near = [np.linalg.norm(some - state[0, :2].numpy(), axis=1).min() for some in (obstacles.bumped, visited)]
        return near[0] <= reach and near[1] >= 0.5 * reach

    path, stops = [], 0
    for i in range(batch):
        state = start[i : i + 1]
        for t in range(time):
            after = motion.step(state, actions[i : i + 1, t])
            if noise is not None:
                after = after + noise[i : i + 1, t]
            if barred(after) and not barred(state):
                after[0, :2], after[0, motion.pose_size :] = state[0, :2], 0
                stops += 1
            state = after
            path.append(state)
    assert stops or time == 1
    torch.testing.assert_close(
        obstacles.unroll(start, actions, noise), torch.cat(path).view(batch, time, -1), rtol=1e-5, atol=1e-5
    )


def test_a_plan_goes_on_from_where_it_was_stopped():
    model = a_model()
    memory, walked = walked_to_the_right(model)
    obstacles = Obstacles.of(model.motion, memory, walked)
    here = Belief(torch.tensor([[0.0, 2.0]]))
    plans = torch.eye(5)[torch.tensor([[RIGHT, RIGHT, UP, RIGHT], [LEFT, UP, RIGHT, RIGHT]])]
    poses = model.imagine(memory, here, plans, obstacles=obstacles).poses
    assert poses[0].tolist() == [[0, 2], [0, 2], [-1, 2], [-1, 3]]
    assert torch.equal(poses[1], model.imagine(memory, here, plans).poses[1])


def test_what_was_visited_later_is_open_again():
    model = a_model()
    memory, walked = walked_to_the_right(model)
    obstacles = Obstacles.of(model.motion, memory, walked)
    assert obstacles.at(torch.tensor([[0.0, 3.0], [0.0, 2.6], [0.0, 2.0], [0.0, 3.6]])).tolist() == [1, 1, 0, 0]
    later = Walked(walked.before, walked.actions, walked.after, open=torch.tensor([[0.0, 3.3]]))
    there = Obstacles.of(model.motion, memory, later).at(torch.tensor([[0.0, 3.0], [0.0, 2.6]]))
    assert there.tolist() == [False, True]


def test_steps_that_led_where_they_should_have_leave_no_obstacles():
    model = a_model()
    memory, walked = walked_to_the_right(model)
    fine = Walked(walked.before[:2], walked.actions[:2], walked.after[:2])
    assert Obstacles.of(model.motion, memory, fine) is None


def test_beliefs_are_read_where_the_agent_was_stopped():
    model = a_model(distance="kl")
    memory, walked = walked_to_the_right(model)
    here, plan = Belief(torch.tensor([[0.0, 2.0]]), 0.01 * torch.eye(2)[None]), torch.eye(5)[None, [RIGHT, LEFT]]
    stay = model.imagine(memory, here, torch.eye(5)[None, [STAY, LEFT]])
    stopped = model.imagine(memory, here, plan, obstacles=Obstacles.of(model.motion, memory, walked))
    assert torch.equal(stopped.frames, stay.frames)
    assert not torch.equal(model.imagine(memory, here, plan).frames, stay.frames)


def test_obstacles_of_one_walk_are_refused_with_many_memories():
    model = a_model()
    memory, walked = walked_to_the_right(model)
    obstacles = Obstacles.of(model.motion, memory, walked)
    a = torch.eye(5)[torch.tensor([[RIGHT], [LEFT]])]
    many, here = model.memorise(torch.rand(2, 1, 3, 8, 8, generator=seeded()), a)
    with pytest.raises(InputError, match="there are 2 memories"):
        model.imagine(many, here, a, obstacles=obstacles)


def test_obstacles_of_another_kind_are_refused():
    model = a_model()
    memory, walked = walked_to_the_right(model)
    with pytest.raises(InputError, match="obstacles is .*; give what Obstacles.of"):
        model.imagine(memory, Belief(torch.zeros(1, 2)), torch.eye(5)[None, [RIGHT]], obstacles=walked)


def test_obstacles_of_another_model_are_refused():
    model, other = a_model(), a_model()
    memory, walked = walked_to_the_right(model)
    obstacles = Obstacles.of(other.motion, memory, walked)
    with pytest.raises(InputError, match="these obstacles are of another model"):
        model.imagine(memory, Belief(torch.zeros(1, 2)), torch.eye(5)[None, [RIGHT]], obstacles=obstacles)


def test_poses_that_are_no_numbers_meet_no_obstacle():
    obstacles = Obstacles(a_model().motion, np.zeros((1, 2)), np.ones((1, 2)), 0.5, 0.25)
    far = torch.tensor([[0.0, 0.0], [torch.nan, 0.0], [0.0, torch.nan], [torch.inf, 0.0], [0.0, -torch.inf]])
    assert obstacles.at(far).tolist() == [True, False, False, False, False]


def test_in_a_room_an_agent_with_momentum_comes_to_rest_before_what_it_bumped_into():
    model, ahead, none = WorldModel.load(WEIGHTS / "walk-strong"), 0, torch.zeros(1, 8)
    motion, a = model.motion, torch.eye(8)[None, [ahead] * 12]
    stride = gait(motion, torch.eye(8)).shortest
    path = motion.unroll(motion.start(1), a)
    state = path[:, -1]
    # It pushes on, but stays where it is.
    still = state.clone()
    still[:, motion.pose_size :] = 0
    walked = Walked(state, torch.eye(8)[[ahead]], still)
    memory, _ = model.memorise(torch.rand(1, 12, 3, 32, 32, generator=seeded()), a)
    obstacles = Obstacles.of(motion, memory, walked)
    free = model.imagine(memory, Belief(path[:, 5]), torch.eye(8)[None, [ahead] * 20]).poses[0]
    dream = model.imagine(memory, Belief(path[:, 5]), torch.eye(8)[None, [ahead] * 20], obstacles=obstacles).poses[0]
    wall = float(motion.step(state, torch.eye(8)[[ahead]])[0, :2].norm())
    assert float(free[-1, :2].norm()) > wall + 5 * stride
    assert wall - 1.6 * stride < float(dream[-1, :2].norm()) < wall - 0.4 * stride
    assert motion.step(dream[-1:], none)[0, :2].sub(dream[-1, :2]).norm() < 0.5 * stride


@pytest.mark.parametrize("pitch", [0.1, 0.21, 0.5])
def test_each_obstacle_bars_a_square_of_a_map_however_small_it_is(pitch):
    model = a_model()
    bumped = np.random.default_rng(0).uniform(0, 5, (50, 2))
    axis = np.arange(-1, 6, pitch)
    squares = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    for one in bumped:
        obstacles = Obstacles(model.motion, one[None], np.full((1, 2), 99.0), 0.06, 0.1)
        barred = squares[obstacles.bar(squares, pitch, np.full(squares.shape[:-1], 50.0))]
        assert len(barred) and np.abs(barred - one).max() <= max(0.06, pitch)


@pytest.mark.parametrize("ground", [20, 420])
def test_a_plan_leads_around_an_obstacle_also_on_ground_so_large_that_squares_of_its_map_are_larger(ground):
    model, moves = a_model(), {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}
    tried = [(RIGHT, 1)] * ground + [(RIGHT, 0)]  # the last step fails; then the agent walks around what is there
    tried += [(action, 1) for action in (UP, RIGHT, RIGHT, DOWN, UP, LEFT, LEFT, DOWN)]
    made = torch.tensor([[did * x for x in moves[action]] for action, did in tried], dtype=torch.float)
    path = torch.cat([torch.tensor([[0.0, -ground]]), made]).cumsum(0)
    walked = Walked(path[:-1], torch.eye(5)[[action for action, _ in tried]], path[1:])
    memory = Memory(Belief(path[None]), Gaussian(torch.randn(1, len(path), 4), torch.zeros(1, len(path), 4)))
    plan = model.plan(memory, Belief(path[-1:]), torch.tensor([0.0, 2.0]), walked)
    assert plan.found and plan.choices == (UP, RIGHT, RIGHT, DOWN)
    obstacles = Obstacles.of(model.motion, memory, walked)
    assert torch.equal(
        model.imagine(memory, Belief(path[-1:]), plan.actions[None], obstacles=obstacles).poses[0], plan.poses
    )
