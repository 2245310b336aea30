"""Squared errors of pictures: the kernel equals its readable twin, however either picture is laid out."""

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.kernels.bound.picture_error import picture_error, picture_error_by_parts
from gtmsm.kernels.choice import forced

SHAPES = [(3,), (1, 1), (3, 5), (2, 192), (1, 3, 2, 3), (2, 1, 4, 4), (2, 3, 20, 20), (4, 2, 3), (2, 7, 1, 1)]
LONG_SHAPES = [(2048, 192), (1024, 3, 32, 32)]  # too long to interpret


def pictures(*shape, device="cpu"):
    generator = torch.Generator().manual_seed(sum(shape))
    logits, x = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    return (2 * logits).to(device), x.to(device)


def error_and_gradient(function, logits, x):
    """By a sum in which no two pictures count alike."""
    leaf = logits.detach().requires_grad_()
    value = function(leaf, x)
    weight = torch.linspace(-1, 2, len(value), dtype=value.dtype, device=value.device)
    (gradient,) = torch.autograd.grad(value @ weight, leaf)
    return value.detach(), gradient


def assert_equal_twins(logits, x, rtol=1e-4, atol=1e-5):
    with forced("triton"):
        fast = error_and_gradient(picture_error, logits, x)
    readable = error_and_gradient(picture_error_by_parts, logits.double(), x.double().reshape(logits.shape))
    assert fast[0].dtype == torch.float32
    assert fast[1].dtype == logits.dtype
    for one, other in zip(fast, readable, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=rtol, atol=atol)
    return fast


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def padded(x):
    """Pictures in one piece each, with something between them."""
    return torch.cat([x, x + 1], 1)[:, : x.shape[1]]


def backwards(x):
    """Axes stored in the opposite order."""
    axes = range(x.dim() - 1, -1, -1)
    return x.permute(*axes).contiguous().permute(*axes)


LAYOUTS = {
    "plain": lambda x: x,
    "channels last": channels_last,
    "padded": padded,
    "channels last and padded": lambda x: channels_last(torch.cat([x, x + 1], 2))[:, :, : x.shape[2]],
    "backwards": backwards,
    "every second": lambda x: torch.stack([x, x + 1], -1)[..., 0],
}


def test_errors_of_two_pixels_add_up():
    logits, x = torch.zeros(1, 2, requires_grad=True), torch.tensor([[1.0, 0.25]])
    error = picture_error(logits, x)
    assert error.item() == 0.5**2 + 0.25**2
    error.backward()
    assert logits.grad.tolist() == [[-2 * 0.5 * 0.25, 2 * 0.25 * 0.25]]


def test_gradients_of_the_readable_twin_are_those_of_its_differences():
    logits, x = (part.double() for part in pictures(2, 3, 2, 2))
    assert torch.autograd.gradcheck(lambda made: picture_error_by_parts(made, x), logits.requires_grad_())


@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_triton_error_equals_the_readable_one(shape, dtype, triton_device):
    logits, x = pictures(*shape, device=triton_device)
    assert_equal_twins(logits.to(dtype), x, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("of_logits", LAYOUTS)
@pytest.mark.parametrize("of_x", LAYOUTS)
def test_pictures_may_be_laid_out_in_any_two_ways(of_logits, of_x, triton_device):
    logits, x = pictures(2, 3, 5, 4, device=triton_device)
    made, truth = LAYOUTS[of_logits](logits), LAYOUTS[of_x](x)
    assert torch.equal(made, logits)
    assert torch.equal(truth, x)
    assert_equal_twins(made, truth)


def test_the_gradient_of_a_convolution_is_laid_out_as_convolutions_want_it(triton_device):
    logits, x = pictures(2, 3, 4, 4, device=triton_device)
    _, gradient = assert_equal_twins(channels_last(logits), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_the_truth_may_be_flat_where_logits_are_not(layout, triton_device):
    logits, x = pictures(2, 3, 4, 4, device=triton_device)
    assert_equal_twins(LAYOUTS[layout](logits), x.flatten(1))
    assert_equal_twins(logits.flatten(1), LAYOUTS[layout](x))


def test_pictures_may_be_expanded(triton_device):
    logits, x = pictures(1, 3, 4, 4, device=triton_device)
    assert_equal_twins(logits.expand(3, -1, -1, -1), x.expand(3, -1, -1, -1))


def test_a_gradient_may_be_expanded(triton_device):
    logits, x = pictures(3, 5, device=triton_device)
    gradients = []
    for twin in ("triton", "readable"):
        leaf = logits.detach().requires_grad_()
        with forced(twin):
            gradients.append(torch.autograd.grad(picture_error(leaf, x).sum(), leaf)[0])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of NumPy, which interprets: 1 / inf is right
def test_logits_beyond_reason_are_black_or_white(triton_device):
    logits = torch.tensor([[1e4, -1e4, 100.0, -100.0]], device=triton_device)
    x = torch.tensor([[1.0, 0.0, 0.5, 1.0]], device=triton_device)
    with forced("triton"):
        error, gradient = error_and_gradient(picture_error, logits, x)
    assert error.item() == pytest.approx(1.25)
    assert gradient.abs().max() < 1e-30


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_the_truth_gets_a_gradient_where_it_asks_for_one(twin, triton_device):
    logits, x = (part.requires_grad_() for part in pictures(2, 5, device=triton_device))
    with forced(twin):
        picture_error(logits, x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x - logits.sigmoid()).detach())


@pytest.mark.parametrize("twin", ["readable", "triton"])
@pytest.mark.parametrize(("shape", "errors"), [((0, 3, 4, 4), 0), ((3, 0), 3)])
def test_no_pictures_and_no_pixels_have_no_error(shape, errors, twin, triton_device):
    logits, x = pictures(*shape, device=triton_device)
    with forced(twin):
        error, gradient = error_and_gradient(picture_error, logits, x)
    assert error.shape == (errors,)
    assert not error.any()
    assert gradient.shape == shape


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_double_precision_stays(twin, triton_device):
    logits, x = (part.double() for part in pictures(2, 5, device=triton_device))
    with forced(twin):
        assert picture_error(logits, x).dtype == torch.float64


def test_half_as_many_pixels_are_refused():
    logits, x = pictures(2, 3, 4, 4)
    with pytest.raises(InputError, match=r"\(2, 3, 4, 4\).*\(2, 3, 2, 4\).*as many pixels"):
        picture_error(logits, x[:, :, :2])


@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_a_gpu_can_keep_the_error_in_a_graph(layout, in_a_graph):
    logits, x = pictures(64, 3, 32, 32, device="cuda")
    leaf = LAYOUTS[layout](logits).requires_grad_()

    def update():
        error = picture_error(leaf, x)
        return [error, *torch.autograd.grad(error.mean(), leaf)]

    warm, replayed = in_a_graph(update)
    for one, other in zip(replayed, warm, strict=True):
        torch.testing.assert_close(one, other)
