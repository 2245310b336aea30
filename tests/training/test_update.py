"""A whole update by the kernels of a GPU, interpreted, is the update that readable functions make."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.kernels.operator import forced
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.training.curriculum import Stage
from gtmsm.training.engine import build_fabric
from gtmsm.training.loss import Loss, ObjectiveConfig
from gtmsm.training.update import OptimiserConfig, Updater
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

MODELS = {
    "mixture": WorldModelConfig(vae=FrameVAEConfig(width=16, code_size=4), motion=MotionConfig(hidden=8)),
    "query": WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="gliding", hidden=8),
        recall=RecallConfig(prior="query", width=16, neighbours=3),
    ),
    "conv": WorldModelConfig(
        vae=FrameVAEConfig(coder="conv", width=16, code_size=4),
        motion=MotionConfig(hidden=8),
        recall=RecallConfig(neighbours=3),
    ),
    "rays": WorldModelConfig(
        vae=FrameVAEConfig(coder="spatial", width=16, code_size=16),
        motion=MotionConfig(kind="gliding", hidden=8),
        recall=RecallConfig(prior="rays", choice="visible", width=64, layers=1, neighbours=3),
    ),
    "drifting": WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="drifting"),
        recall=RecallConfig(neighbours=3),
    ),
}


captures = pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU captures graphs")


@pytest.fixture(autouse=True)
def full_float32(monkeypatch):
    """Twins round to TF32 each in its own way, and convolutions add up in any order; compared here is the rest."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def a_model_and_its_updater(settings, device, batch=3, tau=7, horizon=3):
    """A model that walks over random images, about to learn."""
    torch.manual_seed(0)
    crop = 8 if settings.vae.coder == "spatial" else 4  # of four patches
    images = (255 * torch.rand(6, 3, 2 * crop, 2 * crop)).byte().to(device)
    world = ImageWalk(images, ImageWalkConfig(size=2 * crop, crop=crop, stride=crop // 2))
    walker = PoissonWalker()
    model = WorldModel(settings, world.frame_shape, 5).to(device)
    turns = int(settings.motion.has_heading)

    def source(n, steps, generator):
        clip = record(world, walker, n, steps, generator)
        truth = (torch.nn.functional.pad(part, (0, turns)) for part in (clip.true_pose, clip.true_step))
        return Clip(clip.x, clip.a, *truth)

    generator = torch.Generator(device).manual_seed(0)
    objective = ObjectiveConfig(displacement=float(turns), foresight=0.0 if settings.vae.coder == "dense" else 1.0)
    loss = Loss(model, objective)
    updater = Updater(build_fabric(device, 1, 3), loss, source, OptimiserConfig(batch=batch), generator)
    updater.enter(Stage("here", 0, 100, tau, horizon, settings.recall, motion_rate=1.0, wall_rate=5.0))
    return model, updater


def updated(settings, implementation, device, capacity, **sizes):
    """What one update has learned, as Adam's mean of gradients, and what it logged."""
    _, updater = a_model_and_its_updater(settings, device, **sizes)
    updater._capacity.frames = capacity
    with forced(implementation):
        updater._update()
    return learned(updater), updater.take_sums()


def learned(updater):
    """Adam's mean of gradients, as one vector."""
    groups = updater.optimiser.groups.values()
    states = [updater.optimiser.state(parameter) for group in groups for parameter in group]
    return torch.cat([state["exp_avg"].flatten() for state in states])


@pytest.mark.parametrize(("name", "capacity"), [*((name, 13) for name in MODELS), ("mixture", None), ("query", None)])
def test_fast_kernels_make_the_update_that_readable_functions_make(triton_device, name, capacity):
    sizes = {"batch": 2, "tau": 6, "horizon": 2}
    fast, readable = (updated(MODELS[name], which, triton_device, capacity, **sizes) for which in ("cuda", "readable"))
    assert (fast[0] - readable[0]).norm() < 1e-4 * readable[0].norm()
    for key, value in readable[1].items():
        assert fast[1][key] == pytest.approx(value, rel=2e-3, abs=1e-3), key


def test_enough_capacity_changes_nothing():
    settings = MODELS["mixture"]
    plain, padded = (updated(settings, "readable", "cpu", capacity) for capacity in (None, 64))
    torch.testing.assert_close(plain, padded, rtol=1e-4, atol=1e-6)


def test_too_little_capacity_leaves_steps_out_says_so_and_still_learns():
    settings = MODELS["mixture"]
    gradient, logged = updated(settings, "readable", "cpu", capacity=10)
    assert gradient.isfinite().all() and gradient.norm() > 0
    assert 0 < logged["left_out"] < 1
    assert logged["elbo"] != pytest.approx(updated(settings, "readable", "cpu", None)[1]["elbo"], rel=1e-6)


@pytest.mark.parametrize(("held", "rates"), [("motion", (0.0, 5.0)), ("walls", (1.0, 0.0))])
def test_what_a_stage_holds_counts_neither_in_the_clipping_norm_nor_in_the_moments(held, rates):
    norms = []
    for larger in (1.0, 1e6):
        model, updater = a_model_and_its_updater(MODELS["mixture"], "cpu")
        updater.enter(Stage("here", 0, 100, 9, 5, model.settings.recall, *rates))
        for parameter in updater.optimiser.groups[held]:
            parameter.register_hook(lambda gradient, times=larger: times * gradient)
        updater._update()
        norms.append(updater.take_sums()["gradient"])
        states = [updater.optimiser.state(parameter) for parameter in updater.optimiser.groups[held]]
        assert not any(value.any() for state in states for value in state.values())
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_reading_all_of_memory_needs_no_capacity():
    settings = replace(MODELS["mixture"], recall=RecallConfig(neighbours=0))
    assert updated(settings, "readable", "cpu", None)[0].isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU learns in half precision")
@pytest.mark.parametrize("name", MODELS)
def test_in_half_precision_gradients_are_those_of_full_precision_but_for_rounding(name):
    found = []
    for precision in ("bfloat16", "float32"):
        _, updater = a_model_and_its_updater(MODELS[name], "cuda")
        updater.settings = replace(updater.settings, precision=precision)
        updater._update()
        found.append(learned(updater))
    assert (found[0] - found[1]).norm() < 0.1 * found[1].norm()


@captures
@pytest.mark.parametrize("name", MODELS)
def test_captured_updates_are_the_updates_themselves(name, monkeypatch):
    if name == "conv":  # among neighbours that are equally near, the rounding of its convolutions decides
        all_of_memory = replace(MODELS[name], recall=RecallConfig(neighbours=0))
        monkeypatch.setitem(MODELS, name, all_of_memory)
    by_graph, one_by_one = (weights_after(8, name, captured) for captured in (True, False))
    torch.testing.assert_close(by_graph, one_by_one, rtol=1e-3, atol=2e-4)


@captures
def test_on_a_busy_gpu_captured_updates_draw_the_same_random_numbers(busy_gpu):
    expected = weights_after(5, "mixture", captured=False)
    for _ in range(12):  # the first replay is the fifth update; without waiting for it, one in three to ten went wrong
        torch.testing.assert_close(weights_after(5, "mixture", captured=True), expected, rtol=1e-3, atol=2e-4)


@captures
@pytest.mark.parametrize("name", MODELS)
def test_from_one_and_the_same_state_a_captured_update_learns_the_same(name):
    _, updater = a_model_and_its_updater(MODELS[name], "cuda")
    for _ in range(8):
        updater.run()
    before, moments = a_copy_of_all_state(updater), learned(updater)
    gradients = []
    for update in (updater.run, updater._update):
        restore(updater, before)
        update()
        assert int(updater.count) == 9
        gradients.append(learned(updater) - 0.9 * moments)
    assert updater._graph is not None and gradients[0].norm() > 0
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


@captures
def test_where_more_frames_are_needed_a_graph_is_captured_anew():
    _, updater = a_model_and_its_updater(MODELS["mixture"], "cuda")
    for _ in range(5):
        updater.run()
    capacity = updater._capacity.frames
    assert capacity is not None and updater._graph is not None
    updater._capacity.note(torch.tensor(capacity + 1, device="cuda"))
    updater.take_sums()
    assert updater._graph is None and updater._capacity.frames > capacity
    for _ in range(3):
        updater.run()
    assert updater._graph is not None and int(updater.count) == 8


def weights_after(updates, name, captured):
    model, updater = a_model_and_its_updater(MODELS[name], "cuda")
    for _ in range(updates):
        updater.run() if captured else updater._update()
    return model.state_dict()


@pytest.fixture
def busy_gpu():
    """A GPU that others use as well."""
    others = [subprocess.Popen([sys.executable, "-c", MULTIPLY_FOR_EVER], stdout=subprocess.PIPE) for _ in range(6)]
    try:
        for other in others:
            assert other.stdout.readline() == b"here we go\n"
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


MULTIPLY_FOR_EVER = """
import torch
a = torch.randn(6000, 6000, device="cuda")
print("here we go", flush=True)
while True:
    for _ in range(5):
        a @ a
    torch.cuda.synchronize()
"""


def a_copy_of_all_state(updater):
    return [*(part.clone() for part in tensors_of(updater)), updater.generator.get_state()]


def restore(updater, state):
    for part, was in zip(tensors_of(updater), state[:-1], strict=True):
        part.copy_(was)
    updater.generator.set_state(state[-1])


def tensors_of(updater):
    optimiser = updater.optimiser
    parameters = [parameter for group in optimiser.groups.values() for parameter in group]
    state = [value for parameter in parameters for value in optimiser.state(parameter).values()]  # counts are shared
    return [*(parameter.data for parameter in parameters), *state, optimiser.count, optimiser.first_bad]
