"""The mixture of App. A.1: it equals a hand computation, also in float32 and on a GPU."""

import math
from functools import partial

import pytest
import torch
from twins import assert_close_twins, strided

from gtmsm.kernels.mixture import mixture_divergence, mixture_log_prob
from gtmsm.kernels.operator import forced

DELTA = 1e-4
SHAPES = [(1, 1, 1, 1), (3, 2, 1, 4), (4, 16, 5, 9), (5, 3, 7, 2), (2, 17, 4, 4), (1, 64, 37, 20)]  # n, Z, K, rows
LONG_SHAPES = [
    (2048, 16, 5, 6000),
    (512, 256, 5, 700),
    (300, 64, 256, 256),
    (64, 1500, 3, 100),
]  # too long to interpret
NAMES = ("mean", "log_var", "z", "bank_mean", "bank_log_var", "distance2")
all_implementations = pytest.mark.parametrize("implementation", ["readable", "cuda"])


@pytest.fixture
def device(implementation, request):
    return request.getfixturevalue("triton_device") if implementation == "cuda" else "cpu"


def asked(n, Z, K, rows, dtype=torch.float64, device="cpu"):
    """Floats in the order of `NAMES`, and the rows retrieved: any of them, any number of times."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * Z + 10 * K + rows)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    floats = [draw(n, Z), draw(n, Z), draw(n, Z), draw(rows, Z), draw(rows, Z), draw(n, K).square()]
    row = torch.randint(rows, (n, K), generator=generator)
    return [x.to(device, dtype) for x in floats], row.to(device)


def divergence_of(floats, row, kernel=mixture_divergence):
    return kernel(*floats[:5], row, floats[5], DELTA)


def readable(floats, row):
    return divergence_of(floats, row, mixture_divergence.readable)


def uneven_gradients(value, leaves):
    """Of a sum in which no two queries count alike."""
    weight = torch.linspace(-1, 2, len(value), dtype=value.dtype, device=value.device)
    return torch.autograd.grad(value @ weight, leaves)


def value_and_gradients(function, floats, row, dtype=None):
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in floats]
    value = function(leaves, row)
    return [value.detach(), *uneven_gradients(value, leaves)]


assert_all_close = partial(assert_close_twins, ("value", *NAMES))


def test_two_entries_at_distances_one_and_two_weigh_as_their_inverse_squares():
    z, bank = torch.zeros(1, 1), torch.tensor([[1.0], [-2.0]])
    row, distance2 = torch.tensor([[0, 1]]), torch.tensor([[1.0, 4.0]])
    likely = (0.8 * math.exp(-0.5) + 0.2 * math.exp(-2)) / math.sqrt(2 * math.pi)
    log_prob = mixture_log_prob(z, bank, 0 * bank, row, distance2, 0.0)
    assert log_prob.item() == pytest.approx(math.log(likely))
    divergence = mixture_divergence(z + 3, 0 * z, z, bank, 0 * bank, row, distance2, 0.0)
    assert divergence.item() == pytest.approx(-4.5 - 0.5 * math.log(2 * math.pi) - math.log(likely))


def test_a_code_that_is_the_only_entry_has_no_divergence_from_memory():
    (mean, log_var, z, *_), _ = asked(5, 4, 1, 5)
    row = torch.arange(5)[:, None]
    divergence = mixture_divergence(mean, log_var, z, mean, log_var, row, torch.rand(5, 1, dtype=z.dtype), DELTA)
    torch.testing.assert_close(divergence, torch.zeros_like(divergence))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 2, 1, 4), (2, 3, 7, 2)])
def test_gradients_of_the_readable_function_are_those_of_its_differences(shape):
    floats, row = asked(*shape)
    leaves = [x.requires_grad_() for x in floats]
    assert torch.autograd.gradcheck(lambda *x: readable(x, row), leaves)


def test_pytorch_accepts_its_registration():
    floats, row = asked(4, 3, 5, 6)
    leaves = [x.requires_grad_() for x in floats]
    torch.library.opcheck(torch.ops.gtmsm.mixture_divergence.default, (*leaves[:5], row, leaves[5], DELTA))


@all_implementations
@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_single_precision_equals_double_precision(shape, implementation, device):
    floats, row = asked(*shape, torch.float32, device)
    with forced(implementation):
        fast = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    # Of thousands of gradients a few are small differences of large numbers: they are measured by the largest.
    for one, other in zip(fast, wanted, strict=True):
        assert (one.double() - other).abs().max() <= 1e-4 * max(1.0, other.abs().max())


@all_implementations
def test_one_entry_has_all_the_weight_however_far_it_is(implementation, device):
    floats, row = asked(3, 4, 1, 2, torch.float32, device)
    floats[5] = torch.tensor([[0.0], [1.0], [1e8]], device=device)
    with forced(implementation):
        value, *gradients = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    torch.testing.assert_close(value.double(), wanted[0], rtol=1e-5, atol=1e-5)
    assert not gradients[5].any()


@all_implementations
@pytest.mark.parametrize("far", [0.0, 1e-8, 1e8])
def test_revisits_and_far_ends_of_the_world_are_weighed_alike_by_all_implementations(far, implementation, device):
    floats, row = asked(4, 3, 5, 6, torch.float32, device)
    floats[5][:, ::2] = far
    with forced(implementation):
        fast = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    # a gradient of distance2 is as steep as 1 / (distance2 + delta): compared per unit of its logarithm
    for gradients in (fast, wanted):
        gradients[6] = gradients[6] * (floats[5] + DELTA)
    assert_all_close(fast, wanted, rtol=2e-4, atol=2e-4)


@all_implementations
@pytest.mark.parametrize("low", [True, False])
def test_codes_that_are_almost_sure_or_hardly_known_do_not_overflow(low, implementation, device):
    floats, row = asked(4, 16, 5, 6, torch.float32, device)
    for part in (1, 4):
        floats[part] = torch.full_like(floats[part], -10.0 if low else 4.0)
    if low:  # a sample of such codes lies within a hundredth of them: near an entry, far from the others
        floats[2] = floats[3][row[:, 0]] + 0.01 * floats[2]
        floats[0] = floats[2] + 0.01 * floats[0]
    with forced(implementation):
        fast = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    assert_all_close(fast, wanted, rtol=1e-3, atol=1e-3)


@all_implementations
def test_a_code_unlike_all_entries_is_as_unlikely_as_the_nearest_of_them_has_it(implementation, device):
    # exponents of some -1e8: nothing but the largest of them is left
    z = torch.full((1, 4), 30.0, device=device)
    bank = torch.tensor([[0.0], [1.0], [2.0]], device=device).expand(3, 4).contiguous()
    row, distance2 = torch.tensor([[0, 1, 2]], device=device), torch.ones(1, 3, device=device)
    inputs = (z, 0 * z, z, bank, torch.full_like(bank, -10.0), row, distance2, DELTA)
    with forced(implementation):
        divergence = mixture_divergence(*inputs)
    expected = -0.5 * 4 * (28.0**2 * math.exp(10) - 10) - math.log(3)
    assert -divergence.item() == pytest.approx(expected, rel=1e-6)


@all_implementations
def test_codes_far_from_the_origin_are_as_likely_as_near_it(implementation, device):
    floats, row = asked(4, 3, 5, 6, torch.float32, device)
    for part in (0, 2, 3):
        floats[part] = floats[part] + 1e4  # rounded here, for all implementations alike
    with forced(implementation):
        fast = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    assert_all_close(fast, wanted, rtol=2e-4, atol=2e-4)


@all_implementations
def test_an_entry_retrieved_by_everyone_learns_from_everyone(implementation, device):
    floats, row = asked(6, 3, 5, 4, torch.float32, device)
    row = torch.full_like(row, 2)
    with forced(implementation):
        fast = value_and_gradients(divergence_of, floats, row)
    wanted = value_and_gradients(readable, floats, row, torch.float64)
    assert_all_close(fast, wanted, rtol=2e-4, atol=2e-4)
    assert not any(gradient[[0, 1, 3]].any() for gradient in fast[4:6])


@all_implementations
def test_inputs_need_not_be_contiguous(implementation, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    halves = [torch.cat([x, x + 1], 1)[:, : x.shape[1]] for x in floats]  # as an encoder's mean is
    with forced(implementation):
        expected = value_and_gradients(divergence_of, floats, row)
        for awkward in ([strided(x) for x in floats], halves):
            assert not any(x.is_contiguous() for x in awkward)
            fast = value_and_gradients(divergence_of, awkward, strided(row))
            assert_all_close(fast, expected, rtol=1e-5, atol=1e-5)


@all_implementations
def test_inputs_and_gradients_may_be_expanded(implementation, device):
    floats, row = asked(1, 5, 3, 6, torch.float32, device)
    spread = [*(x.expand(4, -1) for x in floats[:3]), *floats[3:5], floats[5].expand(4, -1)]
    results = []
    for function, which in ((divergence_of, implementation), (readable, "readable")):
        leaves = [x.detach().requires_grad_() for x in spread]
        with forced(which):
            value = function(leaves, row.expand(4, -1))
            results.append([value.detach(), *torch.autograd.grad(value.sum(), leaves)])
    assert_all_close(*results, rtol=1e-4, atol=1e-4)


@all_implementations
@pytest.mark.parametrize("needed", [[0], [2, 5], [3], [4], [5]])
def test_what_needs_no_gradient_may_be_anything(needed, implementation, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    everything = value_and_gradients(readable, floats, row)[1:]
    leaves = [x.requires_grad_(place in needed) for place, x in enumerate(floats)]
    with forced(implementation):
        value = divergence_of(leaves, row)
        gradients = uneven_gradients(value, [leaves[place] for place in needed])
    for place, gradient in zip(needed, gradients, strict=True):
        torch.testing.assert_close(gradient, everything[place], rtol=1e-4, atol=1e-4)


@all_implementations
def test_no_queries_have_no_divergence(implementation, device):
    floats, row = asked(0, 4, 3, 5, torch.float32, device)
    with forced(implementation):
        value, *gradients = value_and_gradients(divergence_of, floats, row)
    assert value.shape == (0,)
    assert not any(gradient.any() for gradient in gradients)


@all_implementations
def test_inputs_are_left_alone(implementation, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    leaves = [x.clone().requires_grad_() for x in floats]
    with forced(implementation):
        uneven_gradients(divergence_of(leaves, row), leaves)
    assert all(torch.equal(one, other) for one, other in zip(leaves, floats, strict=True))


@all_implementations
def test_codes_of_another_precision_are_left_to_the_readable_function(implementation, device):
    floats, row = asked(2, 3, 4, 5, torch.float32, device)
    floats[3] = floats[3].double()
    with forced(implementation):
        assert divergence_of(floats, row).dtype == torch.float64


@all_implementations
def test_mixed_precision_around_it_rounds_nothing(implementation, device):
    floats, row = asked(4, 16, 5, 9, torch.float32, device)
    with forced(implementation):
        expected = value_and_gradients(divergence_of, floats, row)

        def mixed(leaves, row):
            with torch.autocast(device, torch.bfloat16):
                return divergence_of(leaves, row)

        assert_all_close(value_and_gradients(mixed, floats, row), expected, rtol=1e-5, atol=1e-5)


def test_a_gpu_can_keep_the_mixture_in_a_graph(in_a_graph):
    floats, row = asked(256, 16, 5, 600, torch.float32, "cuda")
    leaves = [x.requires_grad_() for x in floats]

    def update():
        value = divergence_of(leaves, row)
        return [value, *torch.autograd.grad(value.mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert_all_close(replayed, warm, rtol=1e-4, atol=1e-5)
