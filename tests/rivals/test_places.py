"""Rivals that are told where things were seen."""

import pytest
import torch

from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.rivals.build import build_rival
from gtmsm.rivals.grid_map import bilinear, on_grid
from gtmsm.rivals.rival import RivalConfig
from gtmsm.tensors import Gaussian

TAU, HORIZON = 6, 4
VAE = FrameVAEConfig(width=8, code_size=4)


def told(kind):
    """A rival of agents with a heading, and the poses of a walk."""
    torch.manual_seed(0)
    motion = MotionConfig(kind="gliding", noise=1e-3)
    borrowed = WorldModel(WorldModelConfig(vae=VAE, motion=motion), (3, 8, 8), 3) if kind == "grid-map" else None
    rival = build_rival(RivalConfig(kind=kind, width=32, neighbours=2, cells=6), VAE, (3, 8, 8), 3, 3, borrowed)
    return rival, 3 * torch.rand(2, TAU + HORIZON, 3)


def prior_mean(rival, poses, a):
    code = Gaussian(torch.linspace(-1, 1, 2 * TAU * 4).view(2, TAU, 4), torch.zeros(2, TAU, 4))
    given = (poses[:, :TAU], poses[:, TAU:]) if rival.needs_poses else None
    return rival.predict(code, a[:, :TAU], a[:, TAU:], given).prior.mean


@pytest.mark.parametrize("kind", ["context-poses", "grid-map"])
def test_agents_may_have_a_heading(kind):
    rival, poses = told(kind)
    a = torch.rand(2, TAU + HORIZON, 3)
    assert prior_mean(rival, poses, a).shape == (2, HORIZON, 4)


def test_true_poses_count_only_relative_to_each_other():
    rival, poses = told("context-poses")
    a = torch.zeros(2, TAU + HORIZON, 3)
    turn = torch.tensor(0.7)
    c, s = turn.cos(), turn.sin()
    x, y, heading = poses.unbind(-1)
    moved = torch.stack([c * x - s * y + 5, s * x + c * y - 2, heading + turn], dim=-1)
    torch.testing.assert_close(prior_mean(rival, moved, a), prior_mean(rival, poses, a), rtol=1e-3, atol=1e-4)


def test_only_the_nearest_memorised_frames_are_looked_at():
    rival, poses = told("context-poses")
    poses[:, :TAU, :2] = 100 * torch.arange(TAU)[:, None]
    poses[:, TAU:, :2] = 110.0
    code = torch.zeros(2, TAU, 4, requires_grad=True)
    given = Gaussian(code, torch.zeros(2, TAU, 4))
    a = torch.zeros(2, TAU + HORIZON, 3)
    rival.predict(given, a[:, :TAU], a[:, TAU:], (poses[:, :TAU], poses[:, TAU:])).prior.mean.sum().backward()
    assert (code.grad.abs().sum(-1) > 0).tolist() == [[False, True, True, False, False, False]] * 2


def test_a_position_belongs_to_the_four_cells_around_it():
    share = bilinear(torch.tensor([[[1.25, 2.0]], [[3.0, 0.5]]]), 4).view(2, 4, 4)
    expected = torch.zeros(2, 4, 4)
    expected[0, 1, 2], expected[0, 2, 2] = 0.75, 0.25
    expected[1, 3, 0] = expected[1, 3, 1] = 0.5
    torch.testing.assert_close(share, expected)


def test_the_map_is_a_quarter_wider_than_the_memorised_walk_and_tells_what_lies_outside():
    xy = torch.tensor([[[0.0, 0.0], [4.0, 2.0], [2.0, 1.0], [20.0, 1.0]]])
    at, outside = on_grid(xy, 2, 11)
    torch.testing.assert_close(at[0, :3], torch.tensor([[1.0, 3.0], [9.0, 7.0], [5.0, 5.0]]))
    assert at[0, 3].tolist() == [10.0, 5.0]
    assert outside[0, :3].abs().max() == 0 and outside[0, 3, 0] > 0.9
