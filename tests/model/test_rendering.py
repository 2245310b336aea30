"""Render and compare, in a world whose views are known as a function of the pose."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig, SingleView
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.model.rendering import render_and_compare
from gtmsm.model.settings import WorldModelConfig
from gtmsm.pose import Plane, PlaneWithHeading
from gtmsm.tensors import Belief, Gaussian

CODES = 64


def views(pose: Tensor) -> Gaussian:
    """Waves over the plane and the heading, a wall height or so long."""
    waves = 3 * torch.randn(pose.shape[-1], CODES, generator=torch.Generator().manual_seed(0))
    waves[2:] /= 3
    return Gaussian((pose @ waves).sin(), torch.full((*pose.shape[:-1], CODES), -4.0))


def shown(space: Plane | PlaneWithHeading, start: Tensor, path: Tensor) -> Tensor:
    return views(space.step(start[:, None].expand_as(path), path)).mean


@pytest.mark.parametrize("size", [2, 3])
def test_the_pose_that_shows_what_is_seen_is_found_and_refined(size: int):
    space = PlaneWithHeading() if size == 3 else Plane(2)
    path = 0.3 * torch.randn(4, 12, size, generator=torch.Generator().manual_seed(1))
    start = torch.randn(4, size, generator=torch.Generator().manual_seed(2))
    near = start + 0.07
    elsewhere = start[:, None] + torch.tensor([[2.0], [-1.5], [3.1]])
    asked = torch.cat([elsewhere, near[:, None]], dim=1)
    found = render_and_compare(views, space, asked, path, shown(space, start, path))
    assert found.log_prob.argmax(1).tolist() == [3] * 4
    torch.testing.assert_close(found.pose[:, 3], start, atol=0.02, rtol=0)
    assert (found.pose[:, :3] != elsewhere).any(-1).sum() <= 4  # of each walk one more is refined


def repeated(pose: Tensor) -> Gaussian:
    """Views that come again every nine units."""
    waves = torch.randint(-3, 4, (2, CODES), generator=torch.Generator().manual_seed(0)) * 2 * torch.pi / 9
    return Gaussian((pose @ waves).sin(), torch.full((*pose.shape[:-1], CODES), -4.0))


@pytest.mark.parametrize("sure", [True, False])
def test_the_pose_that_is_likelier_beforehand_is_refined_though_others_look_more_like_what_is_seen(sure: bool):
    start = torch.randn(4, 2, generator=torch.Generator().manual_seed(5))
    asked = torch.stack([start + 0.025, start + 9, start - 9], dim=1)
    log_prior = torch.tensor([0.9, 0.05, 0.05]).log() if sure else None
    found = render_and_compare(
        repeated, Plane(2), asked, torch.zeros(4, 1, 2), repeated(start[:, None]).mean, log_prior
    )
    assert (found.best == 0).all() == sure
    if sure:
        torch.testing.assert_close(found.likeliest, start, atol=0.005, rtol=0)


def test_no_pose_is_left_for_a_worse_one():
    space, path = PlaneWithHeading(), torch.zeros(3, 1, 3)
    start = torch.randn(3, 3, generator=torch.Generator().manual_seed(3))
    seen = torch.randn(3, 1, CODES, generator=torch.Generator().manual_seed(4))  # what is shown nowhere
    before = 0.05 * views(start[:, None]).log_prob(seen)
    found = render_and_compare(views, space, start[:, None], path, seen)
    assert (found.log_prob >= before - 1e-4).all()


def test_a_mixture_is_led_by_what_memory_shows():
    """Two places look alike to the matches, the wrong one a little more so; a third is never looked at."""
    space, start = PlaneWithHeading(), torch.tensor([[0.5, -1.0, 0.3]])
    pose = torch.stack([start + 2.0, start + 0.05, start - 2.0], dim=1)
    before = PoseMixture(
        torch.tensor([[0.5, 0.3, 0.1]]),
        pose,
        torch.full((1, 3, 2), 0.01),
        torch.tensor([[7, 8, 9]]),
        torch.tensor([0.1]),
    )
    after = before.judged(views, space, views(start[:, None]).mean, most=2)
    assert after.entry[0].tolist()[0] == 8 and after.weight[0, 0] > 0.98
    torch.testing.assert_close(after.pose[:, 0], start, atol=0.02, rtol=0)
    torch.testing.assert_close(after.weight.sum() + after.unknown[0], torch.tensor(1.0))
    stranger = before.judged(views, space, 3 * torch.ones(1, 1, CODES), most=2)
    assert stranger.unknown > 0.999 and after.unknown < 0.02


def test_a_mixture_of_memorised_views_cannot_be_rendered_between_them():
    with pytest.raises(InputError, match="rendered is 6, but a mixture shows no view between two places"):
        WorldModelConfig(landmark=LandmarkConfig(form="bayes", rendered=6))
    WorldModelConfig(landmark=LandmarkConfig(form="bayes", rendered=6), recall=RecallConfig(prior="query"))
    with pytest.raises(InputError, match="rendered is -1"):
        LandmarkConfig(rendered=-1)


def test_a_model_finds_where_it_is_by_what_its_memory_shows():
    """One that has learned nothing: what it is asked for, it puts where its memory shows it best."""
    torch.manual_seed(0)
    model = WorldModel(
        WorldModelConfig(
            motion=MotionConfig(kind="turning", noise=1e-3),
            recall=RecallConfig(prior="query", neighbours=2, width=16),
            landmark=LandmarkConfig(form="bayes", matches=4, width=16, rendered=3),
        ),
        (3, 8, 8),
        4,
    ).requires_grad_(False)
    frames, actions = torch.rand(2, 12, 3, 8, 8), torch.eye(4)[torch.randint(4, (2, 12))]
    memory, _ = model.memorise(frames, actions)
    found = model.localise(memory, frames[:, 5:6])
    torch.testing.assert_close(found.weight.sum(1) + found.unknown, torch.ones(2))
    assert (found.weight.diff(dim=1) <= 0).all()
    seen = model.vae.encode(frames[:, 5:6]).mean
    plain = replace(model.settings.landmark, rendered=0)
    model.landmarks.settings = model.landmarks.compare.settings = plain
    before = model.localise(memory, frames[:, 5:6])

    def likely(pose: Tensor) -> Tensor:
        view = model.read(memory, Belief(model.motion.place(pose)))
        assert isinstance(view, SingleView)
        return view.code.log_prob(seen)

    assert (likely(found.pose).amax(1) > likely(before.pose[:, :3]).amax(1)).all()  # refined
    model.landmarks.settings = model.landmarks.compare.settings = model.settings.landmark
    lost = model.follow(frames[:, :6], actions[:, :6], memory, model.anywhere(2))
    assert lost.mean.shape[:2] == (2, 6) and lost.covariance is not None and lost.mean.isfinite().all()
