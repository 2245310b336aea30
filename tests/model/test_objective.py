"""What training maximises: the bound, and terms beside it."""

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model import learning
from gtmsm.model.elbo import ObjectiveConfig
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig

TAU, FUTURE, FRAME = 8, 6, (3, 8, 8)
KINDS = ["free", "walled", "turning", "drifting", "gliding"]
PRIORS = ["mixture", "query", "rays"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def model_of(prior="query", kind="turning", noise=1e-2, neighbours=4):
    """A tiny model whose agent gets around."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(coder="spatial" if prior == "rays" else "dense", width=16, code_size=4),
        motion=MotionConfig(kind=kind, noise=noise, hidden=8),
        recall=RecallConfig(prior=prior, neighbours=neighbours, width=64, layers=1),
    )
    model = WorldModel(settings, FRAME, action_size=3).double()
    with torch.no_grad():
        for name, parameter in model.motion.named_parameters():
            if name in ("move", "turn"):
                parameter.copy_(0.4 * drawn(*parameter.shape, seed=7))
    return model


def walks(batch=2):
    frames = torch.rand(batch, TAU + FUTURE, *FRAME, dtype=torch.float64, generator=seeded(1))
    return frames, 0.5 * drawn(batch, TAU + FUTURE, 3, seed=2)


def loss_of(model, seed=3, true_step=None, reading=None, **objective):
    frames, actions = walks()
    if true_step is None:
        true_step = torch.zeros(2, TAU + FUTURE, model.motion.pose_size, dtype=torch.float64)
    reading = reading or model.settings.recall
    return model(frames, actions, true_step, TAU, seeded(seed), reading, ObjectiveConfig(**objective))


def steps_of(model):
    """How the model itself believes to have moved."""
    _, actions = walks()
    return model.motion.displacement(model.motion.unroll(model.motion.start(2), actions)).detach()


# ---- the bound


@pytest.mark.parametrize("kind", ["turning", "drifting", "gliding"])
@pytest.mark.parametrize("prior", PRIORS)
def test_without_further_terms_the_loss_is_the_mean_of_explained_frames(kind, prior):
    model, (frames, actions) = model_of(prior, kind), walks()
    loss, logs = loss_of(model)
    terms = model.explain(frames, actions, TAU, seeded(3))
    torch.testing.assert_close(loss, -terms.bound.mean(), rtol=1e-12, atol=0)
    assert logs.keys() - {"needed"} == {"elbo", "log_likelihood", "kl"}


def test_a_few_targets_give_the_bound_on_average():
    model = model_of()
    with torch.no_grad():
        full, few = (
            torch.stack([loss_of(model, seed, targets=targets)[0] for seed in range(200)]) for targets in (0, 2)
        )
    error = (few.var() / 200 + full.var() / 200).sqrt()
    assert few.std() > full.std()
    assert (few.mean() - full.mean()).abs() < 4 * error
    assert error < 0.05 * full.mean().abs()


def test_as_many_targets_as_there_are_steps_are_all_of_them():
    model = model_of()
    losses = [loss_of(model, targets=targets)[0] for targets in (0, FUTURE, 100)]
    assert losses[0] == losses[1] == losses[2]


def test_targets_of_a_clip_are_different_steps_of_its_future(monkeypatch):
    model, asked = model_of(), []
    foresee = learning._foresee

    def listening(model, frames, actions, tau, steps, *rest):
        asked.append(steps)
        return foresee(model, frames, actions, tau, steps, *rest)

    monkeypatch.setattr(learning, "_foresee", listening)
    for seed in range(20):
        loss_of(model, seed, targets=3)
    for steps in torch.stack(asked).flatten(0, 1).tolist():
        assert len(set(steps)) == 3
        assert min(steps) >= TAU and max(steps) < TAU + FUTURE
    assert set(torch.stack(asked).flatten().tolist()) == set(range(TAU, TAU + FUTURE))


# ---- the regression of displacements

ROUNDING = 1e-28
"""Squared, of the way through poses: truth here is felt along a path, the model knows its steps by themselves."""


@pytest.mark.parametrize("kind", KINDS)
def test_who_moves_as_it_really_did_pays_nothing(kind):
    model = model_of("mixture", kind)
    plain, _ = loss_of(model)
    loss, logs = loss_of(model, true_step=steps_of(model), displacement=100.0)
    assert logs["displacement"] < ROUNDING
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_who_moves_otherwise_pays_by_the_square_of_the_error(kind):
    model = model_of("mixture", kind)
    true_step = steps_of(model)
    true_step[..., 1] += 0.5
    plain, _ = loss_of(model)
    loss, logs = loss_of(model, true_step=true_step, displacement=100.0)
    assert logs["displacement"].item() == pytest.approx(0.25)
    assert (loss - plain).item() == pytest.approx(25.0)


def test_the_beginning_of_a_clip_may_be_left_out_of_the_regression():
    model = model_of()
    true_step = steps_of(model)
    true_step[:, :5] += 3
    assert loss_of(model, true_step=true_step, displacement=1.0, displacement_after=5)[1]["displacement"] < ROUNDING
    assert loss_of(model, true_step=true_step, displacement=1.0, displacement_after=4)[1]["displacement"] > 1


def test_true_steps_are_read_by_nothing_but_the_regression():
    model = model_of()
    unknown = torch.full((2, TAU + FUTURE, 3), torch.nan, dtype=torch.float64)
    assert torch.equal(loss_of(model, true_step=unknown)[0], loss_of(model)[0])


def gradients(model, **given):
    """Of the loss, by the motion's parameters; None where it does not even depend on them."""
    loss, _ = loss_of(model, **given)
    return torch.autograd.grad(loss, list(model.motion.parameters()), allow_unused=True)


def test_the_bound_teaches_the_motion():
    assert all(felt is not None and felt.any() for felt in gradients(model_of()))


def test_a_bound_that_must_not_teach_the_motion_does_not():
    assert all(felt is None for felt in gradients(model_of(), poses_from_bound=False))


def test_displacements_teach_the_motion_where_the_bound_must_not():
    felt = gradients(model_of(), poses_from_bound=False, displacement=1.0)
    assert all(part is not None and part.any() for part in felt)


def test_the_bound_is_the_same_whether_or_not_it_teaches_the_motion():
    assert torch.equal(loss_of(model_of())[0], loss_of(model_of(), poses_from_bound=False)[0])


# ---- foresight


@pytest.mark.parametrize("prior", PRIORS)
def test_foresight_is_the_error_of_what_imagination_shows(prior):
    model, (frames, actions) = model_of(prior, noise=0.0), walks()
    memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
    error2 = (model.imagine(memory, here, actions[:, TAU:]).frames - frames[:, TAU:]).square()
    plain, _ = loss_of(model)
    loss, logs = loss_of(model, foresight=2.0)
    assert logs["foresight"].item() == pytest.approx(error2.mean().item())
    assert logs["foresight"] > 0
    assert (loss - plain).item() == pytest.approx(2.0 * error2.sum((2, 3, 4)).mean().item())


@pytest.mark.parametrize(
    ("name", "value"), [("displacement", -1.0), ("foresight", -0.5), ("targets", -1), ("displacement_after", -1)]
)
def test_an_objective_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; give 0 or more"):
        ObjectiveConfig(**{name: value})
