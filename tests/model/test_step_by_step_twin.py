"""The bound equals the same mathematics written as plain loops."""

import importlib.util
from pathlib import Path

import pytest
import torch

from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.training.loss import Loss, ObjectiveConfig

TWIN = Path(__file__).parents[2] / "benchmarks" / "step_by_step.py"


@pytest.fixture(scope="module")
def twin():
    spec = importlib.util.spec_from_file_location("step_by_step", TWIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def world_model(coder="dense", state_size=2, noise=1e-3):
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(coder=coder, width=16, code_size=3),
        motion=MotionConfig(state_size=state_size, hidden=8, noise=noise),
    )
    return WorldModel(settings, (2, 4, 4), action_size=5).double()


def walks(batch, steps):
    generator = torch.Generator().manual_seed(1)
    frames = torch.rand(batch, steps, 2, 4, 4, dtype=torch.float64, generator=generator)
    # Not one-hot: no place is visited twice, so that which neighbours are nearest is never a matter of rounding.
    actions = torch.randn(batch, steps, 5, dtype=torch.float64, generator=generator)
    return frames, actions


def loss_of(model, frames, actions, tau, reading):
    """As training has it: nothing but the bound, which no true step enters."""
    unknown = torch.full((*actions.shape[:2], 2), torch.nan, dtype=actions.dtype)
    generator = torch.Generator().manual_seed(2)
    loss, logs, _ = Loss(model, ObjectiveConfig())(frames, actions, unknown, tau, reading, generator)
    return loss, logs


def loss_and_gradients(model, loss):
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [loss.detach(), *gradients]


@pytest.mark.parametrize(
    ("batch", "tau", "horizon", "reading"),
    [
        (1, 1, 1, RecallConfig(neighbours=1)),
        (1, 7, 3, RecallConfig(neighbours=5)),
        (3, 9, 1, RecallConfig(neighbours=3, delta=1e-2)),
        (2, 6, 5, RecallConfig(neighbours=0, delta=1e-2)),
        (2, 6, 5, RecallConfig(neighbours=6)),
        (2, 40, 3, RecallConfig(neighbours=2)),  # most of memory is never retrieved
    ],
)
@pytest.mark.parametrize("state_size", [1, 2, 3])
def test_loss_and_gradients_equal_those_of_plain_loops(twin, batch, tau, horizon, reading, state_size):
    model = world_model(state_size=state_size)
    frames, actions = walks(batch, tau + horizon)
    loss, _ = loss_of(model, frames, actions, tau, reading)
    plain = twin.loss_step_by_step(model, frames, actions, tau, torch.Generator().manual_seed(2), reading)
    torch.testing.assert_close(loss_and_gradients(model, loss), loss_and_gradients(model, plain), rtol=1e-9, atol=1e-9)


def test_plain_loops_agree_with_the_convolutional_coder(twin):
    model, (frames, actions) = world_model(coder="conv"), walks(2, 8)
    reading = RecallConfig(neighbours=2)
    loss, _ = loss_of(model, frames, actions, 5, reading)
    plain = twin.loss_step_by_step(model, frames, actions, 5, torch.Generator().manual_seed(2), reading)
    torch.testing.assert_close(loss_and_gradients(model, loss), loss_and_gradients(model, plain), rtol=1e-9, atol=1e-9)


def test_the_noise_of_the_walk_reaches_the_bound(twin):
    frames, actions = walks(2, 8)
    losses = []
    for r in (0.0, 0.3):
        generator = torch.Generator().manual_seed(2)
        losses.append(twin.loss_step_by_step(world_model(noise=r), frames, actions, 5, generator, RecallConfig()))
    assert (losses[0] - losses[1]).abs() > 1e-3


def test_the_mean_over_frames_is_the_mean_of_explained_frames():
    model, (frames, actions) = world_model(), walks(3, 9)
    loss, logs = loss_of(model, frames, actions, 6, RecallConfig())
    terms = model.explain(frames, actions, 6, torch.Generator().manual_seed(2), RecallConfig())
    torch.testing.assert_close(loss, -terms.bound.mean(), rtol=1e-14, atol=0)
    torch.testing.assert_close(logs["log_likelihood"] - logs["kl"], logs["elbo"], rtol=1e-12, atol=1e-12)
