"""Clips."""

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.errors import InputError


@pytest.fixture
def clip():
    generator = torch.Generator().manual_seed(0)
    return Clip(
        x=torch.rand(3, 10, 3, 4, 4, generator=generator),
        a=torch.rand(3, 10, 5, generator=generator),
        true_pose=torch.rand(3, 10, 2, generator=generator),
    )


def test_past_and_future_put_together_are_the_clip(clip):
    past, future = clip.split(7)
    for name in ("x", "a", "true_pose"):
        together = torch.cat([getattr(past, name), getattr(future, name)], dim=1)
        assert torch.equal(together, getattr(clip, name))


def test_the_past_is_tau_steps_long(clip):
    past, future = clip.split(7)
    assert (past.steps, future.steps, clip.steps) == (7, 3, 10)


@pytest.mark.parametrize("tau", [-1, 0, 10, 11])
def test_a_split_that_leaves_no_past_or_no_future_is_refused(clip, tau):
    with pytest.raises(InputError, match=f"tau is {tau}; .* clip of 10 steps needs 0 < tau < 10"):
        clip.split(tau)


def test_an_index_picks_the_same_walks_from_every_field(clip):
    picked = clip[1:]
    assert torch.equal(picked.x, clip.x[1:])
    assert torch.equal(picked.a, clip.a[1:])
    assert torch.equal(picked.true_pose, clip.true_pose[1:])


def test_a_clip_does_not_change(clip):
    with pytest.raises(AttributeError):
        clip.x = clip.x * 2
