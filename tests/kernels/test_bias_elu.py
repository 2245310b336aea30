"""Bias and ELU in one pass: the kernel equals its readable twin, values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from gtmsm.kernels.bias_elu import bias_elu, bias_elu_by_parts
from gtmsm.kernels.choice import forced

SHAPES = [(1, 1), (3, 5), (5, 300), (600, 24), (1, 1, 1, 1), (2, 3, 5, 6), (2, 32, 3, 4), (3, 8, 20, 20), (2, 4, 1, 1)]
LARGE_SHAPES = [(1024, 8192), (3001, 129), (1792, 32, 32, 32), (1792, 128, 8, 8), (100, 96, 17, 9)]
ON_A_GPU = torch.cuda.is_available()


def layer(*shape, dtype=torch.float32, device="cpu"):
    """An input with the channels of a pixel beside each other, on both sides of the kink, and a bias."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, bias = torch.randn(shape, generator=generator), torch.randn(shape[1], generator=generator)
    return channels_beside(x).to(device, dtype), bias.to(device)


def channels_beside(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def uneven(y):
    """No two numbers count alike."""
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view(y.shape).to(y.dtype)


def values_and_gradients(run, x, bias, arrange=channels_beside):
    leaves = [part.detach().requires_grad_() for part in (x, bias)]
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, arrange(uneven(y.detach())))]


def by_triton(x, bias):
    with forced("triton"):
        return bias_elu(x, bias)


def assert_equal_twins(fast, readable, tolerance=1e-5):
    """In units of the largest number: a sum over thousands of pixels is as inexact as what it adds up."""
    for name, one, other in zip(("y", "x", "bias"), fast, readable, strict=True):
        assert one.shape == other.shape, name
        size = max(1.0, other.abs().max().item())
        error = (one.double() - other).abs().max().item()
        assert error <= tolerance * size, f"{name} is off by {error}, and no number is larger than {size}"


@pytest.fixture
def launched(triton_device, monkeypatch):
    """How often something was given to Triton."""
    from gtmsm.kernels import bias_elu_triton

    names = []
    original = bias_elu_triton.activated
    monkeypatch.setattr(bias_elu_triton, "activated", lambda *inputs: names.append("triton") or original(*inputs))
    return names


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4, 5)])
def test_it_is_a_bias_and_an_elu(shape):
    x, bias = layer(*shape)
    wanted = F.elu(x + bias[:, None, None]) if x.dim() == 4 else F.elu(x + bias)
    assert torch.equal(bias_elu(x, bias), wanted)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (2, 3, 2, 2)])
def test_gradients_agree_with_finite_differences(shape):
    leaves = [part.double().requires_grad_() for part in layer(*shape)]
    assert torch.autograd.gradcheck(bias_elu_by_parts, leaves)


@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_triton_twin_equals_the_readable_one(shape, dtype, triton_device, launched):
    x, bias = layer(*shape, dtype=dtype, device=triton_device)
    fast = values_and_gradients(by_triton, x, bias)
    assert launched == ["triton"]
    assert [part.dtype for part in fast] == [dtype, dtype, torch.float32]
    readable = values_and_gradients(bias_elu_by_parts, x.double(), bias.double())
    assert_equal_twins(fast, readable, tolerance=1e-5 if dtype == torch.float32 else 1e-2)


def test_what_comes_out_is_laid_out_as_what_went_in(triton_device):
    x, bias = layer(2, 3, 5, 6, device=triton_device)
    y, dx, _ = values_and_gradients(by_triton, x, bias)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert dx.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("arrange", [lambda g: g, lambda g: g.mT.contiguous().mT, lambda g: g[:1].expand_as(g)])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 5, 6)])
def test_gradients_may_come_in_any_layout(shape, arrange, triton_device):
    x, bias = layer(*shape, device=triton_device)
    fast = values_and_gradients(by_triton, x, bias, arrange)
    assert_equal_twins(fast, values_and_gradients(bias_elu_by_parts, x.double(), bias.double(), arrange))


def test_the_bias_may_be_strided(triton_device):
    x, bias = layer(5, 7, device=triton_device)
    assert torch.equal(by_triton(x, torch.stack([bias, bias], 1)[:, 0]), by_triton(x, bias))


LAYOUTS = {
    "plane by plane": lambda x: x.contiguous(),
    "expanded": lambda x: x[:1].expand_as(x),
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "double": lambda x: x.double(),
    "no pixels": lambda x: x[:, :, :0],
    "no pictures": lambda x: x[:0],
    "one axis of pixels": lambda x: x.flatten(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_triton_twin_cannot_do_is_left_to_the_readable_one(layout, launched):
    x, bias = layer(2, 3, 5, 6)
    x = LAYOUTS[layout](x)
    results = values_and_gradients(by_triton, x, bias)
    assert not launched
    assert results[0].dtype == x.dtype
    for one, other in zip(results, values_and_gradients(bias_elu_by_parts, x, bias), strict=True):
        torch.testing.assert_close(one, other)


def test_large_numbers_stay_large_and_small_ones_stop_at_minus_one(triton_device):
    x = torch.tensor([[1e4], [-1e4], [0.0], [float("nan")]], device=triton_device, requires_grad=True)
    y = by_triton(x, torch.zeros(1, device=triton_device))
    torch.testing.assert_close(y[:, 0].tolist(), [1e4, -1.0, 0.0, float("nan")], equal_nan=True)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope[:, 0].tolist(), [1.0, 0.0, 1.0, float("nan")], equal_nan=True)


def test_few_programs_share_out_many_pixels(triton_device, monkeypatch):
    from gtmsm.kernels import bias_elu_triton

    monkeypatch.setattr(bias_elu_triton, "PROGRAMS", 2)
    x, bias = layer(3, 33, 20, 20, device=triton_device)
    assert bias_elu_triton.share_for(1200, 33) == 640  # ten tiles of 64 pixels, and nine for the other program
    fast = values_and_gradients(by_triton, x, bias)
    assert_equal_twins(fast, values_and_gradients(bias_elu_by_parts, x.double(), bias.double()))


def test_the_same_twice_is_the_same_to_the_bit(triton_device):
    inputs = layer(3, 8, 20, 20, device=triton_device)
    first, second = (values_and_gradients(by_triton, *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_was_made_may_not_be_changed_before_the_way_back(triton_device):
    x, bias = layer(5, 3, device=triton_device)
    y = by_triton(x.requires_grad_(), bias)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.usefixtures("triton_device")
@pytest.mark.parametrize("rows", [1, 100, 1792 * 64, 1792 * 1024])
@pytest.mark.parametrize("channels", [1, 24, 32, 128, 8192, 10000])
def test_shares_cover_all_pixels_once(rows, channels):
    from gtmsm.kernels.bias_elu_triton import PROGRAMS, TILE, share_for, tile_for

    high, wide = tile_for(channels)
    assert high * wide == TILE
    share = share_for(rows, channels)
    parts = -(-rows // share)
    assert share % high == 0
    assert (parts - 1) * share < rows <= parts * share
    assert parts * -(-channels // wide) <= PROGRAMS


def test_a_gpu_can_keep_it_in_a_graph(in_a_graph):
    leaves = [part.requires_grad_() for part in layer(64, 32, 16, 16, dtype=torch.bfloat16, device="cuda")]

    def update():
        y = bias_elu(*leaves)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
