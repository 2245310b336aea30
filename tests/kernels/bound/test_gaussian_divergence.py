"""The divergence between two Gaussians: the kernel equals its readable twin, which equals PyTorch's own."""

import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from twins import assert_close_twins, strided

from gtmsm.kernels.bound import gaussian_divergence_triton
from gtmsm.kernels.bound.gaussian_divergence import gaussian_divergence, gaussian_divergence_by_parts
from gtmsm.kernels.choice import forced

SHAPES = [(1, 1), (5, 1), (1, 3), (5, 3), (5, 16), (70, 16), (1, 257), (5, 257), (3, 700), (0, 3), (5, 0)]
LONG_SHAPES = [(336, 256), (2048, 16), (4097, 64)]  # too long to interpret
PARTS = ("mean", "log_var", "other_mean", "other_log_var")
both_twins = pytest.mark.parametrize("twin", ["readable", "triton"])


def pairs(n, Z, dtype=torch.float32, device="cpu"):
    """Means and log-variances of n Gaussians and of n others."""
    generator = torch.Generator().manual_seed(100 * n + Z)
    return [scale * torch.randn(n, Z, generator=generator).to(device, dtype) for scale in (1.0, 1.5, 1.0, 1.5)]


def divergence_and_gradients(function, parts, learning=PARTS, lay=torch.clone):
    """Gradients of a sum in which no two pairs count alike; how `lay` leaves what comes in is how it is given."""
    # Detached, not cloned: a copy would hide how an input lies.
    leaves = [part.detach().requires_grad_(name in learning) for name, part in zip(PARTS, parts, strict=True)]
    divergence = function(*leaves)
    incoming = lay(torch.linspace(-1, 2, len(divergence)).to(divergence))
    gradients = torch.autograd.grad(divergence, [leaf for leaf in leaves if leaf.requires_grad], incoming)
    return [divergence.detach(), *gradients]


def assert_equal_twins(parts, learning=PARTS, lay=torch.clone):
    with forced("triton"):
        fast = divergence_and_gradients(gaussian_divergence, parts, learning, lay)
    readable = divergence_and_gradients(gaussian_divergence_by_parts, [x.double() for x in parts], learning, lay)
    assert all(part.dtype == torch.float32 and part.is_contiguous() for part in fast)
    assert_close_twins(("divergence", *learning), fast, readable)


@both_twins
def test_one_number_is_compared_by_hand(twin, triton_device):
    parts = (torch.full((1, 1), x, device=triton_device) for x in (3.0, math.log(2.0), 1.0, math.log(4.0)))
    with forced(twin):
        divergence = gaussian_divergence(*parts)
    assert divergence.tolist() == [pytest.approx(0.5 * (math.log(2.0) + (2.0 + 4.0) / 4.0 - 1.0))]


@both_twins
def test_it_is_the_divergence_between_normal_distributions(twin, triton_device):
    parts = pairs(6, 5, device=triton_device)
    mean, log_var, other_mean, other_log_var = parts
    one, other = Normal(mean, (0.5 * log_var).exp()), Normal(other_mean, (0.5 * other_log_var).exp())
    with forced(twin):
        divergence = gaussian_divergence(*parts)
    torch.testing.assert_close(divergence, kl_divergence(one, other).sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("log_var", [-10.0, -0.3, 4.0])
def test_equal_gaussians_are_not_apart_at_all(log_var, triton_device):
    mean = 1e4 * torch.rand(4, 5, device=triton_device)
    same = [mean, torch.full_like(mean, log_var)] * 2
    with forced("triton"):
        assert not any(part.any() for part in divergence_and_gradients(gaussian_divergence, same))
    assert gaussian_divergence_by_parts(*same).abs().max() < 1e-5


def test_gradients_of_the_readable_twin_are_those_of_its_differences():
    leaves = [part.requires_grad_() for part in pairs(4, 3, torch.float64)]
    assert torch.autograd.gradcheck(gaussian_divergence_by_parts, leaves)


@pytest.mark.parametrize(("n", "Z"), SHAPES)
def test_the_triton_divergence_equals_the_readable_one(n, Z, triton_device):
    assert_equal_twins(pairs(n, Z, device=triton_device))


@pytest.mark.parametrize(("n", "Z"), LONG_SHAPES)
def test_a_gpu_divergence_equals_the_readable_one(n, Z, triton_device):
    if triton_device != "cuda":
        pytest.skip("too long to interpret")
    assert_equal_twins(pairs(n, Z, device=triton_device))


@pytest.mark.parametrize("learning", [some for k in (1, 2, 3) for some in itertools.combinations(PARTS, k)])
def test_any_of_the_inputs_may_learn(learning, triton_device):
    assert_equal_twins(pairs(3, 5, device=triton_device), learning)


def test_what_does_not_learn_costs_no_launch(note_launches, triton_device):
    forward, backward = "_gaussian_divergence_forward", "_gaussian_divergence_backward"
    launches = note_launches(gaussian_divergence_triton, forward, backward)
    mean, *rest = pairs(3, 5, device=triton_device)
    with forced("triton"):
        assert not gaussian_divergence(mean, *rest).requires_grad
        assert launches == [forward]
        gaussian_divergence(mean.requires_grad_(), *rest).sum().backward()
    assert launches == [forward, forward, backward]


@pytest.mark.parametrize("Z", [3, 16, 700])
def test_inputs_may_lie_anyhow(Z, triton_device):
    mean, log_var, other_mean, other_log_var = pairs(5, Z, device=triton_device)
    assert_equal_twins([strided(mean), log_var, other_mean, strided(other_log_var)])
    assert_equal_twins([mean, log_var.mT.contiguous().mT, strided(other_mean.mT).mT, other_log_var])
    assert_equal_twins([*torch.cat([mean, log_var], 1).chunk(2, 1), *torch.cat([other_mean, other_log_var]).chunk(2)])
    assert_equal_twins([mean, log_var, other_mean[:1].expand(5, -1), other_log_var[:, :1].expand(-1, Z)])


@pytest.mark.parametrize("lay", [lambda each: each[-1:].expand_as(each), strided])
def test_incoming_gradients_may_lie_anyhow(lay, triton_device):
    assert_equal_twins(pairs(5, 3, device=triton_device), lay=lay)


def test_means_may_be_far_from_home(triton_device):
    mean, log_var, other_mean, other_log_var = pairs(5, 16, device=triton_device)
    assert_equal_twins([mean + 1e4, log_var, other_mean + 1e4, other_log_var])


@pytest.mark.parametrize(("log_var", "other_log_var"), [(-10.0, 4.0), (4.0, -10.0), (-10.0, -10.0), (4.0, 4.0)])
def test_variances_may_be_at_their_bounds(log_var, other_log_var, triton_device):
    mean, _, other_mean, _ = pairs(3, 5, device=triton_device)
    spread, other_spread = (torch.full_like(mean, bound) for bound in (log_var, other_log_var))
    assert_equal_twins([mean, spread, other_mean, other_spread])


@both_twins
@pytest.mark.parametrize("part", range(4))
def test_a_pair_that_is_not_a_number_is_noticed_and_spoils_no_other(part, twin, triton_device):
    parts = pairs(5, 3, device=triton_device)
    parts[part][2, 1] = math.nan
    with forced(twin):
        assert gaussian_divergence(*parts).isnan().tolist() == [False, False, True, False, False]


@both_twins
def test_double_precision_stays(twin, triton_device):
    with forced(twin):
        assert gaussian_divergence(*pairs(3, 5, torch.float64, triton_device)).dtype == torch.float64


@both_twins
def test_autocast_rounds_nothing(twin, triton_device):
    parts = pairs(5, 16, device=triton_device)
    with forced(twin):
        expected = divergence_and_gradients(gaussian_divergence, parts)
        with torch.autocast(triton_device, torch.bfloat16):
            rounded = divergence_and_gradients(gaussian_divergence, parts)
    assert all(torch.equal(one, other) for one, other in zip(rounded, expected, strict=True))


def test_a_gpu_can_keep_the_divergence_in_a_graph(in_a_graph):
    leaves = [part.requires_grad_() for part in pairs(336, 256, device="cuda")]

    def update():
        divergence = gaussian_divergence(*leaves)
        return [divergence, *torch.autograd.grad(divergence.mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
