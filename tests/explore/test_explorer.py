"""An agent that remembers as it walks."""

import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from dying import killed_at

from gtmsm.data.record import as_clip
from gtmsm.errors import InputError
from gtmsm.explore import Explorer
from gtmsm.files import read_tensors, write_tensors
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.planning import Obstacles, Walked
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.tensors import Belief
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

SHIPPED = Path(__file__).parents[2] / "weights" / "obstacles-celeba"
PLANS = torch.eye(5)[torch.tensor([[0, 1, 2, 3, 4], [3, 3, 3, 1, 1]])]


EAGER = {"doubt": -20.0}
"""So ready to believe that even a network that has learned nothing is heard."""
LEARNING = {"watch": True, "surprise_worth": 5.0, "surprise_again": 0.5, **EAGER}
"""And how often steps slip is learned."""


def model_of(form="bayes", seed=0, distance="euclidean", kind="walled", **landmarks) -> WorldModel:
    torch.manual_seed(seed)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind=kind, noise=1e-2, hidden=8),
        recall=RecallConfig(distance=distance),
        landmark=LandmarkConfig(form=form, width=8, matches=3, **landmarks),
    )
    return WorldModel(settings, (3, 8, 8), action_size=5).eval().requires_grad_(False)


def a_walk(steps=20, seed=1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.rand(steps, 3, 8, 8, generator=generator)
    return frames, torch.eye(5)[torch.randint(5, (steps,), generator=generator)]


def explored(model: WorldModel, steps=20, seed=1, closure=None) -> Explorer:
    explorer = Explorer(model, closure=closure)
    for frame, action in zip(*a_walk(steps, seed), strict=True):
        explorer.step(frame, action)
    return explorer


def same(one: Explorer, other: Explorer) -> bool:
    """Whether both answer alike to the bit."""
    pairs = [(one.imagine(PLANS).frames, other.imagine(PLANS).frames), (one.path, other.path)]
    if one.model.landmarks is not None:
        frame = a_walk()[0][3]
        pairs += zip(vars(one.localise(frame)).values(), vars(other.localise(frame)).values(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize(("form", "settings"), [("off", {}), ("bayes", {}), ("paper", {}), ("bayes", LEARNING)])
def test_steps_one_by_one_are_the_walk_in_one_call(form, settings):
    model, (frames, actions) = model_of(form, **settings), a_walk()
    memory, here = model.memorise(frames[None], actions[None])
    explorer = explored(model)
    assert torch.allclose(explorer.here.mean, here.mean, atol=1e-5)
    assert torch.allclose(explorer.path, model.follow(frames[None], actions[None]).mean, atol=1e-5)
    for name, column in memory.columns.items():
        assert torch.allclose(explorer.memory.columns[name], column, atol=1e-5), name
    assert torch.allclose(explorer.imagine(PLANS).frames, model.imagine(memory, here, PLANS).frames, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "distance", "closure", "settings"),
    [
        ("off", "euclidean", 0, EAGER),
        ("bayes", "euclidean", 8, EAGER),
        ("off", "kl", 0, EAGER),
        ("bayes", "euclidean", 8, LEARNING),
    ],
)
def test_an_explorer_reopened_answers_the_same_to_the_bit_and_walks_on_alike(
    tmp_path: Path, form, distance, closure, settings
):
    model = model_of(form, distance=distance, **settings)
    explorer = explored(model, closure=closure)
    explorer.save(tmp_path / "walk.safetensors")
    other = Explorer.load(tmp_path / "walk.safetensors", model)
    assert len(other) == len(explorer) == 20
    assert same(explorer, other)
    for frame, action in zip(*a_walk(10, seed=2), strict=True):
        assert torch.equal(explorer.step(frame, action).mean, other.step(frame, action).mean)
    assert same(explorer, other)


def test_a_memory_of_before_slips_were_learned_can_still_be_walked_on_with(tmp_path: Path):
    model = model_of(**LEARNING)
    assert explored(model).memory.slips.shape == (1, 20, 3)
    explored(model).save(tmp_path / "walk.safetensors")
    about, tensors = read_tensors(tmp_path / "walk.safetensors")
    del tensors["memory.slips"]
    write_tensors(tmp_path / "walk.safetensors", tensors, about)
    old = Explorer.load(tmp_path / "walk.safetensors", model)
    assert old.memory.slips is None
    for frame, action in zip(*a_walk(3, seed=2), strict=True):
        old.step(frame, action)
    assert len(old) == 23


def test_one_that_has_seen_nothing_is_saved_as_well(tmp_path: Path):
    Explorer(model_of()).save(tmp_path / "walk.safetensors")
    explorer = Explorer.load(tmp_path / "walk.safetensors", model_of())
    assert len(explorer) == 0
    explorer.step(a_walk()[0][0])
    assert len(explorer) == 1


def test_a_fork_remembers_for_itself():
    model = model_of()
    explorer = explored(model)
    before, fork = explorer.fork(), explorer.fork()
    for frame, action in zip(*a_walk(10, seed=2), strict=True):
        fork.step(frame, action)
    assert (len(explorer), len(fork)) == (20, 30)
    assert same(explorer, before)
    assert not torch.equal(fork.here.mean, explorer.here.mean)


def test_a_memory_that_is_given_stays_as_it_is():
    model = model_of()
    memory = LongMemory.of(explored(model).memory)
    Explorer(model, memory).step(a_walk()[0][0])
    assert len(memory) == 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_while_it_saves_what_was_saved_before_is_there(tmp_path: Path):
    model, path = model_of(), tmp_path / "walk.safetensors"
    before, after = explored(model), explored(model, steps=30)
    before.save(path)
    n, ended = 0, -signal.SIGKILL
    while ended:
        n += 1
        ended = killed_at(n, partial(after.save, path))
        kept = Explorer.load(path, model)
        assert same(kept, before if len(kept) == 20 else after)
        if not ended:
            assert len(kept) == 30
    assert n > 4  # it was killed at several moments


# ---- loops


@pytest.mark.parametrize(("kind", "settings"), [("walled", EAGER), ("turning", EAGER), ("turning", LEARNING)])
def test_loops_closed_while_walking_are_those_of_one_call(kind, settings):
    model, (frames, actions) = model_of(kind=kind, **settings), a_walk(40)
    frames[20:] = 0.99 * frames[:20]  # it comes back, and what it sees is hardly the same
    explorer = Explorer(model, closure=8)
    for frame, action in zip(frames, actions, strict=True):
        explorer.step(frame, action)
    closed, never = (model.follow(frames[None], actions[None], closure=n).mean for n in (8, 0))
    assert (closed - never).abs().max() > 0.01
    torch.testing.assert_close(explorer.path, closed, rtol=0, atol=1e-4)
    torch.testing.assert_close(explorer.here.mean, closed[:, -1], rtol=0, atol=1e-4)
    memory, _ = model.memorise(frames[None], actions[None], closure=8)
    torch.testing.assert_close(explorer.memory.place.mean, memory.place.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(explorer.memory.variance, memory.variance, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [EAGER, LEARNING])
def test_of_a_long_walk_only_the_last_steps_are_still_corrected(monkeypatch, settings):
    monkeypatch.setattr("gtmsm.explore.explorer.OPEN", 32)
    explorer, (frames, actions) = Explorer(model_of(**settings), closure=8), a_walk(96)
    frames[48:] = 0.99 * frames[:48]  # equal views would be of one place, which is corrected for ever
    paths = []
    for frame, action in zip(frames, actions, strict=True):
        explorer.step(frame, action)
        paths.append(explorer.path)
    assert len(explorer) == 96
    assert torch.equal(explorer.memory.place.mean, explorer.path)
    corrected = (paths[95] - torch.cat([paths[80], paths[95][:, 81:]], 1)).abs().amax(-1)[0]
    assert corrected[:48].max() == 0  # those were settled when 80 steps were walked
    assert corrected[64:].max() > 0


def to_and_fro(laps: int, cells=6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Frames and actions of a walk that sees the same views again and again."""
    views, actions = a_walk(cells)
    cell = [*range(cells), *range(cells - 2, 0, -1)] * laps
    return [(views[c], actions[c]) for c in cell]


@pytest.mark.parametrize("watch", [False, True])
def test_a_walk_that_comes_back_to_equal_views_is_a_map_that_is_saved_and_corrected_to_its_beginning(
    tmp_path: Path, monkeypatch, watch
):
    monkeypatch.setattr("gtmsm.explore.explorer.OPEN", 16)
    model = model_of(watch=watch, **EAGER)
    explorer, early = Explorer(model, closure=8), None
    for t, (frame, action) in enumerate(to_and_fro(6)):
        explorer.step(frame, action)
        if t == 38:
            early = explorer.path
    assert explorer._places.is_map and len(explorer._places.pose) <= 8
    assert len(explorer) == 60 and (explorer.path[:, :22] - early[:, :22]).abs().max() > 0.03
    torch.testing.assert_close(explorer.memory.place.mean, explorer.path)
    explorer.save(tmp_path / "walk.safetensors")
    other, fork = Explorer.load(tmp_path / "walk.safetensors", model), explorer.fork()
    for frame, action in to_and_fro(1):
        for walk in (explorer, other, fork):
            walk.step(frame, action)
    assert same(explorer, other) and same(explorer, fork)
    about, tensors = read_tensors(tmp_path / "walk.safetensors")
    tensors["places.of"][-1] = 99
    write_tensors(tmp_path / "walk.safetensors", tensors, about)
    with pytest.raises(InputError, match="places do not fit together"):
        Explorer.load(tmp_path / "walk.safetensors", model)


def test_a_fork_closes_loops_of_its_own():
    explorer = explored(model_of(**EAGER), steps=20, closure=8)
    fork, other = explorer.fork(), explorer.fork()
    for walk, seed in ((fork, 1), (explorer, 1), (other, 2)):
        for frame, action in zip(*a_walk(10, seed), strict=True):
            walk.step(frame, action)
    assert same(fork, explorer)
    assert not torch.equal(other.path, explorer.path)


def test_memorise_says_that_single_steps_close_no_loops():
    model, (frames, actions) = model_of(), a_walk()
    memory, here = model.memorise(frames[None], actions[None], closure=8)
    with pytest.raises(InputError, match="1 step, which closes no loop; walk with Explorer"):
        model.memorise(frames[None, :1], actions[None, :1], memory, here, closure=8)


@pytest.mark.parametrize("form", ["off", "paper"])
def test_loops_need_landmarks_that_can_close_them(form):
    with pytest.raises(InputError, match="closed by landmarks of form bayes"):
        Explorer(model_of(form), closure=8)


# ---- unknown starts


def test_a_second_walk_through_a_place_finds_out_where_it_is_and_adds_to_the_memory(tmp_path: Path):
    """Pictures that the shipped weights were not trained on; another one is not taken for this."""
    model, world = WorldModel.load(SHIPPED), ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    explorer = Explorer(model)
    for frame, action in seen_on(world, picture=7, cell=4, steps=200):
        explorer.step(frame, action)
    stranger, second = (Explorer(model, explorer.memory, model.anywhere(1)) for _ in range(2))
    for walk, picture in ((stranger, 300), (second, 7)):
        assert walk.lost
        for frame, action in seen_on(world, picture, cell=2, steps=30):
            walk.step(frame, action)
        assert walk.path.shape == (1, 30, 2)
    assert (stranger.lost, second.lost) == (True, False)
    assert (len(stranger), len(second), len(explorer)) == (200, 230, 200)
    assert (second.here.mean[0] - (world.pose[0] - 4)).norm() < 0.5
    # Guesses of when it was lost are no steps that failed, however often it is forked and saved.
    for walk in (second, second.fork(), saved_and_loaded(second, tmp_path)):
        assert len(walk.walked.after) == len(second) - 200 - 1
    for walk in (stranger, stranger.fork(), saved_and_loaded(stranger, tmp_path)):
        assert not len(walk.walked.after)


def saved_and_loaded(explorer: Explorer, folder: Path, **changed: object) -> Explorer:
    """From a file whose description is changed; None: without that."""
    explorer.save(path := folder / "explorer.safetensors")
    about, tensors = read_tensors(path)
    write_tensors(path, tensors, {name: x for name, x in (about | changed).items() if x is not None})
    return Explorer.load(path, explorer.model)


def test_a_file_of_before_guesses_were_counted_holds_nothing_else_if_its_explorer_is_lost(tmp_path: Path):
    model = model_of()
    found, lost = explored(model, steps=6), Explorer(model, explored(model).memory, model.anywhere(1))
    for frame, action in zip(*a_walk(3, seed=2), strict=True):
        lost.step(frame, action)
    assert lost.lost
    assert len(saved_and_loaded(found, tmp_path, guessed=None).walked.after) == 5
    assert not len(saved_and_loaded(lost, tmp_path, guessed=None).walked.after)
    with pytest.raises(InputError, match="guessed is 7 of 6 steps"):
        saved_and_loaded(found, tmp_path, guessed=7)


def test_a_file_of_before_actions_were_kept_is_walked_on_with(tmp_path: Path):
    model = model_of(**EAGER)
    now = explored(model, closure=8)
    now.save(path := tmp_path / "walk.safetensors")
    about, tensors = read_tensors(path)
    del tensors["actions"]
    with pytest.raises(InputError, match="walk.safetensors lacks actions"):
        write_tensors(path, tensors, about)
        Explorer.load(path, model)
    write_tensors(path, tensors, {name: x for name, x in about.items() if name not in ("guessed", "moved")})
    old = Explorer.load(path, model)
    assert same(old, now) and old.obstacles is None and not len(old.walked.after)
    for frame, action in zip(*a_walk(10, seed=2), strict=True):
        assert torch.equal(old.step(frame, action).mean, now.step(frame, action).mean)
    assert torch.equal(old.path, now.path) and len(old.walked.after) == 9
    assert torch.equal(saved_and_loaded(old, tmp_path).path, old.path)


def test_a_long_walk_in_an_older_file_whose_variance_grew_without_limit_is_not_taken_for_lost(tmp_path: Path):
    model = model_of()
    walked = explored(model)
    walked.here = Belief(walked.here.mean, model.anywhere(1).covariance)  # as it was written then
    old = saved_and_loaded(walked, tmp_path)
    assert not old.lost
    old.step(torch.rand(3, 8, 8), 1)
    assert len(old) == 21
    # One that was lost before its first step still is.
    assert saved_and_loaded(Explorer(model, explored(model).memory, model.anywhere(1)), tmp_path).lost


@pytest.mark.parametrize("newer", [2, "1.5", None])
def test_a_file_of_a_newer_format_is_refused_by_name(tmp_path: Path, newer):
    explored(model_of()).save(path := tmp_path / "walk.safetensors")
    about, tensors = read_tensors(path)
    write_tensors(path, tensors, about | {"explorer": newer})
    with pytest.raises(InputError, match=f"is of format {newer!r}, and this gtmsm reads 1; update gtmsm"):
        Explorer.load(path, model_of())


def test_a_walk_that_is_saved_after_its_model_has_learned_on_belongs_to_the_weights_that_made_it(tmp_path: Path):
    model = model_of()
    walked = explored(model)
    with torch.no_grad():
        next(model.vae.parameters()).mul_(1.5)
    walked.save(tmp_path / "walk.safetensors")
    with pytest.raises(InputError, match="made by the weights"):
        Explorer.load(tmp_path / "walk.safetensors", model)
    assert same(Explorer.load(tmp_path / "walk.safetensors", model_of()), explored(model_of()))


def seen_on(world: ImageWalk, picture: int, cell: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Frames and actions of a walk from this row and column."""
    world.place(torch.tensor([picture]), torch.tensor([[cell, cell]]))
    clip = as_clip(world, PoissonWalker()(world, steps, torch.Generator().manual_seed(cell)))
    return list(zip(clip.x[0], clip.a[0], strict=True))


def test_one_that_is_lost_is_saved_as_it_is(tmp_path: Path):
    model = model_of()
    explorer = Explorer(model, explored(model).memory, model.anywhere(1))
    for frame, action in zip(*a_walk(3, seed=2), strict=True):
        explorer.step(frame, action)
    assert explorer.lost
    explorer.save(tmp_path / "walk.safetensors")
    other = Explorer.load(tmp_path / "walk.safetensors", model)
    assert other.lost
    frame, action = (part[0] for part in a_walk(1, seed=3))
    assert torch.equal(explorer.step(frame, action).mean, other.step(frame, action).mean)


def test_nobody_is_lost_without_a_memory():
    model = model_of()
    with pytest.raises(InputError, match="no memory to find it in"):
        Explorer(model, here=model.anywhere(1))


def test_who_recognises_nothing_for_hundreds_of_steps_walks_by_its_actions():
    model, (frames, actions) = model_of(doubt=100.0, stray=2.0), a_walk(60)
    explorer = Explorer(model)
    for frame, action in zip(frames, actions, strict=True):
        explorer.step(frame, action)
    unknown = model.landmarks.settings.reach**2
    assert 0.9 * unknown < model.landmarks.as_variance(explorer.here).item() < unknown  # it would be more by itself
    assert not explorer.lost and len(explorer) == 60
    reckoned = model.motion.unroll(model.motion.start(1), actions[None])
    torch.testing.assert_close(explorer.path, reckoned, rtol=0, atol=1e-3)


# ---- which weights made it


def test_the_memory_of_other_weights_is_refused(tmp_path: Path):
    mine, other = model_of(), model_of(seed=1)
    explorer, (frames, actions) = explored(other), a_walk()
    memory, here = explorer.memory, explorer.here
    explorer.save(tmp_path / "walk.safetensors")
    for refused in (
        lambda: Explorer(mine, memory),
        lambda: Explorer.load(tmp_path / "walk.safetensors", mine),
        lambda: mine.memorise(frames[None], actions[None], memory),
        lambda: mine.follow(frames[None], actions[None], memory),
        lambda: mine.imagine(memory, here, PLANS),
        lambda: mine.localise(memory, frames[None, :1]),
        lambda: explored(mine).memory.write(memory),
        lambda: mine.memorise(frames[None], actions[None])[0].write(memory),
    ):
        with pytest.raises(InputError, match="made by the weights"):
            refused()


def test_weights_that_have_changed_make_other_memories():
    model = model_of()
    memory, made = explored(model).memory, model.fingerprint
    with torch.no_grad():
        next(model.vae.parameters()).mul_(1.5)
    assert model.fingerprint != made
    with pytest.raises(InputError, match="made by the weights"):
        model.imagine(memory, Explorer(model).here, PLANS[:1])


def test_the_same_weights_elsewhere_have_the_same_fingerprint(tmp_path: Path):
    model = model_of()
    model.save(tmp_path / "weights.safetensors")
    assert WorldModel.load(tmp_path).fingerprint == model.fingerprint == model_of().fingerprint


@pytest.mark.parametrize("without", ["path", "here.mean", "memory.place"])
def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path, without):
    path, model = tmp_path / "walk.safetensors", model_of()
    explored(model).save(path)
    about, tensors = read_tensors(path)
    write_tensors(path, {name: value for name, value in tensors.items() if name != without}, about)
    with pytest.raises(InputError, match="walk.safetensors lacks"):
        Explorer.load(path, model)


def test_weights_are_no_explorer(tmp_path: Path):
    model_of().save(tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="not saved by an Explorer"):
        Explorer.load(tmp_path / "weights.safetensors", model_of())


UP, DOWN, LEFT, RIGHT, STAY = range(5)


@pytest.fixture(scope="module")
def bumped():
    """A picture with an obstacle, and an explorer that has walked around it and bumped into each of its three cells."""
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    solid = torch.zeros(1, 9, 9, dtype=torch.bool)
    solid[0, 3:6, 5] = True
    world.place(torch.tensor([7]), torch.tensor([[4, 4]]), solid)
    explorer = Explorer(WorldModel.load(SHIPPED))
    there = [STAY, RIGHT, UP, RIGHT, UP, RIGHT, RIGHT, DOWN, DOWN, LEFT]
    back = [RIGHT, DOWN, DOWN, LEFT, LEFT, UP, LEFT, UP, UP]
    for action in there + back:
        world.step(torch.tensor([action]))
        explorer.step(world.look()[0], action)
    return explorer, world


def test_who_has_bumped_into_an_obstacle_imagines_to_be_stopped_there(bumped, tmp_path: Path):
    explorer, world = bumped
    plan = [RIGHT, RIGHT, UP, RIGHT, DOWN, DOWN, RIGHT, UP, UP, UP, RIGHT, RIGHT, DOWN, LEFT, DOWN]
    world.place(world.image, torch.tensor([[4, 4]]), world.solid)
    true = as_clip(world, torch.tensor([plan])).true_pose - 4  # its walk began at cell 4, 4
    dream = explorer.imagine([plan])
    assert ((dream.poses - true).norm(dim=-1) < 0.5).all()  # in the right cells
    assert torch.equal(dream.frames[0, 0], dream.frames[0, 1])  # where it is stopped, it sees the same
    through = explorer.imagine([plan], bumps=False).poses
    assert ((through - true).norm(dim=-1) > 0.8).all()
    explorer.save(tmp_path / "walk.safetensors")
    for other in (explorer.fork(), Explorer.load(tmp_path / "walk.safetensors", explorer.model)):
        assert torch.equal(other.imagine([plan]).poses, dream.poses)


def test_a_dream_as_an_environment_is_stopped_where_imagining_is(bumped):
    explorer, plan = bumped[0], [RIGHT, UP, RIGHT, RIGHT, UP, RIGHT, RIGHT, DOWN, DOWN, LEFT, LEFT]
    env = gymnasium.make("gtmsm/Dream-v0", run=explorer.model, memory=explorer, observation="place").unwrapped
    env.reset(seed=0)
    env.dreams.state = explorer.here.mean.clone()
    poses = torch.cat([torch.as_tensor(env.step(action)[4]["pose"])[None] for action in plan])
    torch.testing.assert_close(explorer.imagine([plan]).poses[0], poses, atol=1e-4, rtol=1e-4)


def test_an_obstacle_that_was_never_met_stops_no_dream(bumped):
    explorer = Explorer(bumped[0].model)
    world = bumped[1]
    world.place(world.image, torch.tensor([[4, 4]]), world.solid)
    for action in (STAY, RIGHT, UP):  # it has met the cell on the right of where it began, and none else
        world.step(torch.tensor([action]))
        explorer.step(world.look()[0], action)
    ends = explorer.imagine([[RIGHT], [DOWN], [STAY]]).poses[:, 0]
    torch.testing.assert_close(ends, torch.tensor([[-1.0, 1.0], [0.0, 0.0], [-1.0, 0.0]]), atol=0.2, rtol=0)
    below = explorer.imagine([[DOWN, RIGHT]]).poses[0]
    torch.testing.assert_close(below, torch.zeros(2, 2), atol=0.2, rtol=0)


@pytest.mark.parametrize("seed", [None, 3])
def test_where_nothing_was_bumped_into_a_dream_is_that_of_the_motion_to_the_bit(bumped, seed):
    def dream(explorer, plans, **settings):
        chance = None if seed is None else torch.Generator().manual_seed(seed)
        return explorer.imagine(plans, chance, **settings)

    never = explored(model_of("off"))
    assert never.obstacles is None
    assert torch.equal(dream(never, PLANS).frames, dream(never, PLANS, bumps=False).frames)
    elsewhere = [[LEFT, LEFT, UP], [UP, DOWN, LEFT]]
    assert bumped[0].obstacles is not None
    assert torch.equal(dream(bumped[0], elsewhere).frames, dream(bumped[0], elsewhere, bumps=False).frames)


def test_obstacles_follow_the_walk_as_it_goes_on(bumped):
    explorer, world = Explorer(bumped[0].model), bumped[1]
    world.place(world.image, torch.tensor([[4, 4]]), world.solid)
    known = []
    for action in (STAY, RIGHT, UP, RIGHT):
        world.step(torch.tensor([action]))
        explorer.step(world.look()[0], action)
        known.append(0 if explorer.obstacles is None else len(explorer.obstacles.bumped))
    assert known == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "wrong", [(torch.rand(3, 5, 5), 1), (torch.rand(3, 8, 8), [1.0, 0.0]), (torch.rand(3, 8, 8), [1.0])]
)
def test_a_step_that_is_refused_leaves_an_explorer_as_it_was(tmp_path: Path, wrong):
    model = model_of()
    explorer, other = explored(model, closure=8), explored(model, closure=8)
    with pytest.raises(InputError):
        explorer.step(*wrong)
    for frame, action in zip(*a_walk(10, seed=2), strict=True):
        assert torch.equal(explorer.step(frame, action).mean, other.step(frame, action).mean)
    assert same(explorer, other)
    explorer.save(tmp_path / "walk.safetensors")
    assert same(Explorer.load(tmp_path / "walk.safetensors", model), other)


class Interrupted:
    """Ctrl-C at the n-th line that a folder of the package executes."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self.entered)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def entered(self, frame, event, value):
        return self.line if "gtmsm/explore" in frame.f_code.co_filename else None

    def line(self, frame, event, value):
        self.left -= event == "line"
        if event == "line" and not self.left:
            raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize(("steps", "lost"), [(7, False), (15, False), (7, True)])
def test_a_step_that_is_interrupted_anywhere_loses_no_walk(tmp_path: Path, monkeypatch, steps, lost):
    monkeypatch.setattr("gtmsm.explore.explorer.OPEN", 16)  # of 16 steps the first 8 are settled
    model, path = model_of(**({} if lost else EAGER)), tmp_path / "walk.safetensors"
    walked = explored(model, steps, closure=8)  # the next step closes loops
    frames, actions = a_walk(10, seed=2)
    if lost:
        walked = Explorer(model, walked.memory, model.anywhere(1))
        walked.step(frames[3], actions[3])
        assert walked.lost
    n, whole, ended = 0, 0, False
    while not ended:
        n += 1
        explorer = walked.fork()
        held, made = len(explorer), explorer.path.shape[1]
        with suppress(KeyboardInterrupt), Interrupted(n):
            explorer.step(frames[0], actions[0])
            ended = True
        if n % 5 and not ended:
            continue
        whole += explorer.path.shape[1] - made
        assert explorer.path.shape[1] - made in (0, 1) and len(explorer) - held in (0, 0 if lost else 1)
        explorer.save(path)
        other = Explorer.load(path, model)
        for frame, action in zip(frames[1:], actions[1:], strict=True):
            here, there = explorer.step(frame, action).mean, other.step(frame, action).mean
            torch.testing.assert_close(here, there, atol=0.02, rtol=0)  # the same, unless a loop closure was cut short
    assert n > 30 and whole > 0


def test_a_frame_that_is_refused_leaves_one_that_is_lost_as_it_was(tmp_path: Path):
    model = model_of()
    lost = Explorer(model, explored(model).memory, model.anywhere(1))
    frames, actions = a_walk(3, seed=2)
    lost.step(frames[0], actions[0])
    with pytest.raises(InputError):
        lost.step(torch.rand(3, 5, 5), 1)
    lost.step(frames[1], actions[1])
    assert lost.lost and lost.path.shape[1] == 2
    lost.save(tmp_path / "walk.safetensors")
    again = Explorer.load(tmp_path / "walk.safetensors", model)
    assert again.lost and torch.equal(again.step(frames[2], actions[2]).mean, lost.step(frames[2], actions[2]).mean)
    about, tensors = read_tensors(tmp_path / "walk.safetensors")
    write_tensors(tmp_path / "walk.safetensors", tensors, about | {"guessed": 1})
    with pytest.raises(InputError, match="guessed is 1, but 2 frames are not placed yet"):
        Explorer.load(tmp_path / "walk.safetensors", model)


def test_after_a_long_walk_over_new_ground_an_explorer_is_not_taken_for_lost(tmp_path: Path):
    model = model_of(reach=0.5, steady=0.2, doubt=1_000.0)  # nothing is recognised, and the variance grows
    explorer = explored(model, steps=60)
    assert model.landmarks.as_variance(explorer.here)[0, 0] > 0.2
    explorer.save(tmp_path / "walk.safetensors")
    other = Explorer.load(tmp_path / "walk.safetensors", model)
    assert not explorer.lost and not other.lost
    assert not Explorer(model, explorer.memory, explorer.here).lost
    for frame, action in zip(*a_walk(5, seed=2), strict=True):
        assert torch.equal(explorer.step(frame, action).mean, other.step(frame, action).mean)
    assert len(explorer) == len(other) == 65


def test_a_corrected_pose_is_where_the_next_step_begins_and_where_the_last_view_is_remembered():
    model = model_of("off", kind="free")
    model.motion.M.copy_(torch.tensor([[-1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 0.0]]))
    explorer = Explorer(model)
    for action in (4, 3, 3, 3):
        explorer.step(torch.rand(3, 8, 8), action)
    assert explorer.obstacles is None
    explorer._correct(torch.tensor([[0.0, 2.0]]))  # the last step led nowhere, as a journey has seen
    assert explorer.obstacles.bumped.tolist() == [[0.0, 3.0]]
    assert explorer.imagine([[3]]).poses.flatten().tolist() == [0, 2]
    explorer.step(torch.rand(3, 8, 8), 1)  # and this one was made
    assert explorer.path[0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 2], [1, 2]]
    assert explorer.obstacles.bumped.tolist() == [[0.0, 3.0]]


def test_an_explorer_that_has_seen_nothing_knows_no_obstacles():
    assert Explorer(model_of()).obstacles is None


@pytest.mark.parametrize("distance", ["euclidean", "kl"])
def test_an_explorer_of_weights_that_still_learn_hands_out_no_gradients(distance):
    model = model_of("off", kind="free", distance=distance)
    model.motion.M.copy_(torch.tensor([[-1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 0.0]]))
    model.requires_grad_(True)
    frames, plan = torch.rand(1, 3, 3, 8, 8), torch.eye(5)[None, [RIGHT, STAY]]
    memory, here = model.memorise(frames, torch.eye(5)[None, [STAY, LEFT, LEFT]])
    walked = Walked(here.mean, torch.eye(5)[[LEFT]], here.mean)  # a step that failed
    assert memory.place.mean.requires_grad and here.mean.requires_grad
    explorer = Explorer(model, memory, here)
    dream, obstacles = explorer.imagine(plan), Obstacles.of(model.motion, explorer.memory, walked)
    assert obstacles.bumped.tolist() == [[0.0, -3.0]] == Obstacles.of(model.motion, memory, walked).bumped.tolist()
    ways = [model.plan(memory, here, goal, walked) for goal in (torch.zeros(2), frames[0, 0], torch.ones(2) * 9)]
    env = gymnasium.make("gtmsm/Dream-v0", run=model, memory=memory, goal=frames[0, 0], observation="place").unwrapped
    env.reset(seed=0)
    given = [explorer.here.mean, *explorer.memory.columns.values(), dream.poses, dream.frames, dream.codes]
    given += [part for way in ways for part in (way.actions, way.poses, way.frames, way.goal.pose)]
    assert not any(part.requires_grad for part in given)
    assert [len(way.frames) for way in ways] == [2, 2, 0]
    assert np.isfinite(env.step(RIGHT)[0]).all()
    # Whoever learns from a dream of the model itself gets gradients, also through where it is stopped.
    model.imagine(memory, here, plan, obstacles=obstacles).frames.sum().backward()
    assert all(part.grad.abs().max() > 0 for part in model.vae.decoder.parameters())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda one: one.imagine([0, 1, 2]), "give a list of plans of one length"),
        (lambda one: one.imagine([[0, 1], [2]]), "give a list of plans of one length"),
        (lambda one: one.imagine([]), "give a list of plans of one length"),
        (lambda one: one.imagine([[]]), "give a list of plans of one length"),
        (lambda one: one.imagine(5), "plans is 5; give a list of plans of one length"),
        (lambda one: one.imagine(np.array(5)), "give a list of plans of one length"),
        (lambda one: one.imagine([torch.tensor(5)]), "give a list of plans of one length"),
        (lambda one: one.imagine(iter([[0, 1]])), "give a list of plans of one length"),
        (lambda one: one.imagine([PLANS[0, :3], PLANS[1]]), "give a list of plans of one length"),
        (lambda one: one.imagine([[torch.tensor(9)]]), "action is 9; give 0 to 4"),
        (lambda one: one.imagine([PLANS[0, 0]]), "action is 1.0; give a number from 0 to 4"),
        (lambda one: one.step(torch.rand(3, 8, 8), "up"), "give a number from 0 to 4, or a vector of 5 numbers"),
        (lambda one: one.step(torch.rand(3, 8, 8), torch.tensor(True)), "action is True; give a number from 0 to 4"),
        (lambda one: one.step(torch.rand(3, 8, 8), torch.tensor(1.0)), "action is 1.0; give a number from 0 to 4"),
        (lambda one: one.step(torch.rand(3, 8, 8), [0, 0, 0, 0, "1"]), "give a number from 0 to 4, or a vector of 5"),
        (lambda one: one.step(torch.rand(3, 8, 8), torch.eye(5)), "give a number from 0 to 4, or a vector of 5"),
        (lambda one: one.plan([0, 0], choices=[]), "choices is .*; give actions to choose from"),
        (lambda one: one.plan([0, 0], choices=torch.eye(4)), "give a number from 0 to 4, or a vector of 5 numbers"),
        (lambda one: one.plan([0, "a"]), "goal is .*; give a picture, or a pose of 2 numbers"),
        (lambda one: one.plan(None), "goal is None; give a picture, or a pose of 2 numbers"),
        (lambda one: one.plan([0, 0], before=[0, 1]), "before is .*; give a Plan, or None"),
        (lambda one: one.model.plan(one.memory, one.here, one.path[0, 0], choices=torch.eye(4)), "5 numbers each"),
        (lambda one: one.step(np.zeros((15, 15, 3), np.uint8), 1), "15x15 pixels, and this model sees 8x8; scale"),
        (lambda one: Explorer("obstacles-free"), "give a world model, as WorldModel.load"),
    ],
)  # fmt: skip
def test_mistakes_that_come_naturally_are_answered_with_what_to_give(call, says):
    with pytest.raises(InputError, match=says):
        call(explored(model_of()))


@pytest.mark.parametrize(
    "goal",
    [
        (1, 0),
        [np.float32(1), np.float64(0)],
        [torch.tensor(1.0), torch.tensor(0)],
        np.array([1, 0]),
        torch.tensor([1.0, 0.0]).double().requires_grad_(True),
    ],
)
def test_a_goal_may_be_a_list_of_coordinates(goal):
    explorer = explored(model_of())
    assert explorer.find([1.0, 0.0]).pose.tolist() == [1, 0] == explorer.find(goal).pose.tolist()


@pytest.mark.parametrize(
    "plans",
    [
        [torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 3, 3, 1, 1])],
        torch.tensor([[0, 1, 2, 3, 4], [3, 3, 3, 1, 1]], dtype=torch.uint8),
        [list(PLANS[0]), [3, torch.tensor(3), np.int64(3), np.array(1), PLANS[1, 4].numpy()]],
        [PLANS[0], PLANS[1].long()],
        (range(5), np.array([3, 3, 3, 1, 1])),
        PLANS.double().numpy(),
    ],
)
def test_plans_may_be_lists_arrays_or_tensors_of_numbers_or_of_vectors(plans):
    explorer = explored(model_of())
    assert torch.equal(explorer.imagine(plans).poses, explorer.imagine(PLANS).poses)


@pytest.mark.parametrize("action", [torch.tensor(3), torch.tensor(3, dtype=torch.uint8), np.array(3), np.uint8(3)])
def test_a_number_is_an_action_whoever_holds_it(action):
    explorer, frame = explored(model_of()), torch.rand(3, 8, 8)
    assert torch.equal(explorer.fork().step(frame, action).mean, explorer.fork().step(frame, 3).mean)


@pytest.mark.parametrize(
    "choices", [[3, 1], np.array([3, 1]), torch.tensor([3, 1]), [torch.eye(5)[3], 1], np.eye(5)[[3, 1]]]
)
def test_choices_may_be_numbers_or_vectors(choices):
    model = model_of("off", kind="free")
    model.motion.M.copy_(torch.tensor([[-1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0, 0.0]]))
    explorer = Explorer(model)
    for action in (STAY, RIGHT, RIGHT, LEFT, LEFT):
        explorer.step(torch.rand(3, 8, 8), action)
    assert explorer.plan([0, 2], choices=choices).actions.tolist() == torch.eye(5)[[3, 3]].tolist()
