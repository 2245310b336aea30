"""The values that everything else is made of."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from gtmsm.tensors import Belief, Gaussian


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def as_normal(gaussian):
    return Normal(gaussian.mean, (0.5 * gaussian.log_var).exp())


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3, 5), (0, 3)])
def test_the_divergence_is_that_of_two_gaussians(shape):
    one, other = (Gaussian(drawn(*shape, seed=s), drawn(*shape, seed=s + 1)) for s in (0, 2))
    expected = kl_divergence(as_normal(one), as_normal(other)).sum(-1)
    torch.testing.assert_close(one.divergence(other), expected, rtol=1e-12, atol=1e-12)


def test_nothing_diverges_from_itself():
    one = Gaussian(drawn(3, 4), drawn(3, 4, seed=1))
    torch.testing.assert_close(one.divergence(one), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_density_is_that_of_every_dimension_summed():
    one, z = Gaussian(drawn(3, 4), drawn(3, 4, seed=1)), drawn(3, 4, seed=2)
    torch.testing.assert_close(one.log_prob(z), as_normal(one).log_prob(z).sum(-1), rtol=1e-12, atol=1e-12)


def test_the_rows_taken_are_those_asked_for():
    one = Gaussian(drawn(6, 4), drawn(6, 4, seed=1))
    which = torch.tensor([[5, 0, 5], [2, 3, 1]])
    taken = one.take(which)
    assert torch.equal(taken.mean, one.mean[which])
    assert torch.equal(taken.log_var, one.log_var[which])


def test_a_flattened_batch_can_be_restored():
    one = Gaussian(drawn(2, 3, 4), drawn(2, 3, 4, seed=1))
    again = one.flatten().unflatten(0, (2, 3))
    assert torch.equal(again.mean, one.mean)
    assert torch.equal(again.log_var, one.log_var)


def test_an_index_into_a_belief_of_unknown_spread_leaves_it_unknown():
    assert Belief(drawn(2, 3))[0].covariance is None
