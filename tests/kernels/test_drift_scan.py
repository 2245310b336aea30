"""Momentum that is damped and saturates."""

import math

import pytest
import torch

from gtmsm.kernels.drift_scan import drift_scan


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("batch", "time", "size"), [(1, 1, 1), (1, 9, 3), (4, 17, 3), (7, 2, 2)])
def test_every_velocity_follows_from_the_one_before(batch, time, size):
    start, push, keep = drawn(batch, size), drawn(batch, time, size, seed=1), torch.rand(size, dtype=torch.float64)
    velocities = drift_scan(start, push, keep)
    before = torch.cat([start[:, None], velocities[:, :-1]], dim=1)
    torch.testing.assert_close(velocities, torch.tanh(keep * before + push), rtol=1e-14, atol=1e-14)


def test_without_steps_there_are_no_velocities():
    assert drift_scan(drawn(4, 3), drawn(4, 0, 3), drawn(3)).shape == (4, 0, 3)


def test_a_steady_push_ends_in_a_steady_velocity():
    keep, push = torch.tensor([0.8], dtype=torch.float64), torch.full((1, 400, 1), 0.3, dtype=torch.float64)
    v = drift_scan(torch.zeros(1, 1, dtype=torch.float64), push, keep)[0, -1, 0].item()
    assert v == pytest.approx(math.tanh(0.8 * v + 0.3), abs=1e-12)


def test_gradients_agree_with_finite_differences():
    inputs = [x.requires_grad_() for x in (drawn(2, 3), drawn(2, 5, 3, seed=1), drawn(3, seed=2).sigmoid())]
    assert torch.autograd.gradcheck(drift_scan, inputs)
