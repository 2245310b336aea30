"""PyTorch's transforms work on a whole model: it may be compiled, and mapped over plans."""

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
        motion=MotionConfig(kind="turning"),
        recall=RecallConfig(prior="rays", choice="visible", width=64, layers=1, neighbours=3),
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of attention, which PyTorch maps one by one
@pytest.mark.parametrize("name", MODELS)
def test_plans_may_be_mapped_over(name):
    torch.manual_seed(0)
    model = WorldModel(MODELS[name], (3, 8, 8), action_size=5).requires_grad_(False)
    actions, plans = (torch.eye(5)[torch.randint(5, size)] for size in ((1, 9), (6, 4)))
    memory, here = model.memorise(torch.rand(1, 9, 3, 8, 8), actions)

    def show(plan):
        return model.imagine(memory, here, plan[None]).frames[0]

    torch.testing.assert_close(torch.func.vmap(show)(plans), model.imagine(memory, here, plans).frames)


@pytest.mark.slow
def test_a_compiled_model_shows_the_same():
    torch.manual_seed(0)
    model = WorldModel(MODELS["mixture"], (3, 8, 8), action_size=5).requires_grad_(False)
    actions, plan = (torch.eye(5)[torch.randint(5, (2, steps))] for steps in (6, 3))
    walk = torch.rand(2, 6, 3, 8, 8), actions, plan
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(*walk), model(*walk))
