"""The controls: what the same memory would show with other knowledge."""

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.columns import CONTROLS
from gtmsm.evaluation.controls import controls
from gtmsm.evaluation.forecaster import Guess
from gtmsm.model.dream import Dream
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory
from gtmsm.model.recall import RecallConfig
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

TAU, HORIZON, CLIPS = 30, 40, 6


@pytest.fixture(scope="module")
def scene() -> tuple[WorldModel, Clip, Memory, Dream]:
    """An untrained model after a walk over noise, where no two places look alike."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, 20, 20), dtype=torch.uint8, generator=generator)
    clip = record(ImageWalk(images, ImageWalkConfig(size=20)), PoissonWalker(), CLIPS, TAU + HORIZON, generator)
    settings = WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8), recall=RecallConfig(neighbours=3))
    model = WorldModel(settings, (3, 8, 8), 5)
    past, future = clip.split(TAU)
    with torch.no_grad():
        memory, here = model.memorise(past.x, past.a)
        return model, clip, memory, model.imagine(memory, here, future.a)


def revisited(true_pose: torch.Tensor, tau: int) -> torch.Tensor:
    """Which predicted steps are at a memorised cell."""
    return (true_pose[:, tau:, None] == true_pose[:, None, :tau]).all(-1).any(-1)


def controls_of(model: WorldModel, clip: Clip, memory: Memory, dream: Dream) -> dict[str, Guess]:
    """In a world of cells, cells are places as good as any."""
    places = clip.true_pose, clip.true_pose
    return controls(model, *clip.split(TAU), memory, dream, places, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def guesses(scene: tuple[WorldModel, Clip, Memory, Dream]) -> dict[str, Guess]:
    model, clip, memory, dream = scene
    with torch.no_grad():
        return controls_of(model, clip, memory, dream)


def test_every_control_has_a_row_in_the_table(guesses):
    assert guesses.keys() == CONTROLS.keys()


@pytest.mark.parametrize("name", CONTROLS)
def test_every_control_shows_every_future_frame(scene, guesses, name: str):
    assert guesses[name].frames.shape == scene[1].x[:, TAU:].shape
    assert guesses[name].frames.min() >= 0
    assert guesses[name].frames.max() <= 1


def test_the_ceiling_encodes_and_decodes_the_answer(scene, guesses):
    model, clip, _, _ = scene
    with torch.no_grad():
        expected = model.vae.decode(model.vae.encode(clip.x[:, TAU:]).mean)
    assert torch.equal(guesses["vae_ceiling"].frames, expected)
    assert guesses["vae_ceiling"].retrieved is None


def test_a_copy_at_the_true_pose_is_exact_where_it_was_before(scene, guesses):
    clip = scene[1]
    seen = revisited(clip.true_pose, TAU)
    assert seen.any()
    assert torch.equal(guesses["copy_nearest_true_pose"].frames[seen], clip.x[:, TAU:][seen])


@pytest.mark.parametrize("name", ["copy_nearest_true_pose", "copy_nearest_predicted_pose", "last_frame"])
def test_no_copy_is_better_than_the_best(scene, guesses, name):
    best, other = (
        (guesses[each].frames - scene[1].x[:, TAU:]).square().mean((-3, -2, -1)) for each in ("best_copy", name)
    )
    assert (best <= other + 1e-6).all()
    assert best.mean() < other.mean()


def test_a_copy_at_the_true_pose_is_wrong_where_it_never_was(scene, guesses):
    clip = scene[1]
    unseen = ~revisited(clip.true_pose, TAU)
    assert unseen.any()
    off = (guesses["copy_nearest_true_pose"].frames - clip.x[:, TAU:]).abs().amax((-3, -2, -1))
    assert (off[unseen] > 0).all()


@pytest.mark.parametrize("name", ["true_pose_memory", "copy_nearest_true_pose"])
def test_a_control_that_is_told_the_true_pose_has_no_retrieval_of_its_own(guesses, name: str):
    assert guesses[name].retrieved is None


def test_memory_at_true_poses_is_the_ceiling_where_it_was_before(scene, guesses):
    seen = revisited(scene[1].true_pose, TAU)
    at_truth, ceiling = (guesses[name].frames[seen] for name in ("true_pose_memory", "vae_ceiling"))
    torch.testing.assert_close(at_truth, ceiling)


def test_a_copy_at_the_predicted_pose_is_the_frame_that_the_model_retrieves(scene, guesses):
    _, clip, _, dream = scene
    copy = guesses["copy_nearest_predicted_pose"]
    assert torch.equal(copy.retrieved, dream.retrieved)
    for i in range(CLIPS):
        assert torch.equal(copy.frames[i], clip.x[i, dream.retrieved[i]])


def test_the_last_frame_is_repeated(scene, guesses):
    clip = scene[1]
    assert all(torch.equal(frame, clip.x[:, TAU - 1]) for frame in guesses["last_frame"].frames.unbind(1))


def test_the_mean_frame_is_the_mean_of_memory_and_of_nothing_else(scene, guesses):
    mean = scene[1].x[:, :TAU].mean(1)
    for frame in guesses["mean_frame"].frames.unbind(1):
        torch.testing.assert_close(frame, mean)


def test_random_retrieval_decodes_what_it_drew_from_all_of_memory(scene, guesses):
    model, _, memory, _ = scene
    drawn = guesses["random_retrieval"].retrieved
    assert set(drawn.flatten().tolist()) == set(range(TAU))
    with torch.no_grad():
        expected = model.vae.decode(memory.code.mean[torch.arange(CLIPS)[:, None], drawn])
    torch.testing.assert_close(guesses["random_retrieval"].frames, expected)


def test_random_retrieval_is_the_same_for_the_same_seed(scene, guesses):
    model, clip, memory, dream = scene
    with torch.no_grad():
        again = controls_of(model, clip, memory, dream)
    assert torch.equal(again["random_retrieval"].retrieved, guesses["random_retrieval"].retrieved)


def test_no_control_but_the_copy_at_the_predicted_pose_depends_on_the_motion(scene, guesses):
    model, clip, memory, _ = scene
    elsewhere = model.imagine(memory, memory.place[:, 0], clip.a[:, TAU:].roll(7, 1))
    with torch.no_grad():
        others = controls_of(model, clip, memory, elsewhere)
    changed = {name for name in guesses if not torch.equal(others[name].frames, guesses[name].frames)}
    assert changed == {"copy_nearest_predicted_pose"}
