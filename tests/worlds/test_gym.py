"""Our worlds as Gymnasium environments."""

import importlib
import importlib.util
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gtmsm
from gtmsm.episodes.formats import open_any
from gtmsm.errors import InputError
from gtmsm.worlds.gym import ImageWalkEnv, RoomsEnv
from gtmsm.worlds.image_map import YELLOW
from gtmsm.worlds.image_walk import ACTIONS, MOVES

NAME = "gtmsm/ImageWalk-v0"


@pytest.fixture
def pictures(tmp_path):
    """A file of noise without any pixel as yellow as the window."""
    generator = np.random.default_rng(0)
    path = tmp_path / "noise.npz"
    np.savez(
        path,
        train=generator.integers(0, 200, (4, 32, 32, 3), dtype=np.uint8),
        test=generator.integers(0, 200, (2, 32, 32, 3), dtype=np.uint8),
    )
    return path


def yellow_box(picture):
    """Top, bottom, left, right of what is drawn in yellow."""
    rows, columns = np.nonzero((picture == np.rint(255 * np.array(YELLOW))).all(-1))
    return rows.min(), rows.max() + 1, columns.min(), columns.max() + 1


@pytest.mark.parametrize("start", ["centre", "random"])
def test_gymnasium_has_no_complaint(start):
    env = gymnasium.make(NAME, start=start, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_registering_twice_is_harmless():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(gtmsm)


def test_an_episode_is_cut_after_512_steps(pictures):
    env = gymnasium.make(NAME, images=pictures)
    env.reset(seed=0)
    cuts = [env.step(4)[3] for _ in range(512)]
    assert cuts == [False] * 511 + [True]


def test_nothing_is_rewarded_and_nothing_ends(pictures):
    env = ImageWalkEnv(images=pictures)
    env.reset(seed=0)
    assert all(env.step(action)[1:3] == (0.0, False) for action in range(5))


def test_the_observation_is_the_crop_under_the_cell(pictures):
    env = ImageWalkEnv(images=pictures)
    env.reset(seed=0)
    train = np.load(pictures)["train"]
    for action in (0, 0, 3, 1, 2, 2, 4):
        seen, *_, info = env.step(action)
        top, left = 3 * info["cell"]
        assert np.array_equal(seen, train[info["image"], top : top + 8, left : left + 8])


def test_actions_move_the_cell_as_they_are_named(pictures):
    env = ImageWalkEnv(images=pictures)
    ends = {"up": [3, 4], "down": [5, 4], "left": [4, 3], "right": [4, 5], "stay": [4, 4]}
    for action, name in enumerate(ACTIONS):
        env.reset(seed=0)
        assert env.step(action)[-1]["cell"].tolist() == ends[name]


def test_the_same_seed_starts_the_same_episode(pictures):
    first, second = (ImageWalkEnv(images=pictures, start="random").reset(seed=5) for _ in range(2))
    assert np.array_equal(first[0], second[0])
    assert first[1]["image"] == second[1]["image"]


def test_random_starts_reach_different_cells_and_images(pictures):
    env = ImageWalkEnv(images=pictures, start="random")
    env.reset(seed=0)
    infos = [env.reset()[1] for _ in range(100)]
    assert len({tuple(info["cell"]) for info in infos}) > 40
    assert {info["image"] for info in infos} == {0, 1, 2}


def test_the_test_images_can_be_walked_on(pictures):
    env = ImageWalkEnv(images=pictures, split="test")
    seen, info = env.reset(seed=0)
    test = np.load(pictures)["test"]
    assert np.array_equal(seen, test[info["image"], 12:20, 12:20])


@pytest.mark.parametrize("walk", [[], [0] * 9 + [2] * 9, [1] * 9 + [3] * 9, [0, 3, 3]])
def test_the_yellow_window_is_where_the_agent_is(pictures, walk):
    env = ImageWalkEnv(images=pictures, render_mode="rgb_array")
    info = env.reset(seed=0)[1]
    for action in walk:
        info = env.step(action)[-1]
    picture = env.render()
    assert picture.shape == (512, 512, 3)
    top, left = 16 * 3 * info["cell"]
    assert yellow_box(picture) == (top, top + 128, left, left + 128)


def test_rendering_shows_the_whole_picture_around_the_window(pictures):
    env = ImageWalkEnv(images=pictures, render_mode="rgb_array")
    info = env.reset(seed=0)[1]
    picture = env.render()[8::16, 8::16]
    expected = np.load(pictures)["train"][info["image"]]
    different = np.argwhere((picture != expected).any(-1))
    assert len(different) == 0


def test_a_margin_shifts_the_window_too(pictures):
    env = ImageWalkEnv(images=pictures, size=32, crop=8, stride=5, render_mode="rgb_array")
    env.reset(seed=0)
    top, bottom, left, right = yellow_box(env.render())
    assert (top, left) == (16 * (2 + 5 * 2), 16 * (2 + 5 * 2))
    assert (bottom - top, right - left) == (128, 128)


def test_rendering_is_off_unless_asked_for(pictures):
    env = ImageWalkEnv(images=pictures)
    env.reset(seed=0)
    assert env.render() is None


@pytest.mark.parametrize("action", [5, -1, np.int64(7)])
def test_an_action_that_does_not_exist_is_refused(pictures, action):
    env = ImageWalkEnv(images=pictures)
    env.reset(seed=0)
    with pytest.raises(InputError, match="expected 0 to 4: up, down"):
        env.step(action)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"render_mode": "human"}, 'render_mode is "human"; choose from rgb_array'),
        ({"split": "tset"}, 'split is "tset"; did you mean "test"'),
        ({"images": "nowhere"}, "no such file or folder"),
        ({"stride": 0}, "stride is 0"),
        ({"obstacles": 99}, "obstacles is 99; expected 0 to 25"),
        ({"obstacles": 1, "obstacle_side": 9}, "obstacle_side is 9; expected 1 to 8"),
        ({"slip": 2.0}, "probability is 2.0; expected a share from 0 to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(InputError, match=complaint):
        ImageWalkEnv(**options)


# ---- obstacles and slips


def test_gymnasium_has_no_complaint_about_obstacles_and_slips(pictures):
    env = gymnasium.make(NAME, images=pictures, obstacles=4, slip=0.2, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def episode(pictures, seed=3, **settings):
    """Where an agent comes to, and whether something was in its way."""
    env = ImageWalkEnv(images=pictures, **settings)
    infos = [env.reset(seed=seed)[1]] + [env.step(action % 4)[-1] for action in range(100)]
    return [(info["image"], *info["cell"], info["blocked"]) for info in infos]


def test_the_same_seed_meets_the_same_obstacles_and_slips(pictures):
    settings = {"obstacles": 6, "slip": 0.3, "start": "random"}
    first, again, other = (episode(pictures, seed, **settings) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_obstacles_and_slips_leave_images_and_starts_as_they_were(pictures):
    starts = []
    for settings in ({}, {"obstacles": 6, "slip": 0.3}):
        env = ImageWalkEnv(images=pictures, start="random", **settings)
        infos = [env.reset(seed=0)[1]] + [env.reset()[1] for _ in range(10)]
        starts.append([(info["image"], *info["cell"]) for info in infos])
    assert starts[0] == starts[1]


def test_an_agent_is_told_that_an_obstacle_was_in_its_way(pictures):
    env = ImageWalkEnv(images=pictures, obstacles=8)
    info = env.reset(seed=0)[1]
    assert info["blocked"] is False
    blocked = []
    for action in np.random.default_rng(0).integers(4, size=200):
        before, info = info, env.step(action)[-1]
        aim = np.clip(before["cell"] + np.array(MOVES[action]), 0, 8)
        assert info["blocked"] == bool(env.world.solid[0, aim[0], aim[1]])
        assert np.array_equal(info["cell"], before["cell"] if info["blocked"] else aim)
        blocked.append(info["blocked"])
    assert True in blocked


def test_who_slips_goes_two_cells_or_none(pictures):
    env = ImageWalkEnv(images=pictures, slip=1.0)
    columns = []
    for seed in range(20):
        env.reset(seed=seed)
        columns.append(env.step(3)[-1]["cell"][1])
    assert set(columns) == {4, 6}


def test_obstacles_are_drawn_over_the_picture(pictures):
    plain, drawn = (ImageWalkEnv(images=pictures, obstacles=n, render_mode="rgb_array") for n in (0, 4))
    before, after = ((env.reset(seed=0), env.render())[1] for env in (plain, drawn))
    solid = drawn.world.solid[0].numpy()
    covered = np.zeros((32, 32), dtype=bool)
    covered[2:29, 2:29] = solid.repeat(3, 0).repeat(3, 1)
    changed = (before != after).any(-1)
    assert not changed[~covered.repeat(16, 0).repeat(16, 1)].any()
    assert changed.sum() > 0.8 * 256 * covered.sum()
    assert yellow_box(after) == yellow_box(before)


# ---- rooms and mazes

HAS_LABMAZE = importlib.util.find_spec("labmaze") is not None


@pytest.mark.parametrize(
    "name",
    [
        "gtmsm/Rooms-v0",
        pytest.param("gtmsm/Maze-v0", marks=pytest.mark.skipif(not HAS_LABMAZE, reason="labmaze is not installed")),
    ],
)
def test_gymnasium_has_no_complaint_about_rooms(name):
    env = gymnasium.make(name, textures="procedural", places=3, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def rooms_env(**settings):
    return RoomsEnv(textures="procedural", places=4, **settings)


def test_the_same_seed_walks_through_the_same_room():
    seen = []
    for _ in range(2):
        env = rooms_env()
        frames = [env.reset(seed=5)[0]]
        frames += [env.step(action)[0] for action in (0, 0, 6, 2)]
        seen.append(np.stack(frames))
    assert np.array_equal(*seen)


def test_rooms_tell_where_the_agent_is():
    env = rooms_env()
    _, before = env.reset(seed=0)
    *_, after = env.step(4)
    assert after["place"] == before["place"]
    assert after["pose"][2] - before["pose"][2] == pytest.approx(2 * np.pi / 41, abs=1e-5)


def test_a_room_is_rendered_from_above_with_the_path():
    env = rooms_env(render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    for _ in range(5):
        env.step(0)
    after = env.render()
    assert before.shape == after.shape == (512, 512, 3)
    assert not np.array_equal(before, after)
    assert rooms_env().render() is None


def test_test_rooms_are_other_rooms():
    train, test = (rooms_env(split=split).world.plans.width for split in ("train", "test"))
    assert not np.array_equal(train, test)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"render_mode": "human"}, 'render_mode is "human"; choose from rgb_array'),
        ({"split": "tset"}, 'split is "tset"; did you mean "test"'),
        ({"pixels": 8}, "pixels is 8; expected 32 to 128"),
        ({"world_seed": -1}, "seed is -1"),
        ({"slip": -0.5}, "probability is -0.5; expected a share from 0 to 1"),
    ],
)
def test_rooms_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(InputError, match=complaint):
        rooms_env(**options)


@pytest.mark.parametrize("action", [8, -1])
def test_rooms_refuse_an_action_that_does_not_exist(action):
    env = rooms_env()
    env.reset(seed=0)
    with pytest.raises(InputError, match="expected 0 to 7: forward, backward"):
        env.step(action)


def test_who_slips_in_a_room_turns_twice_as_far_or_not_at_all():
    turned = set()
    env = rooms_env(slip=1.0)
    for seed in range(12):
        before = env.reset(seed=seed)[1]["pose"][2]
        turned.add(round((env.step(4)[-1]["pose"][2] - before) / (2 * np.pi / 41)))
    assert turned == {0, 2}


def test_no_slip_leaves_a_room_as_it_was():
    ways = []
    for settings in ({}, {"slip": 0.0}):
        env = rooms_env(**settings)
        env.reset(seed=5)
        ways.append(np.stack([env.step(action)[-1]["pose"] for action in (0, 0, 6, 2)]))
    assert np.array_equal(*ways)


# ---- what others look for


@pytest.mark.parametrize("name", ["gtmsm/ImageWalk-v0", "gtmsm/Rooms-v0"])
def test_info_says_where_the_agent_is_and_where_it_might_go(name):
    env = gymnasium.make(name, render_mode="rgb_array", renders="view")
    seen, info = env.reset(seed=0)
    goal = info["goal"]
    assert goal.shape == seen.shape and goal.dtype == np.uint8
    assert not np.array_equal(goal, seen)
    for action in range(4):
        seen, *_, info = env.step(action)
        assert np.array_equal(info["state"], info["pose"])
        assert np.array_equal(info["goal"], goal)
        assert np.array_equal(env.render(), seen)
    assert info["goal_state"].shape == info["state"].shape
    assert np.array_equal(env.reset(seed=0)[1]["goal"], goal)


def test_the_goal_is_what_is_seen_from_there(pictures):
    env = ImageWalkEnv(images=pictures, obstacles=8)
    goals = []
    for seed in range(5):
        _, info = env.reset(seed=seed)
        row, column = info["goal_state"].astype(int)
        top, left = 3 * row, 3 * column
        assert np.array_equal(info["goal"], np.load(pictures)["train"][info["image"], top : top + 8, left : left + 8])
        assert not env.world.solid[0, row, column]
        goals.append((row, column))
    assert len(set(goals)) > 1


def test_an_explorer_of_rooms_gets_around():
    env = RoomsEnv(places=2)
    _, info = env.reset(seed=0)
    rng, ways = np.random.default_rng(0), [info["pose"]]
    for _ in range(120):
        action = env.explore(rng)
        assert env.action_space.contains(action)
        ways.append(env.step(action)[-1]["pose"])
    assert np.ptp(np.array(ways)[:, :2], axis=0).max() > 1.5


@pytest.mark.parametrize(("name", "actions"), [("gtmsm/ImageWalk-v0", 5), ("gtmsm/Rooms-v0", 8), ("gtmsm/Doom-v0", 8)])
def test_our_environments_work_in_a_world_of_stable_worldmodel(tmp_path, name, actions):
    pytest.importorskip("h5py")
    if "Doom" in name:
        pytest.importorskip("vizdoom")
        pytest.importorskip("labmaze")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        try:
            library = importlib.import_module("stable_worldmodel")
        except Exception as problem:
            pytest.skip(f"needs stable-worldmodel: {problem}")
        more = {} if "Doom" in name else {"renders": "view"}
        world = library.World(name, num_envs=2, image_shape=(32, 32), max_episode_steps=6, **more)
        world.set_policy(library.policy.RandomPolicy(seed=0))
        world.collect(tmp_path / "clips.h5", episodes=3, seed=0, format="hdf5")
        world.close()
    assert {"pose", "state", "goal", "goal_state", "place"} <= world.infos.keys()
    kind, found = open_any(tmp_path / "clips.h5")
    assert (kind.frame_shape, kind.action_size) == ((32, 32, 3), actions)
    assert [episode.steps for episode in found] == [5, 5, 5]  # it does not keep the first frame
