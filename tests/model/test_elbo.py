"""The bound is below the evidence, and reaches it where q is the posterior."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from gtmsm.model.elbo import Elbo
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig
from gtmsm.model.memory import Memory
from gtmsm.model.recall import MixturePrior, Retrieved
from gtmsm.tensors import Belief, Gaussian

GRID = torch.linspace(-12, 12, 8_001, dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[None, :, None]


def vae_of(likelihood="gaussian", frame=(1, 2, 2)):
    """An untrained coder, its decoder made steep enough that codes matter."""
    torch.manual_seed(0)
    vae = FrameVAE(FrameVAEConfig(width=8, code_size=1, likelihood=likelihood), frame).double()
    with torch.no_grad():
        for p in vae.decoder.parameters():
            p.mul_(3)
    return vae.requires_grad_(False)


def nowhere():
    raise AssertionError("a mixture does not ask where entries lie from the query")


def read(memory, query, k, delta):
    """The mixture of the k entries nearest to each query."""
    near = memory.nearest(query, k)
    bank, row, _ = memory.retrieve(near.index)
    return MixturePrior()(Retrieved(near, bank, row, nowhere, delta))


def elbo(vae, x, code, z, forecast):
    """By the sample z of q(z|x) = `code`."""
    return Elbo(vae.log_likelihood(x, vae.logits(z)), forecast.divergence(code, z))


def prior_at(pose, times):
    """What a memory of three places says at one pose, `times` times over."""
    memory = Memory(Belief(column(-1.0, 0.2, 1.5)), Gaussian(column(-1.2, 0.4, 2.0), column(-1.0, -2.0, 0.3)))
    return read(memory, Belief(column(pose).expand(1, times, 1)), k=3, delta=0.1)


def integrals(vae, x, q, pose):
    """By brute force over z: log p(x | m), and the bound."""
    z = GRID[None, :, None]
    log_likelihood = vae.log_likelihood(x.expand(1, len(GRID), *x.shape[2:]), vae.logits(z))
    log_joint = log_likelihood + prior_at(pose, len(GRID)).log_prob(z)
    log_q = q.log_prob(z)
    evidence = torch.logsumexp(log_joint[0], 0) + math.log(GRID[1] - GRID[0])
    return evidence.item(), torch.trapezoid(log_q.exp() * (log_joint - log_q), GRID).item()


def one_sample_estimates(vae, x, q, pose, times):
    many = Gaussian(q.mean.expand(1, times, 1), q.log_var.expand(1, times, 1))
    return elbo(vae, x.expand(1, times, *x.shape[2:]), many, many.sample(seeded(3)), prior_at(pose, times))


CASES = pytest.mark.parametrize(
    ("likelihood", "pose", "mean", "log_var"),
    [
        ("gaussian", 0.0, 0.3, -2.0),
        ("gaussian", 1.2, 1.0, -1.0),
        ("bernoulli", -0.8, -0.5, -0.5),
        ("bernoulli", 0.2, 1.0, 0.0),
    ],
)


def a_frame(likelihood):
    x = torch.rand(1, 1, 1, 2, 2, dtype=torch.float64, generator=seeded(5))
    return x.round() if likelihood == "bernoulli" else x


@CASES
def test_the_bound_is_below_the_evidence(likelihood, pose, mean, log_var):
    evidence, bound = integrals(vae_of(likelihood), a_frame(likelihood), Gaussian(column(mean), column(log_var)), pose)
    assert bound < evidence


@CASES
def test_one_sample_estimates_average_to_the_bound(likelihood, pose, mean, log_var):
    vae, x, q = vae_of(likelihood), a_frame(likelihood), Gaussian(column(mean), column(log_var))
    estimates = one_sample_estimates(vae, x, q, pose, 40_000).bound
    error = estimates.std().item() / 200
    assert estimates.mean().item() == pytest.approx(integrals(vae, x, q, pose)[1], abs=4 * error)


@CASES
def test_both_terms_average_to_their_integrals(likelihood, pose, mean, log_var):
    vae, x, q = vae_of(likelihood), a_frame(likelihood), Gaussian(column(mean), column(log_var))
    z = GRID[None, :, None]
    density = q.log_prob(z).exp()
    expected = {
        "log_likelihood": density * vae.log_likelihood(x.expand(1, len(GRID), 1, 2, 2), vae.logits(z)),
        "kl": density * (q.log_prob(z) - prior_at(pose, len(GRID)).log_prob(z)),
    }
    terms = one_sample_estimates(vae, x, q, pose, 40_000)
    for name, integrand in expected.items():
        estimates = getattr(terms, name)
        error = estimates.std().item() / 200
        assert estimates.mean().item() == pytest.approx(torch.trapezoid(integrand, GRID).item(), abs=4 * error)


def linear_layers(network):
    return [layer for layer in network if isinstance(layer, torch.nn.Linear)]


def affine_vae(gain, sigma, prior_mean, prior_variance):
    """A coder of x = 1/2 + gain z + noise of deviation sigma, whose encoder is the posterior: precisions add up.

    Its hidden units stay on the straight half of their ELUs, and its logits so small that the sigmoid is its tangent
    to within a part in a million.
    """
    vae = FrameVAE(FrameVAEConfig(width=8, code_size=1), (1, 1, len(gain))).double().requires_grad_(False)
    for p in vae.parameters():
        p.zero_()
    vae.log_sigma.fill_(math.log(sigma))

    into, across, out = linear_layers(vae.decoder)
    far = 100.0
    into.weight[0, 0], into.bias[0], across.weight[0, 0] = 1.0, far, 1.0
    out.weight[:, 0] = 4 * gain
    out.bias.copy_(-4 * gain * far)

    precision = 1 / prior_variance + (gain / sigma).square().sum()
    into, across, out = linear_layers(vae.encoder)
    far = 1e5
    into.weight[0] = gain / sigma**2 / precision
    into.bias[0], across.weight[0, 0] = far - 0.5 * into.weight[0].sum(), 1.0
    out.weight[0, 0], out.bias[0] = 1.0, prior_mean / prior_variance / precision - far
    out.bias[1] = -precision.log()
    return vae


@pytest.fixture
def linear_world():
    return linear_world_of(1)


def linear_world_of(times):
    """Frames of three pixels, a memory of one place, and the evidence of every frame in closed form; so many times."""
    gain, sigma, mean, variance = 1e-4 * torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64), 2e-4, 0.7, 0.6
    alike = [column(value).expand(times, 1, 1) for value in (0.0, mean, math.log(variance), 0.3)]
    memory = Memory(Belief(alike[0]), Gaussian(*alike[1:3]))
    prior = read(memory, Belief(alike[3].expand(times, 6, 1)), k=1, delta=1e-4)
    z = mean + variance**0.5 * torch.randn(1, 6, 1, dtype=torch.float64, generator=seeded(1))
    x = 0.5 + gain * z + sigma * torch.randn(1, 6, 3, dtype=torch.float64, generator=seeded(2))
    spread = variance * gain[:, None] * gain + sigma**2 * torch.eye(3, dtype=torch.float64)
    evidence = MultivariateNormal(0.5 + gain * mean, spread).log_prob(x)
    return affine_vae(gain, sigma, mean, variance), x.view(1, 6, 1, 1, 3).expand(times, 6, 1, 1, 3), prior, evidence


def test_where_q_is_the_posterior_every_sample_of_the_bound_is_the_evidence(linear_world):
    vae, x, prior, evidence = linear_world
    for generator in (seeded(7), seeded(8)):
        code = vae.encode(x)
        bound = elbo(vae, x, code, code.sample(generator), prior).bound
        torch.testing.assert_close(bound, evidence, rtol=0, atol=1e-5)


def test_where_q_is_not_the_posterior_the_bound_falls_by_the_divergence():
    vae, x, prior, evidence = linear_world_of(4_000)
    posterior, generator = vae.encode(x), seeded(9)
    wrong = Gaussian(posterior.mean + 0.3, posterior.log_var + 0.5)
    divergence = 0.5 * (math.exp(0.5) + 0.3**2 / posterior.log_var.exp() - 1 - 0.5)[:1, :, 0]
    estimates = elbo(vae, x, wrong, wrong.sample(generator), prior).bound[:, None]
    error = estimates.std(0) / 4_000**0.5
    assert ((estimates.mean(0) - (evidence - divergence)).abs() < 4 * error).all()
    assert (divergence > 10 * error).all()


def test_a_bound_is_kept_per_frame():
    vae = vae_of()
    q = Gaussian(column(0.1, 0.2, 0.3, 0.4), column(-1.0, -1.0, -1.0, -1.0))
    x = torch.rand(1, 4, 1, 2, 2, dtype=torch.float64, generator=seeded(5))
    terms = elbo(vae, x, q, q.mean, prior_at(0.0, 4))
    assert terms.log_likelihood.shape == terms.kl.shape == terms.bound.shape == (1, 4)
    assert torch.equal(terms.bound, terms.log_likelihood - terms.kl)


def test_the_divergence_at_a_sample_is_the_difference_of_two_log_densities():
    q, prior = Gaussian(column(0.3), column(-2.0)), prior_at(0.0, 1)
    z = q.sample(seeded(7))
    torch.testing.assert_close(prior.divergence(q, z), q.log_prob(z) - prior.log_prob(z), rtol=1e-12, atol=1e-12)


def test_the_same_seed_gives_the_same_bound():
    vae, x, q, prior = vae_of(), a_frame("gaussian"), Gaussian(column(0.3), column(-2.0)), prior_at(0.0, 1)
    first, again, other = (elbo(vae, x, q, q.sample(seeded(seed)), prior).bound for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
