"""p(z|s, m): what memory says is to be seen."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from gtmsm.errors import InputError
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory, Neighbours
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import Mixture, RecallConfig, Retrieved
from gtmsm.tensors import Belief, Gaussian

DELTA = 1e-4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def recall(memory, query, reading):
    """What a model that reads so says; places have two dimensions."""
    settings = WorldModelConfig(vae=FrameVAEConfig(width=8), motion=MotionConfig(kind="free"), recall=reading)
    return WorldModel(settings, (1, 2, 2), action_size=3).read(memory, query)


def points(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def memory_of(batch=2, n=12, code_size=3):
    code = Gaussian(points(batch, n, code_size, seed=1), points(batch, n, code_size, seed=2))
    return Memory(Belief(points(batch, n, 2, seed=3)), code)


def nowhere():
    raise AssertionError("a mixture does not ask where entries lie from the query")


def mixture_of(weights, means, deviations):
    """One query, codes of one dimension, these components."""
    weights, means, deviations = (torch.tensor(x, dtype=torch.float64) for x in (weights, means, deviations))
    bank = Gaussian(means[:, None], 2 * deviations.log()[:, None])
    index = torch.arange(len(weights))[None, None]
    near = Neighbours(index, (1 / weights)[None, None] - DELTA)
    return Mixture(Retrieved(near, bank, index, nowhere, DELTA))


def spread_over(mixture, times):
    """The same mixture at each of `times` steps."""
    one = mixture.retrieved
    near = Neighbours(*(x.expand(1, times, -1) for x in (one.neighbours.index, one.neighbours.distance2)))
    return Mixture(Retrieved(near, one.bank, one.row.expand(1, times, -1), nowhere, DELTA))


@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_the_density_is_that_of_a_mixture_of_gaussians(k):
    prior = recall(memory_of(), Belief(points(2, 4, 2, seed=5)), RecallConfig(neighbours=k))
    z = points(2, 4, 3, seed=6)
    parts = Independent(Normal(prior.component.mean, (0.5 * prior.component.log_var).exp()), 1)
    expected = MixtureSameFamily(Categorical(logits=prior.log_weight), parts).log_prob(z)
    torch.testing.assert_close(prior.log_prob(z), expected, rtol=1e-10, atol=1e-11)


def test_the_density_agrees_with_scipy():
    memory, query, z = memory_of(), points(2, 4, 2, seed=5), points(2, 4, 3, seed=6)
    prior = recall(memory, Belief(query), RecallConfig(neighbours=4, delta=1e-2))
    for i, t in np.ndindex(2, 4):
        distance2 = ((memory.place.mean[i] - query[i, t]) ** 2).sum(-1).numpy()
        near = np.argsort(distance2)[:4]
        weight = 1 / (distance2[near] + 1e-2)
        mean, deviation = memory.code.mean[i].numpy()[near], np.exp(0.5 * memory.code.log_var[i].numpy()[near])
        terms = np.log(weight / weight.sum()) + norm.logpdf(z[i, t].numpy(), mean, deviation).sum(-1)
        assert prior.log_prob(z)[i, t].item() == pytest.approx(logsumexp(terms), rel=1e-10)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 1.0])
def test_weights_are_inversely_proportional_to_squared_distance_plus_delta(delta):
    prior = recall(memory_of(), Belief(points(2, 4, 2, seed=5)), RecallConfig(neighbours=5, delta=delta))
    weight = prior.log_weight.exp()
    products = weight * (prior.neighbours.distance2 + delta)
    torch.testing.assert_close(products, products[..., :1].expand_as(products), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weight.sum(-1), torch.ones(2, 4, dtype=torch.float64), rtol=1e-12, atol=0)


def test_an_exact_revisit_weighs_almost_everything():
    memory = memory_of()
    prior = recall(memory, memory.place[:, [7]], RecallConfig(neighbours=5))
    assert (prior.log_weight[..., 0].exp() > 0.99).all()
    assert torch.equal(prior.heaviest, torch.full((2, 1), 7))


def test_zero_neighbours_read_all_of_memory():
    prior = recall(memory_of(n=9), Belief(points(2, 4, 2, seed=5)), RecallConfig(neighbours=0))
    assert prior.log_weight.shape == (2, 4, 9)


def test_reading_all_of_memory_is_reading_as_many_entries_as_it_holds():
    query, z = Belief(points(2, 4, 2, seed=5)), points(2, 4, 3, seed=6)
    densities = [recall(memory_of(n=9), query, RecallConfig(neighbours=k)).log_prob(z) for k in (0, 9)]
    torch.testing.assert_close(*densities, rtol=1e-12, atol=1e-12)


def test_the_heaviest_entry_is_the_nearest_one():
    memory, query = memory_of(), points(2, 6, 2, seed=5)
    prior = recall(memory, Belief(query), RecallConfig(neighbours=4))
    nearest = torch.cdist(query, memory.place.mean).argmin(-1)
    assert torch.equal(prior.heaviest, nearest)


def test_the_peak_is_the_mean_of_the_heaviest_entry():
    memory = memory_of()
    prior = recall(memory, Belief(points(2, 6, 2, seed=5)), RecallConfig(neighbours=0))
    for i, t in np.ndindex(2, 6):
        assert torch.equal(prior.peak()[i, t], memory.code.mean[i, prior.heaviest[i, t]])


def test_the_peak_never_blends_two_places():
    prior = mixture_of([0.51, 0.49], [-1.0, 1.0], [0.1, 0.1])
    assert prior.peak().item() == -1.0


def test_samples_come_as_often_as_their_weights_say():
    weights = [0.5, 0.3, 0.15, 0.05]
    prior = spread_over(mixture_of(weights, [0.0, 10.0, 20.0, 30.0], [0.1] * 4), 20_000)
    came = (prior.sample(seeded(1)).flatten() / 10).round().long().bincount(minlength=4) / 20_000
    torch.testing.assert_close(came, torch.tensor(weights), rtol=0, atol=0.015)


def test_samples_of_a_component_have_its_mean_and_deviation():
    prior = spread_over(mixture_of([0.6, 0.4], [0.0, 10.0], [0.5, 1.0]), 20_000)
    z = prior.sample(seeded(1)).flatten()
    for part, mean, deviation in ((z[z < 5], 0.0, 0.5), (z[z >= 5], 10.0, 1.0)):
        assert part.mean().item() == pytest.approx(mean, abs=0.05)
        assert part.std().item() == pytest.approx(deviation, rel=0.05)


def test_the_same_seed_samples_the_same():
    prior = recall(memory_of(), Belief(points(2, 6, 2, seed=5)), RecallConfig())
    assert torch.equal(prior.sample(seeded(3)), prior.sample(seeded(3)))
    assert not torch.equal(prior.sample(seeded(3)), prior.sample(seeded(4)))


def test_log_q_minus_log_prior_averages_to_the_kl_divergence():
    prior = mixture_of([0.5, 0.3, 0.2], [-1.0, 0.5, 2.0], [0.4, 0.8, 0.3])
    q = Gaussian(*(torch.tensor([[[x]]], dtype=torch.float64) for x in (0.3, -0.7)))
    grid = torch.linspace(-8, 9, 20_001, dtype=torch.float64)[None, :, None]
    log_ratio = q.log_prob(grid) - spread_over(prior, 20_001).log_prob(grid)
    divergence = torch.trapezoid(q.log_prob(grid).exp() * log_ratio, grid[..., 0]).item()

    many = Gaussian(q.mean.expand(1, 100_000, 1), q.log_var.expand(1, 100_000, 1))
    z = many.sample(seeded(2))
    estimates = many.log_prob(z) - spread_over(prior, 100_000).log_prob(z)
    error = estimates.std().item() / 100_000**0.5
    assert estimates.mean().item() == pytest.approx(divergence, abs=4 * error)
    assert error < 0.01 * divergence


def test_the_density_has_gradients_to_places_codes_and_query():
    places, codes = (6, 2), (3, 2)
    inputs = [points(1, *shape, seed=i).requires_grad_() for i, shape in enumerate([places] * 3 + [codes] * 2)]

    def density(keys, mean, log_var, query, z):
        memory = Memory(Belief(keys), Gaussian(mean, log_var))
        return recall(memory, Belief(query), RecallConfig(neighbours=3)).log_prob(z)

    assert torch.autograd.gradcheck(density, inputs)


def test_recall_by_kl_divergence_weighs_by_it():
    wide = 0.2 * torch.eye(2, dtype=torch.float64)
    memory = memory_of()
    sure = Memory(Belief(memory.place.mean, wide.expand(2, 12, 2, 2)), memory.code)
    query = Belief(points(2, 4, 2, seed=5), 2 * wide.expand(2, 4, 2, 2))
    prior = recall(sure, query, RecallConfig(neighbours=3, delta=1e-3, distance="kl"))
    weight = 1 / (prior.neighbours.distance2 + 1e-3)
    torch.testing.assert_close(prior.log_weight.exp(), weight / weight.sum(-1, keepdim=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"neighbours": -1}, "neighbours is -1; give K > 0, or 0 for all of memory"),
        ({"delta": 0.0}, "delta is 0.0; an exact revisit would divide by it"),
        ({"map_size": 5, "prior": "rays"}, "map_size is 5, but prior rays weighs nothing by distance"),
        ({"map_size": -1}, "map_size is -1; give the dimensions of the map, or 0 for none"),
        ({"width": 7}, "width is 7; give at least 8"),
        ({"layers": 0}, "layers is 0; give 1 to 100"),
        ({"field_of_view": 180.0}, "field_of_view is 180.0; give degrees from 0 to 180"),
        ({"field_of_view": 0.0}, "field_of_view is 0.0"),
        ({"distance": "kl", "map_size": 3}, "use it without map_size and with choice nearest"),
        ({"distance": "kl", "choice": "visible"}, "use it without map_size and with choice nearest"),
        ({"prior": "rays", "width": 100}, "width is 100; tokens of rays need a multiple of 64"),
    ],
)
def test_a_reading_that_makes_no_sense_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        RecallConfig(**wrong)
