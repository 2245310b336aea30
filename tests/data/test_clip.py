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
        true_step=torch.rand(3, 10, 2, generator=generator),
    )


def test_past_and_future_put_together_are_the_clip(clip):
    past, future = clip.split(7)
    for name in ("x", "a", "true_pose", "true_step"):
        together = torch.cat([getattr(past, name), getattr(future, name)], dim=1)
        assert torch.equal(together, getattr(clip, name))


def test_the_past_is_tau_steps_long(clip):
    past, future = clip.split(7)
    assert (past.steps, future.steps, clip.steps) == (7, 3, 10)


@pytest.mark.parametrize("tau", [-1, 0, 10, 11])
def test_a_split_that_leaves_no_past_or_no_future_is_refused(clip, tau):
    with pytest.raises(InputError, match=f"tau is {tau}; give a whole number from 1 to 9"):
        clip.split(tau)


def test_an_index_picks_the_same_walks_from_every_field(clip):
    picked = clip[1:]
    assert torch.equal(picked.x, clip.x[1:])
    assert torch.equal(picked.a, clip.a[1:])
    assert torch.equal(picked.true_pose, clip.true_pose[1:])
    assert torch.equal(picked.true_step, clip.true_step[1:])


def felt_on_the_way(start, poses):
    """Steps from pose to pose in the frame of who takes them, by plain rotation."""
    before = torch.cat([start[:, None], poses[:, :-1]], 1)
    c, s = before[..., 2].cos(), before[..., 2].sin()
    x, y, turn = (poses - before).unbind(-1)
    return torch.stack([c * x + s * y, c * y - s * x, turn], -1)


def test_where_a_walk_with_a_heading_began_follows_from_its_first_step(clip):
    generator = torch.Generator().manual_seed(1)
    start, poses = torch.randn(3, 3, generator=generator), 2 * torch.randn(3, 10, 3, generator=generator)
    walk = Clip(clip.x, clip.a, poses, felt_on_the_way(start, poses))
    torch.testing.assert_close(walk.true_start, start, rtol=1e-5, atol=1e-5)


def test_where_a_walk_without_a_heading_began_is_one_step_back(clip):
    assert torch.equal(clip.true_start, clip.true_pose[:, 0] - clip.true_step[:, 0])


def test_a_clip_does_not_change(clip):
    with pytest.raises(AttributeError):
        clip.x = clip.x * 2
