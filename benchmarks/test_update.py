"""A training update, against the same mathematics step by step, in the same run."""

import copy
import importlib.util
from pathlib import Path

import torch

from gtmsm.data.record import record
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.training.loss import Loss, ObjectiveConfig
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
    return Loss(model, ObjectiveConfig())(frames, actions, unknown, tau, reading, generator)[0]


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
    optimiser = build_optimiser(Loss(model, ObjectiveConfig()).groups, OptimiserConfig())
    generator = seeded(2)

    def update():
        loss = loss_of(model, clip.x, clip.a, TAU, generator, model.settings.recall)
        loss.backward()
        optimiser.step(loss)

    return update


def test_an_update_is_many_times_faster_than_step_by_step(compare):
    twin = load_twin()
    model, clip = a_model_and_a_batch()

    exact = copy.deepcopy(model).double()
    loss, gradients = loss_and_gradients(by_the_library, exact, clip)
    plain_loss, plain_gradients = loss_and_gradients(twin.loss_step_by_step, exact, clip)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-9, atol=1e-9)

    ours, plain = updater(by_the_library, model, clip), updater(twin.loss_step_by_step, model, clip)
    compare(f"an update of {BATCH} walks, {TAU} + {HORIZON} steps", "step by step", plain, ours, AT_LEAST, tries=2)
