"""The mixture of App. A.1: its fast twins equal the readable one, which equals a hand computation."""

import math
from functools import partial

import pytest
import torch
from twins import assert_close_twins, strided

from gtmsm.kernels.bound import mixture_cpu
from gtmsm.kernels.bound.mixture import (
    mixture_divergence,
    mixture_divergence_by_parts,
    mixture_log_prob,
    mixture_log_prob_by_parts,
)
from gtmsm.kernels.choice import forced

DELTA = 1e-4
SHAPES = [(1, 1, 1, 1), (3, 2, 1, 4), (4, 16, 5, 9), (5, 3, 7, 2), (2, 17, 4, 4), (1, 64, 37, 20)]  # n, Z, K, rows
LONG_SHAPES = [
    (2048, 16, 5, 6000),
    (512, 256, 5, 700),
    (300, 64, 256, 256),
    (64, 1500, 3, 100),
]  # too long to interpret
NAMES = ("mean", "log_var", "z", "bank_mean", "bank_log_var", "distance2")
fast_twins = pytest.mark.parametrize("twin", ["cpu", "triton"])


@pytest.fixture
def device(twin, request):
    return request.getfixturevalue("triton_device") if twin == "triton" else "cpu"


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


def log_prob_of(floats, row, kernel=mixture_log_prob):
    return kernel(*floats[2:5], row, floats[5], DELTA)


def by_parts(floats, row):
    return divergence_of(floats, row, mixture_divergence_by_parts)


def uneven_gradients(value, leaves):
    """Of a sum in which no two queries count alike."""
    weight = torch.linspace(-1, 2, len(value), dtype=value.dtype, device=value.device)
    return torch.autograd.grad(value @ weight, leaves)


def value_and_gradients(function, floats, row, dtype=None):
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in floats]
    value = function(leaves, row)
    return [value.detach(), *uneven_gradients(value, leaves)]


assert_equal_twins = partial(assert_close_twins, ("value", *NAMES))


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
def test_gradients_of_the_readable_twin_are_those_of_its_differences(shape):
    floats, row = asked(*shape)
    leaves = [x.requires_grad_() for x in floats]
    assert torch.autograd.gradcheck(lambda *x: by_parts(x, row), leaves)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 2, 1, 4), (2, 3, 7, 2)])
def test_gradients_by_hand_are_those_of_differences(shape):
    floats, row = asked(*shape)
    leaves = [x.requires_grad_() for x in floats]
    with forced("cpu"):
        assert torch.autograd.gradcheck(lambda *x: divergence_of(x, row), leaves)
        assert torch.autograd.gradcheck(lambda *x: log_prob_of([None, None, *x], row), leaves[2:])


@fast_twins
@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_fast_twins_equal_the_readable_one(shape, twin, device):
    floats, row = asked(*shape, torch.float32, device)
    with forced(twin):
        fast = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    # Of thousands of gradients a few are small differences of large numbers: they are measured by the largest.
    for one, other in zip(fast, readable, strict=True):
        assert (one.double() - other).abs().max() <= 1e-4 * max(1.0, other.abs().max())


@fast_twins
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (4, 16, 5, 9)])
def test_the_log_probability_alone_is_the_second_term(shape, twin, device):
    floats, row = asked(*shape, torch.float32, device)
    leaves = [x.requires_grad_() for x in floats]
    doubles = [x.detach().double().requires_grad_() for x in floats]
    with forced(twin):
        fast = log_prob_of(leaves, row)
    readable = log_prob_of(doubles, row, mixture_log_prob_by_parts)
    torch.testing.assert_close(fast.double(), readable, rtol=1e-5, atol=1e-5)
    pairs = zip(uneven_gradients(fast, leaves[2:]), uneven_gradients(readable, doubles[2:]), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-4)


@fast_twins
def test_one_entry_has_all_the_weight_however_far_it_is(twin, device):
    floats, row = asked(3, 4, 1, 2, torch.float32, device)
    floats[5] = torch.tensor([[0.0], [1.0], [1e8]], device=device)
    with forced(twin):
        value, *gradients = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    torch.testing.assert_close(value.double(), readable[0], rtol=1e-5, atol=1e-5)
    assert not gradients[5].any()


@fast_twins
@pytest.mark.parametrize("far", [0.0, 1e-8, 1e8])
def test_revisits_and_far_ends_of_the_world_are_weighed_alike_by_all_twins(far, twin, device):
    floats, row = asked(4, 3, 5, 6, torch.float32, device)
    floats[5][:, ::2] = far
    with forced(twin):
        fast = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    # a gradient of distance2 is as steep as 1 / (distance2 + delta): compared per unit of its logarithm
    for gradients in (fast, readable):
        gradients[6] = gradients[6] * (floats[5] + DELTA)
    assert_equal_twins(fast, readable, rtol=2e-4, atol=2e-4)


@fast_twins
@pytest.mark.parametrize("low", [True, False])
def test_codes_that_are_almost_sure_or_hardly_known_do_not_overflow(low, twin, device):
    floats, row = asked(4, 16, 5, 6, torch.float32, device)
    for part in (1, 4):
        floats[part] = torch.full_like(floats[part], -10.0 if low else 4.0)
    if low:  # a sample of such codes lies within a hundredth of them: near an entry, far from the others
        floats[2] = floats[3][row[:, 0]] + 0.01 * floats[2]
        floats[0] = floats[2] + 0.01 * floats[0]
    with forced(twin):
        fast = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    assert_equal_twins(fast, readable, rtol=1e-3, atol=1e-3)


@fast_twins
def test_a_code_unlike_all_entries_is_as_unlikely_as_the_nearest_of_them_has_it(twin, device):
    # exponents of some -1e8: nothing but the largest of them is left
    z = torch.full((1, 4), 30.0, device=device)
    bank = torch.tensor([[0.0], [1.0], [2.0]], device=device).expand(3, 4).contiguous()
    row, distance2 = torch.tensor([[0, 1, 2]], device=device), torch.ones(1, 3, device=device)
    with forced(twin):
        log_prob = mixture_log_prob(z, bank, torch.full_like(bank, -10.0), row, distance2, DELTA)
    expected = -0.5 * 4 * (28.0**2 * math.exp(10) - 10 + math.log(2 * math.pi)) - math.log(3)
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)


@fast_twins
def test_codes_far_from_the_origin_are_as_likely_as_near_it(twin, device):
    floats, row = asked(4, 3, 5, 6, torch.float32, device)
    for part in (0, 2, 3):
        floats[part] = floats[part] + 1e4  # rounded here, for all twins alike
    with forced(twin):
        fast = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    assert_equal_twins(fast, readable, rtol=2e-4, atol=2e-4)


@fast_twins
def test_an_entry_retrieved_by_everyone_learns_from_everyone(twin, device):
    floats, row = asked(6, 3, 5, 4, torch.float32, device)
    row = torch.full_like(row, 2)
    with forced(twin):
        fast = value_and_gradients(divergence_of, floats, row)
    readable = value_and_gradients(by_parts, floats, row, torch.float64)
    assert_equal_twins(fast, readable, rtol=2e-4, atol=2e-4)
    assert not any(gradient[[0, 1, 3]].any() for gradient in fast[4:6])


@fast_twins
def test_inputs_need_not_be_contiguous(twin, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    halves = [torch.cat([x, x + 1], 1)[:, : x.shape[1]] for x in floats]  # as an encoder's mean is
    with forced(twin):
        expected = value_and_gradients(divergence_of, floats, row)
        for awkward in ([strided(x) for x in floats], halves):
            assert not any(x.is_contiguous() for x in awkward)
            fast = value_and_gradients(divergence_of, awkward, strided(row))
            assert_equal_twins(fast, expected, rtol=1e-5, atol=1e-5)


@fast_twins
def test_inputs_and_gradients_may_be_expanded(twin, device):
    floats, row = asked(1, 5, 3, 6, torch.float32, device)
    spread = [*(x.expand(4, -1) for x in floats[:3]), *floats[3:5], floats[5].expand(4, -1)]
    results = []
    for function, which in ((divergence_of, twin), (by_parts, "readable")):
        leaves = [x.detach().requires_grad_() for x in spread]
        with forced(which):
            value = function(leaves, row.expand(4, -1))
        results.append([value.detach(), *torch.autograd.grad(value.sum(), leaves)])
    assert_equal_twins(*results, rtol=1e-4, atol=1e-4)


@fast_twins
@pytest.mark.parametrize("needed", [[0], [2, 5], [3], [4], [5]])
def test_what_needs_no_gradient_may_be_anything(needed, twin, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    everything = value_and_gradients(by_parts, floats, row)[1:]
    leaves = [x.requires_grad_(place in needed) for place, x in enumerate(floats)]
    with forced(twin):
        value = divergence_of(leaves, row)
    gradients = uneven_gradients(value, [leaves[place] for place in needed])
    for place, gradient in zip(needed, gradients, strict=True):
        torch.testing.assert_close(gradient, everything[place], rtol=1e-4, atol=1e-4)


@fast_twins
def test_no_queries_have_no_divergence(twin, device):
    floats, row = asked(0, 4, 3, 5, torch.float32, device)
    with forced(twin):
        value, *gradients = value_and_gradients(divergence_of, floats, row)
    assert value.shape == (0,)
    assert not any(gradient.any() for gradient in gradients)


@fast_twins
def test_inputs_are_left_alone_and_answers_belong_to_the_caller(twin, device):
    floats, row = asked(4, 5, 3, 6, torch.float32, device)
    leaves = [x.clone().requires_grad_() for x in floats]
    with forced(twin):
        value = divergence_of(leaves, row)
    assert all(torch.equal(one, other) for one, other in zip(leaves, floats, strict=True))
    gradients = uneven_gradients(value.mul_(3.0), leaves)
    readable = value_and_gradients(by_parts, floats, row)[1:]
    for one, other in zip(gradients, readable, strict=True):
        torch.testing.assert_close(one, 3 * other, rtol=1e-4, atol=1e-4)


def test_a_cpu_gets_gradients_by_hand_in_both_precisions(monkeypatch):
    told = []
    for name in ("divergence", "log_prob"):
        original = getattr(mixture_cpu, name)
        monkeypatch.setattr(
            mixture_cpu, name, lambda *inputs, name=name, original=original: told.append(name) or original(*inputs)
        )
    for dtype in (torch.float32, torch.float64):
        floats, row = asked(2, 3, 4, 5, dtype)
        divergence_of(floats, row)
        log_prob_of(floats, row)
    assert told == ["divergence", "log_prob"] * 2


@fast_twins
def test_codes_of_another_precision_are_left_to_the_readable_twin(twin, device):
    floats, row = asked(2, 3, 4, 5, torch.float32, device)
    floats[3] = floats[3].double()
    with forced(twin):
        assert divergence_of(floats, row).dtype == torch.float64


@fast_twins
def test_mixed_precision_around_it_rounds_nothing(twin, device):
    floats, row = asked(4, 16, 5, 9, torch.float32, device)
    with forced(twin):
        expected = value_and_gradients(divergence_of, floats, row)

        def mixed(leaves, row):
            with torch.autocast(device, torch.bfloat16):
                return divergence_of(leaves, row)

        assert_equal_twins(value_and_gradients(mixed, floats, row), expected, rtol=1e-5, atol=1e-5)


def test_a_gpu_can_keep_the_mixture_in_a_graph(in_a_graph):
    floats, row = asked(256, 16, 5, 600, torch.float32, "cuda")
    leaves = [x.requires_grad_() for x in floats]

    def update():
        value = divergence_of(leaves, row)
        return [value, *torch.autograd.grad(value.mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert_equal_twins(replayed, warm, rtol=1e-4, atol=1e-5)
