"""What an update minimises: the negative bound, and terms beside it."""

from dataclasses import replace

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.elbo import foresee, infer
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.tensors import Belief
from gtmsm.training.loss import Loss, ObjectiveConfig

TAU, FUTURE, FRAME = 8, 6, (3, 8, 8)
KINDS = ["free", "walled", "turning", "drifting", "gliding"]
PRIORS = ["mixture", "query", "rays"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def model_of(prior="query", kind="turning", noise=1e-2, neighbours=4, form="off"):
    """A tiny model whose agent gets around."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(coder="spatial" if prior == "rays" else "dense", width=16, code_size=4),
        motion=MotionConfig(kind=kind, noise=noise, hidden=8),
        recall=RecallConfig(prior=prior, neighbours=neighbours, width=64, layers=1),
        landmark=LandmarkConfig(form=form, width=8, matches=3),
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


def loss_of(model, seed=3, true_step=None, reading=None, times=1, **objective):
    frames, actions = (part.repeat(times, *(1 for _ in part.shape[1:])) for part in walks())
    if true_step is None:
        true_step = torch.zeros(2 * times, TAU + FUTURE, model.motion.pose_size, dtype=torch.float64)
    reading = reading or model.settings.recall
    loss, logs, _ = Loss(model, ObjectiveConfig(**objective))(frames, actions, true_step, TAU, reading, seeded(seed))
    return loss, logs


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
    assert logs.keys() == {"elbo", "log_likelihood", "kl", "left_out"}


def test_a_few_targets_give_the_bound_on_average():
    model = model_of()
    with torch.no_grad():
        full, few = (
            torch.stack([loss_of(model, seed, targets=targets, times=10)[0] for seed in range(20)])
            for targets in (0, 2)
        )
    error = (few.var() / 20 + full.var() / 20).sqrt()
    assert few.std() > full.std()
    assert (few.mean() - full.mean()).abs() < 4 * error
    assert error < 0.05 * full.mean().abs()


def test_as_many_targets_as_there_are_steps_are_all_of_them():
    model = model_of()
    losses = [loss_of(model, targets=targets)[0] for targets in (0, FUTURE, 100)]
    assert losses[0] == losses[1] == losses[2]


def test_targets_of_a_clip_are_different_steps_of_its_future(monkeypatch):
    model, asked = model_of(), []

    def listening(model, frames, actions, walk, tau, steps, *rest):
        asked.append(steps)
        return foresee(model, frames, actions, walk, tau, steps, *rest)

    monkeypatch.setattr("gtmsm.training.loss.foresee", listening)
    for seed in range(20):
        loss_of(model, seed, targets=3)
    for steps in torch.stack(asked).flatten(0, 1).tolist():
        assert len(set(steps)) == 3
        assert min(steps) >= TAU and max(steps) < TAU + FUTURE
    assert set(torch.stack(asked).flatten().tolist()) == set(range(TAU, TAU + FUTURE))


def test_means_over_complete_steps_are_not_rounded_under_autocast():
    model, (frames, actions) = model_of("mixture", "walled").float(), (part.float() for part in walks())
    loss = Loss(model, ObjectiveConfig())
    given = frames, actions, torch.zeros(2, TAU + FUTURE, 2), TAU, model.settings.recall
    with torch.autocast("cpu", torch.bfloat16):
        plain, _, needed = loss(*given, seeded())
        bounded, logs, _ = loss(*given, seeded(), int(needed))
    assert logs["left_out"] == 0
    torch.testing.assert_close(bounded, plain, rtol=1e-6, atol=0)


# ---- the regression of displacements

ROUNDING = 1e-28
"""Squared: true steps here are differences of poses, the model returns its own steps directly."""


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


@pytest.mark.parametrize("prior", ["query", "rays"])
def test_foresight_trains_the_prior_and_the_decoder(prior):
    model, (frames, actions) = model_of(prior, noise=0.0), walks()
    learning = [*model.prior.parameters(), *model.vae.decoder.parameters()]
    plain, with_it = (torch.autograd.grad(loss_of(model, foresight=weight)[0], learning) for weight in (0.0, 2.0))
    memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
    shown = model.imagine(memory, here, actions[:, TAU:]).frames
    error2 = (shown - frames[:, TAU:]).square().sum((2, 3, 4)).mean()
    for before, after, alone in zip(plain, with_it, torch.autograd.grad(2 * error2, learning), strict=True):
        torch.testing.assert_close(after - before, alone, rtol=1e-6, atol=1e-8)
    assert any(gradient.any() for gradient in torch.autograd.grad(loss_of(model, foresight=1.0)[0], learning))


# ---- landmarks


@pytest.mark.parametrize("form", ["paper", "bayes"])
def test_with_landmarks_the_bound_pays_for_corrected_poses(form):
    model, (frames, actions) = model_of("mixture", "walled", form=form), walks()
    loss, logs = loss_of(model, recognition=0.0)
    assert logs["pose_kl"] > 0
    bound = logs["log_likelihood"] - logs["kl"] - logs["pose_kl"]
    torch.testing.assert_close(logs["elbo"], bound, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss.detach(), -bound, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.explain(frames, actions, TAU, seeded(3)).pose_kl.mean(), logs["pose_kl"])


def test_the_price_of_corrected_poses_trains_what_corrects_them():
    model = model_of("mixture", "walled", form="paper")
    networks = list(model.landmarks.paper.parameters())
    with_it = torch.autograd.grad(loss_of(model, recognition=0.0)[0], networks)
    walk = infer(model, *walks(), seeded(3))
    alone = torch.autograd.grad(walk.pose_kl[:, TAU:].mean(), networks)
    assert any(gradient.abs().max() > 0 for gradient in alone)
    learn = model.landmarks.learn

    def for_nothing(*given):
        learned = learn(*given)
        return replace(learned, divergence=learned.divergence.detach())

    model.landmarks.learn = for_nothing
    without = torch.autograd.grad(loss_of(model, recognition=0.0)[0], networks)
    for one, other, part in zip(with_it, without, alone, strict=True):
        torch.testing.assert_close(one - other, part, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("term", ["regret", "recognition"])
def test_terms_of_landmarks_count_by_their_weights(term):
    model = model_of("mixture", "walled", form="bayes")
    others = {"regret": 0.0, "recognition": 0.0}
    once, thrice = (loss_of(model, **{**others, term: weight}) for weight in (1.0, 3.0))
    assert once[1][term] > 0
    torch.testing.assert_close((thrice[0] - once[0]).detach(), 2 * once[1][term], rtol=1e-9, atol=1e-9)


def test_without_displacements_landmarks_learn_nothing_from_true_steps():
    model = model_of("mixture", "walled", form="bayes")
    one, other = (loss_of(model, true_step=steps_of(model) + far, regret=1.0)[0] for far in (0.0, 3.0))
    assert one == other


def test_without_displacements_a_step_that_changes_nothing_was_not_made():
    model = model_of("mixture", "walled", form="bayes")
    frames, actions = walks()
    frames[:, 3] = frames[:, 2]
    steps = Loss(model, ObjectiveConfig())._reckoned(infer(model, frames, actions, seeded()), actions)
    planned = actions @ model.motion.M.T.detach()
    planned[:, 3] = 0
    torch.testing.assert_close(steps, planned)


def test_without_displacements_views_far_apart_teach_less_if_moves_are_not_trusted():
    model = model_of("mixture", "walled", form="bayes")
    trusted, not_trusted = (loss_of(model, reckoning=share)[1]["recognition"] for share in (1.0, 0.5))
    assert trusted != not_trusted
    same, again = (loss_of(model, displacement=1.0, reckoning=share)[1]["recognition"] for share in (1.0, 0.5))
    assert same == again


def test_with_landmarks_true_displacements_weigh_the_regret_and_not_the_square():
    model = model_of("mixture", "walled", form="bayes")
    true_step = steps_of(model) + 0.5
    once, thrice = (loss_of(model, true_step=true_step, recognition=0.0, displacement=weight) for weight in (1.0, 3.0))
    torch.testing.assert_close((thrice[0] - once[0]).detach(), 2 * once[1]["regret"], rtol=1e-9, atol=1e-9)


# ---- distances between beliefs


def test_by_the_kl_distance_memory_is_read_at_the_marginal_not_at_a_sample_of_it():
    """A sampled mean with the marginal's covariance would count the same uncertainty twice."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="free", noise=0.5),
        recall=RecallConfig(neighbours=4, distance="kl"),
    )
    model, (frames, actions) = WorldModel(settings, FRAME, action_size=3).double(), walks()
    reads = []
    read = model.read
    model.read = lambda memory, query, reading=None: reads.append(query) or read(memory, query, reading)
    for seed in (3, 4):
        model.explain(frames, actions, TAU, seeded(seed))
    here = Belief(model.motion.start(2))
    marginal = model.motion.believe(here, actions)[:, TAU:]
    for query in reads:
        torch.testing.assert_close(query.mean, marginal.mean)
        torch.testing.assert_close(query.covariance, marginal.covariance)


@pytest.mark.parametrize(
    ("name", "value"), [("displacement", -1.0), ("foresight", -0.5), ("targets", -1), ("displacement_after", -1)]
)
def test_an_objective_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value}; give 0 or more"):
        ObjectiveConfig(**{name: value})
