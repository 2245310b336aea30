"""DeepMind Lab's mazes in ViZDoom."""

import math
import warnings

import gymnasium
import numpy as np
import pytest

pytest.importorskip("vizdoom")
pytest.importorskip("labmaze")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from gtmsm.errors import InputError  # noqa: E402
from gtmsm.worlds.doom import DoomEnv  # noqa: E402
from gtmsm.worlds.physics import ACTIONS  # noqa: E402


@pytest.fixture(scope="module")
def env():
    env = DoomEnv(places=8)
    yield env
    env.close()


def walk(env, seed, *names):
    seen, info = env.reset(seed=seed)
    frames, infos = [seen], [info]
    for name in names:
        seen, *_, info = env.step(ACTIONS.index(name))
        frames.append(seen)
        infos.append(info)
    return frames, np.array([info["pose"] for info in infos]), infos


def test_gymnasium_has_no_complaint(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def test_forty_one_turns_lead_back_to_the_same_view(env):
    frames, poses, _ = walk(env, 0, *["turn left"] * 41)
    heading = np.degrees(np.unwrap(poses[:, 2]))
    assert abs(heading[41] - heading[0] - 360) < 0.6
    assert np.ptp(np.diff(heading)) < 0.01
    different = [np.abs(frames[0].astype(int) - frame).mean() for frame in frames]
    assert different[41] < min(different[1:41]) / 2


def test_the_agent_walks_ahead_and_has_momentum(env):
    for seed in range(20):
        _, poses, _ = walk(env, seed, *["forward"] * 3, "turn left", "turn left")
        moved = np.diff(poses[:, :2], axis=0)
        heading = np.array([math.cos(poses[0, 2]), math.sin(poses[0, 2])])
        speed = moved @ heading
        if np.allclose(moved[:3], speed[:3, None] * heading, atol=1e-3):  # it did not slide along a wall
            break
    assert 0 < speed[0] < speed[1] < speed[2]
    assert 0 < speed[4] < speed[3]


def test_a_seed_is_a_place_and_a_start_and_walks_repeat(env):
    actions = ["forward", "forward and turn left", "strafe right", "backward"] * 5
    first, again, other = (walk(env, seed, *actions) for seed in (3, 3, 4))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])
    starts = [walk(env, seed)[2][0] for seed in range(40)]
    assert {info["place"] for info in starts} == set(range(8))
    assert len({(info["place"], *info["pose"]) for info in starts}) > 16


def test_splits_are_different_places(env):
    other = gymnasium.make("gtmsm/Doom-v0", places=8, split="test")
    assert not np.array_equal(other.reset(seed=0)[0], env.reset(seed=0)[0])
    other.close()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="cells is 10; give an odd number"):
        DoomEnv(cells=10)
    with pytest.raises(InputError, match='split is "tset"; did you mean "test"'):
        DoomEnv(split="tset")


def test_without_a_number_of_places_each_seed_is_a_maze_of_its_own():
    env = DoomEnv()
    assert [walk(env, seed)[2][0]["place"] for seed in (7, 2_000_000)] == [7, 2_000_000]
    mazes = [env._draw(place).free for place in range(5)]
    assert len(set(mazes)) == 5
    env.close()


def test_an_explorer_sees_more_than_walls_and_touches_few_of_them(env):
    touched, ahead = [], []
    for seed in range(4):
        _, info = env.reset(seed=seed)
        rng, free = np.random.default_rng(seed), env._explorer.maze.free
        for _ in range(150):
            *_, info = env.step(env.explore(rng))
            x, y, heading = info["pose"]
            beside = [(x + a, y + b) for a, b in ((0.128, 0), (-0.128, 0), (0, 0.128), (0, -0.128))]
            touched.append(any((math.floor(a), math.floor(b)) not in free for a, b in beside))
            way = np.arange(0, 1, 0.05)[:, None] * [math.cos(heading), math.sin(heading)] + [x, y]
            ahead.append(all((math.floor(a), math.floor(b)) in free for a, b in way))
    assert np.mean(touched) < 0.03
    assert np.mean(ahead) > 0.8


def test_a_continuous_action_turns_and_drives():
    env = DoomEnv(continuous=True)
    _, info = env.reset(seed=3)
    start = info["pose"]
    for turn in (0.5, -0.25, 0.1):
        before = info["pose"][2]
        *_, info = env.step(np.array([turn, 0], np.float32))
        turned = math.remainder(info["pose"][2] - before, 2 * math.pi)
        assert abs(turned - turn * 2 * math.pi / 41) < 0.001
    assert np.array_equal(info["pose"][:2], start[:2])
    moved = []
    for drive in (0.4, 0.8):
        _, info = env.reset(seed=3)
        *_, info = env.step(np.array([0, drive], np.float32))
        moved.append(np.hypot(*(info["pose"] - start)[:2]))
    assert abs(moved[1] - 2 * moved[0]) < 0.002
    rng = np.random.default_rng(0)
    actions = np.array([env.explore(rng) for _ in range(3)])
    assert env.action_space.contains(actions[0])
    env.close()
