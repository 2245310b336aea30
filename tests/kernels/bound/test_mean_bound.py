"""The bound averaged over frames: the kernel equals its readable twin, which equals the bound of single frames."""

import math

import pytest
import torch
from twins import strided

from gtmsm.kernels.bound.mean_bound import MeanBound, mean_bound, mean_bound_by_parts
from gtmsm.kernels.choice import forced

PIXELS = 192
SIZES = [1, 3, 16, 33, 700, 4097, 10_000]
PARTS = MeanBound._fields
COUNTS = ("all", "some", "none", "unasked")
both_twins = pytest.mark.parametrize("twin", ["readable", "triton"])


def frames(n, counting="some", dtype=torch.float32, device="cpu"):
    """Errors and divergences of n frames, log sigma, and which frames count."""
    generator = torch.Generator().manual_seed(n)
    error2 = PIXELS * 0.05 * torch.rand(n, generator=generator)
    kl = 20 * torch.rand(n, generator=generator)
    counts = {
        "all": torch.ones(n, dtype=torch.bool),
        "some": torch.rand(n, generator=generator) < 0.7,
        "none": torch.zeros(n, dtype=torch.bool),
        "unasked": None,
    }[counting]
    floats = [x.to(device, dtype) for x in (error2, kl, torch.tensor(-1.5))]
    return floats, None if counts is None else counts.to(device)


def bound_and_gradients(function, floats, counts, parts=PARTS, pixels=PIXELS):
    """Gradients of a sum in which no two parts count alike."""
    leaves = [x.detach().requires_grad_() for x in floats]
    averages = function(*leaves, pixels, counts)
    total = sum((place + 1.5) * getattr(averages, name) for place, name in enumerate(parts))
    return [*(part.detach() for part in averages), *torch.autograd.grad(total, leaves)]


def assert_equal_twins(floats, counts, parts=PARTS, pixels=PIXELS):
    with forced("triton"):
        fast = bound_and_gradients(mean_bound, floats, counts, parts, pixels)
    readable = bound_and_gradients(mean_bound_by_parts, [x.double() for x in floats], counts, parts, pixels)
    for one, other in zip(fast, readable, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4 if one.dim() == 0 else 1e-7)


@both_twins
def test_two_frames_of_one_pixel_are_averaged_by_hand(twin, triton_device):
    error2, kl = (torch.tensor(pair, device=triton_device) for pair in ([1.0, 3.0], [0.5, 0.25]))
    with forced(twin):
        _, bound, log_likelihood, mean_kl = mean_bound(error2, kl, torch.tensor(0.0, device=triton_device), 1, None)
    assert mean_kl.item() == pytest.approx(0.375)
    assert log_likelihood.item() == pytest.approx(-0.5 * (2 + math.log(2 * math.pi)))
    assert bound.item() == pytest.approx(log_likelihood.item() - 0.375)


def test_a_log_likelihood_is_that_of_a_normal_distribution():
    (x, made), sigma = torch.rand(2, 6, 5, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    error2 = (x - made).square().sum(1)
    averages = mean_bound(error2, torch.zeros_like(error2), sigma.log(), 5, None)
    expected = torch.distributions.Normal(made, sigma).log_prob(x).sum(1).mean()
    torch.testing.assert_close(averages.log_likelihood, expected)


@pytest.mark.parametrize("counting", COUNTS)
def test_gradients_of_the_readable_twin_are_those_of_its_differences(counting):
    floats, counts = frames(4, counting, torch.float64)
    leaves = [x.requires_grad_() for x in floats]
    assert torch.autograd.gradcheck(lambda *inputs: mean_bound_by_parts(*inputs, 3, counts), leaves)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("counting", COUNTS)
def test_triton_averages_equal_the_readable_ones(n, counting, triton_device):
    assert_equal_twins(*frames(n, counting, device=triton_device))


@pytest.mark.parametrize("parts", [("bound",), ("log_likelihood",), ("kl",), ("log_likelihood", "kl")])
@pytest.mark.parametrize("counting", ["some", "unasked"])
def test_gradients_may_come_from_any_average(parts, counting, triton_device):
    floats, counts = frames(5, counting, device=triton_device)
    with forced("triton"):
        leaves = [x.detach().requires_grad_() for x in floats]
        averages = mean_bound(*leaves, PIXELS, counts)
        fast = torch.autograd.grad(sum(getattr(averages, name) for name in parts), leaves)
    leaves = [x.double().requires_grad_() for x in floats]
    averages = mean_bound_by_parts(*leaves, PIXELS, counts)
    total = sum(getattr(averages, name) for name in parts)
    readable = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    for one, other in zip(fast, readable, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@both_twins
def test_a_frame_that_does_not_count_may_be_anything(twin, triton_device):
    floats, _ = frames(6, device=triton_device)
    counts = torch.tensor([True, False, True, True, False, True], device=triton_device)
    with forced(twin):
        expected = bound_and_gradients(mean_bound, floats, counts)
        for anything in (math.nan, math.inf):
            spoilt = [torch.where(counts, x, anything) for x in floats[:2]] + floats[2:]
            for one, other in zip(bound_and_gradients(mean_bound, spoilt, counts), expected, strict=True):
                assert torch.equal(one, other)
    assert not expected[4][~counts].any()
    assert not expected[4][~counts].any()


@both_twins
def test_a_frame_that_counts_and_is_not_a_number_is_noticed(twin, triton_device):
    floats, _ = frames(6, device=triton_device)
    floats[0][3] = math.nan
    with forced(twin):
        averages = mean_bound(*floats, PIXELS, None)
    assert [bool(part.isnan()) for part in averages] == [True, True, True, False]


@both_twins
@pytest.mark.parametrize(("n", "counting"), [(0, "all"), (0, "unasked"), (5, "none")])
def test_where_no_frame_counts_the_averages_are_nothing(n, counting, twin, triton_device):
    floats, counts = frames(n, counting, device=triton_device)
    with forced(twin):
        assert not any(part.any() for part in bound_and_gradients(mean_bound, floats, counts))


def test_inputs_need_not_be_contiguous(triton_device):
    (error2, kl, log_sigma), counts = frames(9, device=triton_device)
    assert_equal_twins([strided(error2), strided(kl), log_sigma], strided(counts))
    assert_equal_twins([error2[:1].expand(9), kl[:1].expand(9), log_sigma], counts[:1].expand(9))


@pytest.mark.parametrize("pixels", [1, 3 * 64 * 64])
@pytest.mark.parametrize("log_sigma", [-4.0, 1.0])
def test_frames_may_be_of_any_size_and_as_sharp_as_can_be(pixels, log_sigma, triton_device):
    (error2, kl, width), counts = frames(5, device=triton_device)
    assert_equal_twins([error2, kl, torch.full_like(width, log_sigma)], counts, pixels=pixels)


@both_twins
def test_double_precision_stays(twin, triton_device):
    floats, counts = frames(5, dtype=torch.float64, device=triton_device)
    with forced(twin):
        assert {part.dtype for part in mean_bound(*floats, PIXELS, counts)} == {torch.float64}


@pytest.mark.parametrize("counting", ["some", "unasked"])
def test_a_gpu_can_keep_the_bound_in_a_graph(counting, in_a_graph):
    floats, counts = frames(2048, counting, device="cuda")
    leaves = [x.requires_grad_() for x in floats]

    def update():
        averages = mean_bound(*leaves, PIXELS, counts)
        return [*averages, *torch.autograd.grad(averages.bound, leaves)]

    warm, replayed = in_a_graph(update)
    for one, other in zip(replayed, warm, strict=True):
        torch.testing.assert_close(one, other)
