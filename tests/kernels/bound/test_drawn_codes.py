"""Codes of an encoder, taken apart and drawn: the kernel equals its readable twin, whoever learns from it."""

import math

import pytest
import torch
from twins import strided

from gtmsm.errors import InputError
from gtmsm.kernels.bound.drawn_codes import DrawnCodes, drawn_codes, drawn_codes_by_parts
from gtmsm.kernels.choice import forced
from gtmsm.tensors import Gaussian

BOUNDS = (-1.5, 1.0)  # some log-variances lie outside
SHAPES = [(1, 1, 1), (1, 0, 3), (5, 2, 3), (7, 7, 16), (40, 33, 16), (9, 0, 5), (6, 1, 17), (3, 2, 600)]  # n, asked, Z
LONG_SHAPES = [(4800, 2048, 16), (12_288, 2048, 16), (1800, 336, 256), (2048, 2048, 16)]  # too long to interpret
PARTS = DrawnCodes._fields
both_twins = pytest.mark.parametrize("twin", ["readable", "triton"])


def encoded(n, asked, Z, dtype=torch.float32, device="cpu"):
    """What an encoder said, and noise to draw with."""
    generator = torch.Generator().manual_seed(100 * n + 10 * asked + Z)
    both = 1.5 * torch.randn(n, 2 * Z, generator=generator)
    return both.to(device, dtype), torch.randn(asked, Z, generator=generator).to(device)


def uneven(codes, parts=PARTS):
    """A sum of parts of codes in which no two numbers count alike."""
    total = 0.0
    for place, part in enumerate(getattr(codes, name) for name in parts):
        weight = torch.linspace(-1 - place, 2, part.numel(), dtype=part.dtype, device=part.device)
        total = total + part.flatten() @ weight
    return total


def codes_and_gradient(function, both, asked, noise, parts=PARTS):
    leaf = both.detach().requires_grad_()
    codes = function(leaf, asked, noise, *BOUNDS)
    (gradient,) = torch.autograd.grad(uneven(codes, parts), leaf)
    return [*(part.detach() for part in codes), gradient]


def assert_equal_twins(both, asked, noise, parts=PARTS):
    with forced("triton"):
        fast = codes_and_gradient(drawn_codes, both, asked, noise, parts)
    exact = None if noise is None else noise.double()
    readable = codes_and_gradient(drawn_codes_by_parts, both.double(), asked, exact, parts)
    assert all(part.dtype == torch.float32 for part in fast[:-1])
    assert fast[-1].dtype == both.dtype
    for one, other in zip(fast[:-1], readable[:-1], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    rtol = 1e-2 if both.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(fast[-1].double(), readable[-1], rtol=rtol, atol=1e-5)


@both_twins
def test_one_number_is_drawn_and_another_remembered(twin, triton_device):
    both = torch.tensor([[3.0, math.log(4.0)], [5.0, -1.0]], device=triton_device)
    with forced(twin):
        codes = drawn_codes(both, 1, torch.tensor([[0.5]], device=triton_device), -10.0, 4.0)
    assert [part.item() for part in codes] == pytest.approx([3.0, math.log(4.0), 3.0 + 0.5 * 2.0, 5.0, -1.0])


@both_twins
def test_codes_are_the_gaussians_they_were_and_a_sample_of_them(twin, triton_device):
    both, noise = encoded(9, 4, 5, device=triton_device)
    mean, log_var = both.chunk(2, dim=-1)
    code = Gaussian(mean, log_var.clamp(*BOUNDS))
    with forced(twin):
        codes = drawn_codes(both, 4, noise, *BOUNDS)
    for part, expected in zip(codes[:2] + codes[3:], (*vars(code[:4]).values(), *vars(code[4:]).values()), strict=True):
        assert torch.equal(part, expected)
    torch.testing.assert_close(codes.z, code.mean[:4] + noise * (0.5 * code.log_var[:4]).exp())


@pytest.mark.parametrize("has_noise", [True, False])
def test_gradients_of_the_readable_twin_are_those_of_its_differences(has_noise):
    both, noise = encoded(5, 3, 2, torch.float64)
    assert torch.autograd.gradcheck(
        lambda leaf: drawn_codes_by_parts(leaf, 3, noise.double() if has_noise else None, *BOUNDS),
        both.requires_grad_(),
    )


@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_noise", [True, False])
def test_triton_codes_equal_the_readable_ones(shape, dtype, has_noise, triton_device):
    both, noise = encoded(*shape, dtype, triton_device)
    assert_equal_twins(both, shape[1], noise if has_noise else None)


@pytest.mark.parametrize(
    "parts", [("z",), ("mean", "z"), ("log_var",), ("bank_mean",), ("z", "bank_log_var"), PARTS[:2]]
)
@pytest.mark.parametrize("has_noise", [True, False])
def test_what_nobody_learns_from_teaches_nothing(parts, has_noise, triton_device):
    both, noise = encoded(5, 3, 4, device=triton_device)
    assert_equal_twins(both, 3, noise if has_noise else None, parts)


def test_inputs_need_not_be_contiguous(triton_device):
    both, noise = encoded(6, 4, 3, device=triton_device)
    assert_equal_twins(strided(both), 4, strided(noise))
    assert_equal_twins(both.t().contiguous().t(), 4, noise.t().contiguous().t())
    assert_equal_twins(both[:1].expand(6, -1), 4, noise[:, :1].expand(-1, 3))


def test_gradients_may_be_expanded_or_strided(triton_device):
    both, noise = encoded(6, 4, 3, device=triton_device)
    gradients = []
    for twin in ("triton", "readable"):
        leaf = both.detach().requires_grad_()
        with forced(twin):
            codes = drawn_codes(leaf, 4, noise, *BOUNDS)
        out = codes.mean.t().matmul(noise).sum() + codes.log_var.sum() + codes.z.sum(1).square().sum()
        out = out + strided(codes.bank_mean).square().sum() + codes.bank_log_var.sum(0).square().sum()
        gradients.append(torch.autograd.grad(out, leaf)[0])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@both_twins
def test_a_log_variance_at_a_bound_learns_and_one_beyond_does_not(twin, triton_device):
    log_var = torch.tensor([[-1.5], [1.0], [-1.6], [1.1], [-1e30], [1e30]], device=triton_device)
    both = torch.cat([torch.zeros_like(log_var), log_var], 1).requires_grad_()
    with forced(twin):
        codes = drawn_codes(both, 6, torch.ones_like(log_var), *BOUNDS)
    (codes.log_var.sum() + codes.z.sum()).backward()
    slope = [1 + 0.5 * math.exp(-0.75), 1 + 0.5 * math.exp(0.5), 0, 0, 0, 0]
    assert both.grad[:, 1].tolist() == pytest.approx(slope)
    assert codes.log_var.flatten().tolist() == [-1.5, 1.0] * 3


@both_twins
def test_what_is_not_a_number_is_not_made_one(twin, triton_device):
    both = torch.tensor([[0.0, math.nan], [math.nan, 0.0]], device=triton_device)
    with forced(twin):
        codes = drawn_codes(both, 1, torch.ones(1, 1, device=triton_device), *BOUNDS)
    assert [bool(part.isnan()) for part in codes] == [False, True, True, True, False]


def test_codes_far_from_the_origin_are_drawn_as_near_it(triton_device):
    both, noise = encoded(6, 4, 3, device=triton_device)
    both[:, :3] += 1e4
    assert_equal_twins(both, 4, noise)


@both_twins
@pytest.mark.parametrize(("n", "asked", "Z"), [(0, 0, 3), (4, 2, 0)])
def test_no_frames_have_no_codes(n, asked, Z, twin, triton_device):
    both, noise = encoded(n, asked, Z, device=triton_device)
    with forced(twin):
        *codes, gradient = codes_and_gradient(drawn_codes, both, asked, noise)
    assert [part.shape for part in codes] == [(asked, Z)] * 3 + [(n - asked, Z)] * 2
    assert gradient.shape == both.shape


@both_twins
def test_half_precision_is_widened_and_double_precision_stays(twin, triton_device):
    for given, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        both, noise = encoded(3, 2, 4, given, triton_device)
        with forced(twin):
            codes = drawn_codes(both, 2, noise.to(expected), *BOUNDS)
        assert {part.dtype for part in codes} == {expected}


@both_twins
def test_noise_gets_a_gradient_where_it_asks_for_one(twin, triton_device):
    both, noise = encoded(3, 2, 4, device=triton_device)
    with forced(twin):
        codes = drawn_codes(both, 2, noise.requires_grad_(), *BOUNDS)
    codes.z.sum().backward()
    torch.testing.assert_close(noise.grad, (0.5 * codes.log_var).exp())


def test_what_does_not_fit_together_is_refused():
    both, noise = encoded(5, 3, 2)
    with pytest.raises(InputError, match="3 columns.*even"):
        drawn_codes(both[:, :3], 3, None, *BOUNDS)
    with pytest.raises(InputError, match="asked is 6 of 5 rows.*0 to 5"):
        drawn_codes(both, 6, None, *BOUNDS)
    with pytest.raises(InputError, match=r"\(3, 2\).*\(2, 2\)"):
        drawn_codes(both, 2, noise, *BOUNDS)


def test_a_gpu_can_keep_the_codes_in_a_graph(in_a_graph):
    both, noise = encoded(300, 100, 16, device="cuda")
    leaf = both.requires_grad_()

    def update():
        codes = drawn_codes(leaf, 100, noise, *BOUNDS)
        return [*codes, *torch.autograd.grad(codes.z.square().sum() + codes.bank_mean.square().sum(), leaf)]

    warm, replayed = in_a_graph(update)
    for one, other in zip(replayed, warm, strict=True):
        torch.testing.assert_close(one, other)
