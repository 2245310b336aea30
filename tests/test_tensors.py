"""The values that everything else is made of."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError
from torch.distributions import Normal, kl_divergence

from gtmsm.tensors import Belief, Gaussian, as_place, felt, stepped


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


QUARTER = math.pi / 2


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),  # one ahead, looking east
        ([0.0, 0.0, QUARTER], [0.0, 1.0, QUARTER], [1.0, 0.0, 0.0]),  # one ahead, looking north
        ([5.0, 2.0, QUARTER], [4.0, 2.0, QUARTER], [0.0, 1.0, 0.0]),  # one to the left, looking north
        ([5.0, 2.0, math.pi], [5.0, 3.0, math.pi], [0.0, -1.0, 0.0]),  # one to the right, looking west
        ([0.0, 0.0, 1.0], [0.0, 0.0, 1.5], [0.0, 0.0, 0.5]),  # a turn on the spot
        ([0.0, 0.0, 0.0], [1.0, 0.0, QUARTER], [1.0, 0.0, QUARTER]),  # it moves as it looked before it turned
        ([0.0, 0.0, 0.1], [0.0, 0.0, 6.5], [0.0, 0.0, 6.4]),  # headings are not wrapped
    ],
)
def test_a_step_is_felt_in_the_frame_of_who_takes_it(before, after, step):
    before, after, step = (torch.tensor(x, dtype=torch.float64) for x in (before, after, step))
    torch.testing.assert_close(felt(before, after), step, rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 6])
def test_without_a_heading_a_step_is_a_difference(size):
    before, after = drawn(4, size), drawn(4, size, seed=1)
    assert torch.equal(felt(before, after), after - before)


@pytest.mark.parametrize("size", [2, 3])
def test_a_step_that_was_felt_leads_to_where_it_led(size):
    before, after = (torch.randn(4, 5, size, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    torch.testing.assert_close(stepped(before, felt(before, after)), after, rtol=1e-12, atol=1e-12)


def test_shapes_in_signatures_are_checked():
    assert as_place(torch.zeros(2, 3)).shape == (2, 4)
    with pytest.raises(TypeCheckError):
        as_place(torch.zeros(2, 4))
