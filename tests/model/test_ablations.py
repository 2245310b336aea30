"""What memory may lack: entries that it forgets, statistics, poses relative to the query."""

from dataclasses import replace

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.elbo import foresee, infer
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.tensors import Belief

TAU, FUTURE, LATEST = 12, 7, 5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def model_with(prior, kind, choice="nearest", **recall):
    """A tiny model."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind=kind, noise=1e-2, hidden=8),
        recall=RecallConfig(prior=prior, choice=choice, width=16, **recall),
    )
    return WorldModel(settings, (3, 8, 8), action_size=5)


def walks(batch=3, steps=TAU + FUTURE, dtype=torch.float32):
    frames = torch.rand(batch, steps, 3, 8, 8, dtype=dtype, generator=seeded(1))
    return frames, torch.randn(batch, steps, 5, dtype=dtype, generator=seeded(2))


@pytest.mark.parametrize("choice", ["nearest", "visible"])
@pytest.mark.parametrize("neighbours", [0, 3])
def test_the_latest_entries_are_read_as_if_memory_held_no_others(choice, neighbours):
    model = model_with("query", "gliding", choice, neighbours=neighbours, latest=LATEST)
    memory, here = model.memorise(*walks(steps=TAU))
    held = memory.at(torch.arange(TAU - LATEST, TAU))
    actions = walks()[1][:, TAU:]
    bounded, alone = (model.imagine(known, here, actions) for known in (memory, held))
    assert torch.equal(bounded.prior.neighbours.index, alone.prior.neighbours.index + TAU - LATEST)
    torch.testing.assert_close(bounded.frames, alone.frames, rtol=0, atol=0)


def test_a_long_memory_forgets_the_same():
    model = model_with("mixture", "walled", neighbours=3, latest=LATEST)
    memory, here = model.memorise(*walks(1, TAU))
    actions = walks(1)[1][:, TAU:]
    one, other = (model.imagine(known, here, actions).frames for known in (memory, LongMemory.of(memory)))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_training_reads_the_latest_entries_only():
    model, (frames, actions) = model_with("mixture", "walled", neighbours=3, latest=LATEST), walks()
    walk = infer(model, frames, actions, seeded())
    found = foresee(model, frames, actions, walk, TAU, None, model.settings.recall, seeded())
    assert found.forecast.neighbours.index.min() == TAU - LATEST
    whole = replace(model.settings.recall, latest=0)
    everything = foresee(model, frames, actions, walk, TAU, None, whole, seeded())
    assert everything.forecast.neighbours.index.min() < TAU - LATEST


def test_a_memory_of_samples_holds_codes_drawn_from_what_it_saw_and_one_variance():
    model = model_with("mixture", "walled", holds="samples").double()
    with torch.no_grad():
        model.log_var.copy_(torch.tensor([0.5, -1.0, 0.0, 2.0]))
    frames = torch.rand(1, 1, 3, 8, 8, dtype=torch.float64, generator=seeded(1)).expand(1, 4_000, -1, -1, -1)
    memory, _ = model.memorise(frames, torch.zeros(1, 4_000, 5, dtype=torch.float64))
    code = model.vae.encode(frames[:, :1])
    drawn = (memory.code.mean - code.mean) / (0.5 * code.log_var).exp()
    torch.testing.assert_close(drawn.mean(1), torch.zeros_like(drawn[:, 0]), rtol=0, atol=0.06)
    torch.testing.assert_close(drawn.std(1), torch.ones_like(drawn[:, 0]), rtol=0, atol=0.04)
    assert (memory.code.log_var == model.log_var).all()


def test_two_steps_memorised_one_by_one_are_drawn_anew_and_again_the_same():
    model = model_with("mixture", "walled", holds="samples")
    frames, actions = (part[:, :1] for part in walks())

    def twice():
        first, here = model.memorise(frames, actions)
        return model.memorise(frames, actions, first, here)[0].code.mean

    assert not torch.equal(*twice().unbind(1))
    assert torch.equal(twice(), twice())


@pytest.mark.parametrize("prior", ["mixture", "query"])
def test_the_variance_of_samples_is_learned(prior):
    model, (frames, actions) = model_with(prior, "turning", holds="samples"), walks()
    if prior == "query":
        with torch.no_grad():
            model.prior.view[-1].weight.normal_(std=0.1)
    model.explain(frames, actions, TAU, seeded(3)).bound.mean().backward()
    assert model.log_var.grad.any()


@pytest.mark.parametrize(("poses", "differs"), [("relative", False), ("absolute", True)])
def test_where_a_walk_began_changes_only_what_absolute_poses_say(poses, differs):
    model = model_with("query", "free", poses=poses).double()
    with torch.no_grad():
        model.prior.view[-1].weight.normal_(std=0.1, generator=seeded(4))
    memory, here = model.memorise(*walks(steps=TAU, dtype=torch.float64))
    moved = replace(memory, place=Belief(memory.place.mean + 2.0, memory.place.covariance))
    actions = walks(dtype=torch.float64)[1][:, TAU:]
    one = model.imagine(memory, here, actions)
    other = model.imagine(moved, Belief(here.mean + 2.0, here.covariance), actions)
    assert torch.equal(one.retrieved, other.retrieved) and one.frames.shape[1] == FUTURE
    assert bool((one.frames - other.frames).abs().max() > 1e-6) == differs


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"latest": -1}, "latest is -1; give a number of entries, or 0 for all"),
        ({"latest": 4}, "neighbours is 5 but latest is 4; read at most as many as are kept"),
        ({"latest": 9, "distance": "kl"}, "latest is 9, but the KL distance is looked for in all of memory"),
        ({"poses": "absolute"}, "poses is absolute, which only the query network can be told; use it with prior query"),
    ],
)
def test_what_cannot_be_left_out_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        RecallConfig(**wrong)


def test_landmarks_refuse_samples():
    with pytest.raises(InputError, match="landmarks compare views by the variances of their codes"):
        WorldModelConfig(recall=RecallConfig(holds="samples"), landmark=LandmarkConfig(form="bayes"))
