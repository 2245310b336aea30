"""PyTorch's transforms work on a whole model: it may be compiled, exported and mapped."""

import pytest
import torch

from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig

MODELS = {
    "mixture": WorldModelConfig(vae=FrameVAEConfig(width=16, code_size=4), motion=MotionConfig(hidden=8)),
    "query": WorldModelConfig(
        vae=FrameVAEConfig(coder="conv", width=16, code_size=4),
        motion=MotionConfig(kind="gliding", hidden=8),
        recall=RecallConfig(prior="query", width=16, neighbours=3),
    ),
    "rays": WorldModelConfig(
        vae=FrameVAEConfig(coder="spatial", width=16, code_size=16),
        motion=MotionConfig(kind="turning", hidden=8),
        recall=RecallConfig(prior="rays", choice="visible", width=64, layers=1, neighbours=3),
    ),
}


def model_and_walk(name):
    torch.manual_seed(0)
    model = WorldModel(MODELS[name], (3, 8, 8), action_size=5).requires_grad_(False)
    frames = torch.rand(2, 9, 3, 8, 8)
    actions, plan = (torch.eye(5)[torch.randint(5, (2, steps))] for steps in (9, 4))
    return model, frames, actions, plan


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_shows_the_same(name):
    model, *walk = model_and_walk(name)
    expected = model(*walk)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(*walk), expected)


@pytest.mark.parametrize("name", MODELS)
def test_plans_may_be_mapped_over(name):
    model, frames, actions, _ = model_and_walk(name)
    memory, here = model.memorise(frames[:1], actions[:1])
    plans = torch.eye(5)[torch.randint(5, (6, 4))]

    def show(plan):
        return model.imagine(memory, here, plan[None]).frames[0]

    torch.testing.assert_close(torch.func.vmap(show)(plans), model.imagine(memory, here, plans).frames)


def test_an_exported_model_shows_the_same():
    model, *walk = model_and_walk("mixture")
    program = torch.export.export(model, tuple(walk))
    torch.testing.assert_close(program.module()(*walk), model(*walk))
