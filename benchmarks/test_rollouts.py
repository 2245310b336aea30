"""Many plans imagined at once, against the same plans one after the other, in the same run."""

import torch

from gtmsm.data.record import record
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

PLANS, TAU, HORIZON = 128, 256, 32
AT_LEAST = 5


def a_model_a_memory_and_plans():
    """One place, memorised once for every plan, and plans for what to do there."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1, 3, 32, 32), generator=generator, dtype=torch.uint8)
    world = ImageWalk(images, ImageWalkConfig())
    clip = record(world, PoissonWalker(), 1, TAU, generator)
    torch.manual_seed(0)
    model = WorldModel(WorldModelConfig(), world.frame_shape, len(world.action_names))
    with torch.no_grad():
        memory, here = model.memorise(clip.x, clip.a)
    every = torch.zeros(PLANS, dtype=torch.long)
    kinds = torch.randint(clip.a.shape[-1], (PLANS, HORIZON), generator=generator)
    plans = torch.nn.functional.one_hot(kinds, clip.a.shape[-1]).float()
    return model, Memory(memory.place[every], memory.code[every]), here[every], plans


def at_once(model, memory, here, plans):
    with torch.no_grad():
        return model.imagine(memory, here, plans).frames


def one_by_one(model, memory, here, plans):
    def alone(i: int):
        one = slice(i, i + 1)
        own = Memory(memory.place[one], memory.code[one])
        return at_once(model, own, Belief(here.mean[one]), plans[one])

    return torch.cat([alone(i) for i in range(len(plans))])


def test_many_plans_are_imagined_many_times_faster_at_once(compare):
    given = a_model_a_memory_and_plans()
    torch.testing.assert_close(at_once(*given), one_by_one(*given), rtol=1e-4, atol=1e-4)
    compare(
        f"{PLANS} plans of {HORIZON} steps, imagined to the last pixel", "one by one",
        lambda: one_by_one(*given), lambda: at_once(*given), AT_LEAST,
    )  # fmt: skip
