"""An agent that remembers as it walks."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.explore import Explorer
from gtmsm.files import read_tensors, write_tensors
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig

PLANS = torch.eye(5)[torch.tensor([[0, 1, 2, 3, 4], [3, 3, 3, 1, 1]])]


def model_of(form="bayes", seed=0, distance="euclidean", **landmarks) -> WorldModel:
    torch.manual_seed(seed)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="walled", noise=1e-2, hidden=8),
        recall=RecallConfig(distance=distance),
        landmark=LandmarkConfig(form=form, width=8, matches=3, **landmarks),
    )
    return WorldModel(settings, (3, 8, 8), action_size=5).eval().requires_grad_(False)


def a_walk(steps=20, seed=1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames = torch.rand(steps, 3, 8, 8, generator=generator)
    return frames, torch.eye(5)[torch.randint(5, (steps,), generator=generator)]


def explored(model: WorldModel, steps=20, seed=1) -> Explorer:
    explorer = Explorer(model)
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


@pytest.mark.parametrize("form", ["off", "bayes", "paper"])
def test_steps_one_by_one_are_the_walk_in_one_call(form):
    model, (frames, actions) = model_of(form), a_walk()
    memory, here = model.memorise(frames[None], actions[None])
    explorer = explored(model)
    assert torch.allclose(explorer.here.mean, here.mean, atol=1e-5)
    assert torch.allclose(explorer.path, model.follow(frames[None], actions[None]).mean, atol=1e-5)
    for name, column in memory.columns.items():
        assert torch.allclose(explorer.memory.columns[name], column, atol=1e-5), name
    assert torch.allclose(explorer.imagine(PLANS).frames, model.imagine(memory, here, PLANS).frames, atol=1e-5)


@pytest.mark.parametrize(("form", "distance"), [("off", "euclidean"), ("bayes", "euclidean"), ("off", "kl")])
def test_an_explorer_reopened_answers_the_same_to_the_bit_and_walks_on_alike(tmp_path: Path, form, distance):
    model = model_of(form, distance=distance)
    explorer = explored(model)
    explorer.save(tmp_path / "walk.safetensors")
    other = Explorer.load(tmp_path / "walk.safetensors", model)
    assert len(other) == len(explorer) == 20
    assert same(explorer, other)
    for frame, action in zip(*a_walk(10, seed=2), strict=True):
        assert torch.equal(explorer.step(frame, action).mean, other.step(frame, action).mean)
    assert same(explorer, other)


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
        if not (child := os.fork()):
            _save_and_die(after, path, n)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kept = Explorer.load(path, model)
        assert same(kept, before if len(kept) == 20 else after)
        if not ended:
            assert len(kept) == 30
    assert n > 4  # it was killed at several moments


def _save_and_die(explorer: Explorer, path: Path, n: int) -> None:
    """Save in this process, which kills itself before its n-th write."""
    count, code = 0, 1

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        count += event in {"open", "os.rename", "os.remove", "fcntl.flock"}
        if count == n:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        explorer.save(path)
        code = 0
    finally:
        os._exit(code)


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
