"""The dream as an environment."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from gtmsm import Explorer, InputError, WorldModel
from gtmsm.data.record import record
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

WEIGHTS = Path(__file__).parents[2] / "weights" / "image-walk-celeba"
UP, DOWN, LEFT, RIGHT, STAY = range(5)


@pytest.fixture(scope="module")
def explorer():
    """It has walked over a picture for 96 steps."""
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    clip = record(world, PoissonWalker(), 1, 96, torch.Generator().manual_seed(3))
    model = WorldModel.load(WEIGHTS)
    with torch.no_grad():
        return Explorer(model, *model.memorise(clip.x, clip.a))


def dream(explorer, **settings):
    return gymnasium.make("gtmsm/Dream-v0", run=explorer.model, memory=explorer, **settings)


@pytest.mark.parametrize("observation", ["frame", "place"])
@pytest.mark.filterwarnings("ignore:.*A Box observation space.*")
def test_gymnasium_finds_nothing_wrong_with_a_dream(explorer, observation):
    env = dream(explorer, observation=observation, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset()
    assert env.render().shape == (256, 256, 3)


def test_a_step_shows_what_imagining_it_shows(explorer):
    env = dream(explorer).unwrapped
    env.reset(seed=0)
    here = env.dreams.state.clone()
    seen = env.step(RIGHT)[0]
    memory = explorer.memory.snapshot()
    imagined = explorer.model.imagine(memory, type(explorer.here)(here), torch.eye(5)[None, RIGHT : RIGHT + 1]).frames
    np.testing.assert_allclose(seen, (255 * imagined[0, 0]).permute(1, 2, 0).numpy(), atol=0.51)
    env.dreams.state = here
    np.testing.assert_array_equal(env.step(torch.tensor(RIGHT))[0], seen)
    with pytest.raises(InputError, match="action is 1.0; give a whole number from 0 to 4"):
        env.step(torch.tensor(1.0))


def test_only_the_goal_is_rewarded_and_ends_an_episode(explorer):
    env = dream(explorer, goal=explorer.here.mean[0], steps=40).unwrapped
    env.reset(seed=1)
    before = env.dreams.goal[0] - explorer.model.motion.M[:, UP]
    env.dreams.state[0] = before
    _, reward, ended, late, _ = env.step(STAY)
    assert (reward, ended, late) == (0, False, False)
    _, reward, ended, late, _ = env.step(UP)
    assert (reward, ended, late) == (1, True, False)


def test_an_episode_without_the_goal_is_cut_when_its_time_is_up(explorer):
    env = dream(explorer, goal=torch.zeros(2), steps=3).unwrapped
    env.reset(seed=0)
    env.dreams.state[0] = explorer.model.motion.M[:, UP]
    assert [env.step(STAY)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


def test_many_dreams_at_once_are_each_what_it_is_alone(explorer):
    envs = gymnasium.make_vec("gtmsm/Dream-v0", num_envs=7, run=explorer.model, memory=explorer, observation="place")
    env = dream(explorer, observation="place").unwrapped
    envs.reset(seed=0)
    starts, goals = envs.unwrapped.dreams.state.clone(), envs.unwrapped.dreams.goal.clone()
    actions = np.array([0, 1, 2, 3, 4, 0, 1])
    seen, reward, ended, _, _ = envs.step(actions)
    for i, action in enumerate(actions):
        env.reset(seed=0)
        env.dreams.state, env.dreams.goal = starts[i : i + 1].clone(), goals[i : i + 1].clone()
        alone = env.step(action)
        np.testing.assert_allclose(alone[0], seen[i], atol=1e-5)
        assert alone[1:3] == (reward[i], ended[i])


def test_an_agent_at_the_goal_begins_anew_in_the_same_step(explorer):
    envs = gymnasium.make_vec(
        "gtmsm/Dream-v0", num_envs=2, run=explorer.model, memory=explorer, goal=explorer.here.mean[0],
        observation="place",
    ).unwrapped  # fmt: skip
    envs.reset(seed=0)
    envs.dreams.state[0] = envs.dreams.goal[0]
    envs.dreams.state[1] = still = envs.dreams.goal[1] - 2 * explorer.model.motion.M[:, LEFT]
    seen, reward, ended, _, info = envs.step(np.array([STAY, STAY]))
    assert reward.tolist() == [1, 0] and ended.tolist() == info["_final_obs"].tolist() == [True, False]
    assert np.abs(info["final_obs"][0, 2:]).max() < 0.01  # it was at the goal
    assert np.abs(seen[0, 2:]).max() > 0.5
    torch.testing.assert_close(envs.dreams.state[1], still, atol=2e-3, rtol=0)


@pytest.fixture(scope="module")
def turned(turner):
    """It has gone ahead and turned to the left, in turns."""
    explorer = Explorer(turner)
    for action in (0, 2, 0, 2, 0):
        explorer.step(torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)), action)
    return explorer


def test_whoever_looks_elsewhere_than_the_goal_is_not_there_yet(turned):
    env = dream(turned, goal=torch.tensor([2.0, 0.0, 0.45]), observation="place").unwrapped
    env.reset(seed=0)
    env.dreams.state = torch.tensor([[2.0, 0.0, -0.45]])
    assert [env.step(action)[1:3] for action in (1, 2)] == [(0, False), (1, True)]  # 0.6 off, then 0.15


def test_a_goal_is_seen_from_where_one_stands_and_looks_in_steps(turned):
    env = dream(turned, observation="place").unwrapped
    state, goal = torch.tensor([[2.0, 2.0, np.pi / 2]]), torch.tensor([[6.0, 0.0, np.pi]])
    # It is at 1, 1 and looks along the second axis; the goal is one step behind it, two to its right, a quarter left.
    np.testing.assert_allclose(env.dreams.places(state, goal), [[1, 1, 0, 1, -1, -2, 0, 1]], atol=1e-6)


def test_an_episode_begins_where_a_view_was_memorised_and_looks_as_it_was_seen(turned):
    env = dream(turned, observation="place").unwrapped
    begun = [env.reset(seed=seed)[1]["pose"].round(4).tolist() for seed in range(12)]
    memorised = turned.path[0].numpy().round(4).tolist()
    assert all(pose in memorised for pose in begun) and len({pose[2] for pose in begun}) > 1


def test_a_saved_walk_is_dreamt_of_by_its_path(explorer, tmp_path):
    explorer.save(tmp_path / "walk.safetensors")
    make = {"run": str(WEIGHTS), "observation": "place"}
    saved, live = (
        gymnasium.make("gtmsm/Dream-v0", memory=memory, **make).reset(seed=5)[0]
        for memory in (str(tmp_path / "walk.safetensors"), explorer)
    )
    np.testing.assert_array_equal(saved, live)


def test_an_empty_memory_and_a_foreign_goal_are_refused(explorer):
    with pytest.raises(InputError, match="give an Explorer or a Memory that holds something"):
        dream(Explorer(explorer.model))
    with pytest.raises(InputError, match="give a picture of this place"):
        dream(explorer, goal=torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)))
