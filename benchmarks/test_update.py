"""A training update, against the same mathematics step by step, in the same run."""

import copy
import importlib.util
import time
from pathlib import Path

import torch

from gtmsm.data.record import record
from gtmsm.model.elbo import ObjectiveConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.training.update import OptimiserConfig, build_optimiser
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

BATCH, TAU, HORIZON = 16, 256, 32  # App. A.1, at a quarter of the batch
AT_LEAST = 25


def load_twin():
    spec = importlib.util.spec_from_file_location("step_by_step", Path(__file__).with_name("step_by_step.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_the_library(model, frames, actions, tau, generator, reading):
    # No true step enters the bound.
    unknown = torch.zeros_like(actions[..., :2])
    return model(frames, actions, unknown, tau, generator, reading, ObjectiveConfig())[0]


def a_model_and_a_batch():
    generator = seeded(0)
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), generator=generator, dtype=torch.uint8)
    world = ImageWalk(images, ImageWalkConfig())
    clip = record(world, PoissonWalker(), BATCH, TAU + HORIZON, generator)
    torch.manual_seed(0)
    return WorldModel(WorldModelConfig(), world.frame_shape, len(world.action_names)), clip


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def loss_and_gradients(loss_of, model, clip):
    model.zero_grad()
    loss = loss_of(model, clip.x.double(), clip.a.double(), TAU, seeded(1), model.settings.recall)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def updater(loss_of, model, clip):
    """A function that makes one update: forward, backward, clip, Adam."""
    model = copy.deepcopy(model)
    optimiser = build_optimiser(model, OptimiserConfig())
    generator = seeded(2)

    def update():
        loss = loss_of(model, clip.x, clip.a, TAU, generator, model.settings.recall)
        loss.backward()
        optimiser.step(loss)

    return update


def seconds(update):
    began = time.perf_counter()
    update()
    return time.perf_counter() - began


def test_an_update_is_many_times_faster_than_step_by_step(benchmark, capsys):
    twin = load_twin()
    model, clip = a_model_and_a_batch()

    exact = copy.deepcopy(model).double()
    loss, gradients = loss_and_gradients(by_the_library, exact, clip)
    plain_loss, plain_gradients = loss_and_gradients(twin.loss_step_by_step, exact, clip)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-9, atol=1e-9)

    fast, plain = updater(by_the_library, model, clip), updater(twin.loss_step_by_step, model, clip)
    benchmark.pedantic(fast, rounds=30, warmup_rounds=3)
    if benchmark.disabled:
        return
    # The twin's best against our median: what a busy machine adds counts against us.
    slow_seconds, fast_seconds = min(seconds(plain) for _ in range(2)), benchmark.stats.stats.median
    ratio = slow_seconds / fast_seconds
    benchmark.extra_info.update(step_by_step_seconds=slow_seconds, ratio=ratio)
    with capsys.disabled():
        print(
            f"\nan update of {BATCH} walks, {TAU} + {HORIZON} steps: step by step {slow_seconds:.2f} s, "
            f"gtmsm {fast_seconds:.3f} s, {ratio:.0f} times faster (at least {AT_LEAST} asked for)"
        )
    assert ratio >= AT_LEAST
