"""A network makes one view of all that was retrieved."""

import pytest
import torch

from gtmsm.model.memory import Neighbours
from gtmsm.model.query_network import QueryNetwork
from gtmsm.model.recall import RecallConfig, Retrieved
from gtmsm.tensors import Gaussian

CODES, PLACES, K = 3, 4, 5


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network_of(trained=False):
    torch.manual_seed(0)
    network = QueryNetwork(RecallConfig(prior="query", width=16), CODES, PLACES).double()
    if trained:
        with torch.no_grad():
            network.view[-1].weight.copy_(0.3 * drawn(2 * CODES, 16, seed=9))
    return network


def retrieved(batch=2, time=3, delta=1e-4):
    """Five entries for every query, the second of them exactly there."""
    relative = drawn(batch, time, K, PLACES, seed=3)
    relative[:, :, 1] = 0
    near = Neighbours(torch.arange(K).expand(batch, time, K), relative.square().sum(-1))
    bank = Gaussian(drawn(batch * time * K, CODES, seed=1), drawn(batch * time * K, CODES, seed=2))
    return Retrieved(near, bank, torch.arange(batch * time * K).view(batch, time, K), lambda: relative, delta)


def reordered(one, order):
    near = Neighbours(one.neighbours.index[..., order], one.neighbours.distance2[..., order])
    return Retrieved(near, one.bank, one.row[..., order], lambda: one.relative[:, :, order], one.delta)


def test_before_anything_is_learned_an_exact_revisit_is_remembered():
    asked = retrieved(delta=1e-9)
    forecast = network_of()(asked)
    torch.testing.assert_close(forecast.peak(), asked.code.mean[:, :, 1], rtol=0, atol=1e-7)
    assert (forecast.heaviest == 1).all()


def test_before_anything_is_learned_the_mean_is_that_of_the_codes_by_nearness():
    asked = retrieved()
    weight = 1 / (asked.neighbours.distance2 + asked.delta)
    expected = (weight[..., None] * asked.code.mean).sum(-2) / weight.sum(-1, keepdim=True)
    torch.testing.assert_close(network_of()(asked).peak(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("trained", [False, True])
def test_the_order_of_what_was_retrieved_does_not_matter(trained):
    network, asked, order = network_of(trained), retrieved(), [3, 0, 4, 2, 1]
    one, other = network(asked), network(reordered(asked, order))
    torch.testing.assert_close(one.code.mean, other.code.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.code.log_var, other.code.log_var, rtol=1e-10, atol=1e-12)
    assert torch.equal(one.heaviest, torch.tensor(order)[other.neighbours.distance2.argmin(-1)])


def test_one_query_does_not_know_of_the_others():
    network, asked = network_of(trained=True), retrieved()
    alone = Retrieved(
        Neighbours(asked.neighbours.index[:1, 2:], asked.neighbours.distance2[:1, 2:]),
        asked.bank,
        asked.row[:1, 2:],
        lambda: asked.relative[:1, 2:],
        asked.delta,
    )
    torch.testing.assert_close(network(asked).peak()[:1, 2:], network(alone).peak(), rtol=1e-10, atol=1e-12)


def test_where_entries_lie_matters_to_what_is_seen():
    network, asked = network_of(trained=True), retrieved()
    elsewhere = Retrieved(asked.neighbours, asked.bank, asked.row, lambda: asked.relative.flip(-1), asked.delta)
    assert ((network(asked).peak() - network(elsewhere).peak()).abs().amax(-1) > 1e-4).all()


def test_every_weight_and_every_pose_feels_the_forecast():
    network, asked = network_of(trained=True), retrieved()
    relative = asked.relative.clone().requires_grad_()
    # At no distance at all the weight of an entry is at its peak, where it has no slope.
    near = Neighbours(asked.neighbours.index, (relative + 0.1).square().sum(-1))
    forecast = network(Retrieved(near, asked.bank, asked.row, lambda: relative, asked.delta))
    (forecast.code.mean.square().sum() + forecast.code.log_var.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    assert (relative.grad.abs().amax(-1) > 0).all()


def test_the_divergence_from_one_view_is_exact():
    forecast, code = network_of(trained=True)(retrieved()), Gaussian(drawn(2, 3, CODES), drawn(2, 3, CODES, seed=5))
    expected = code.divergence(forecast.code)
    assert torch.equal(forecast.divergence(code, drawn(2, 3, CODES, seed=6)), expected)


def test_an_overshooting_network_stays_within_bounds():
    network = network_of()
    with torch.no_grad():
        network.view[-1].bias.fill_(1e6)
        high = network(retrieved()).code.log_var
        network.view[-1].bias.fill_(-1e6)
        low = network(retrieved()).code.log_var
    assert (high == 4).all() and (low == -8).all()
