"""Convolutions between few channels and many: the fast implementations equal the readable functions."""

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins, strided

from gtmsm.kernels.layers.edge_conv import edge_conv_in, edge_conv_out
from gtmsm.kernels.operator import forced

SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 3, 32, 5, 6),
    (3, 3, 16, 8, 8),
    (2, 4, 20, 7, 5),
    (2, 2, 70, 3, 9),
    (1, 1, 5, 1, 33),
    (5, 3, 8, 12, 1),
    (1, 3, 32, 2, 64),
]  # n, few, many, height, width
LARGE_SHAPES = [
    (1792, 3, 32, 32, 32), (1024, 3, 64, 32, 32), (300, 3, 32, 20, 20), (77, 4, 128, 64, 48), (10, 3, 24, 31, 129),
    (84, 3, 32, 64, 64),
]  # fmt: skip  # too large to interpret
ON_A_GPU = torch.cuda.is_available()

on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="Triton needs a CUDA device")
shapes = pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))


@pytest.fixture(autouse=True)
def exactly(monkeypatch):
    """Convolutions that do not round to TF32, as they may on a GPU unless they are told."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def drawn(*shape, device="cpu"):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def first(n, few, many, height, width, device="cpu"):
    """Pictures, weights and bias of a first convolution; weights as convolutions like them."""
    x = drawn(n, few, height, width, device=device).sigmoid()
    weight = channels_last(drawn(many, few, 3, 3, device=device) / (9 * few) ** 0.5)
    return x, weight, drawn(many, device=device)


def last(n, few, many, height, width, device="cpu", dtype=torch.float32):
    """The large side, weights and bias of a last convolution."""
    x = channels_last(drawn(n, many, height, width, device=device)).to(dtype)
    weight = channels_last(drawn(few, many, 3, 3, device=device) / (9 * many) ** 0.5)
    return x, weight, drawn(few, device=device)


def uneven(y):
    """No two numbers count alike."""
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view(y.shape).to(y.dtype)


def values_and_gradients(run, *inputs, arrange=lambda g: g):
    leaves = [x.detach().requires_grad_() for x in inputs]
    with forced("cuda"):
        y = run(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, arrange(uneven(y.detach())))]


def by_kernel(function, *inputs):
    with forced("cuda"):
        return function(*inputs)


def both_first(x, weight, bias, made=torch.float32, **options):
    """A first convolution and its gradients by the kernels, and exactly."""
    fast = values_and_gradients(lambda w, b: by_kernel(edge_conv_in, x, w, b, made), weight, bias, **options)
    return fast, values_and_gradients(
        lambda w, b: edge_conv_in.readable(x.double(), w, b, torch.float64), weight.double(), bias.double(), **options
    )


def both_last(x, weight, bias, **options):
    """The same for a last convolution."""
    fast = values_and_gradients(lambda *leaves: by_kernel(edge_conv_out, *leaves), x, weight, bias, **options)
    return fast, values_and_gradients(edge_conv_out.readable, *(part.double() for part in (x, weight, bias)), **options)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.layers import edge_conv_triton

    return note_launches(edge_conv_triton, "_few_to_many", "_many_to_few", "_edge_conv_into_parameters")


def test_they_are_convolutions():
    x, weight, bias = first(2, 3, 4, 5, 6)
    y = edge_conv_in(x, weight, bias, torch.float32)
    torch.testing.assert_close(y, F.elu(F.conv2d(x, weight, bias, padding=1)))
    assert y.is_contiguous(memory_format=torch.channels_last)
    x, weight, bias = last(2, 3, 4, 5, 6)
    y = edge_conv_out(x, weight, bias)
    torch.testing.assert_close(y, F.conv2d(x, weight, bias, padding=1))
    assert y.is_contiguous()


def test_gradients_agree_with_finite_differences():
    leaves = [part.double().requires_grad_() for part in first(2, 2, 3, 3, 4)]
    assert torch.autograd.gradcheck(lambda *leaves: edge_conv_in.readable(*leaves, torch.float64), leaves)
    leaves = [part.double().requires_grad_() for part in last(2, 2, 3, 3, 4)]
    assert torch.autograd.gradcheck(edge_conv_out.readable, leaves)


def test_pictures_that_require_a_gradient_get_one(triton_device, launched):
    inputs = first(2, 3, 4, 5, 6, device=triton_device)
    found = values_and_gradients(lambda *leaves: by_kernel(edge_conv_in, *leaves, torch.float32), *inputs)
    assert not launched
    assert found[1].any()
    wanted = values_and_gradients(lambda *leaves: edge_conv_in.readable(*leaves, torch.float32), *inputs)
    assert_equal_twins(found, wanted)


def test_autocast_changes_nothing():
    x, weight, bias = first(2, 3, 4, 5, 6)
    plain = edge_conv_in(x, weight, bias, torch.float32)
    many, *parameters = last(2, 3, 4, 5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(edge_conv_in(x, weight, bias, torch.float32), plain)
        assert edge_conv_in(x, weight, bias, torch.bfloat16).dtype == torch.bfloat16
        assert edge_conv_out(many.bfloat16(), *parameters).dtype == torch.float32


@shapes
def test_the_fast_convolution_from_few_equals_the_readable_one(shape, triton_device, launched):
    fast, readable = both_first(*first(*shape, device=triton_device))
    assert launched == ["_few_to_many", "_edge_conv_into_parameters"]
    assert all(part.dtype == torch.float32 for part in fast)
    assert fast[0].is_contiguous(memory_format=torch.channels_last)
    assert_equal_twins(fast, readable, tolerance=1e-4 if shape in LARGE_SHAPES else 1e-5)


@shapes
def test_the_fast_convolution_to_few_equals_the_readable_one(shape, triton_device, launched):
    fast, readable = both_last(*last(*shape, device=triton_device))
    assert launched == ["_many_to_few", "_few_to_many", "_edge_conv_into_parameters"]
    assert all(part.dtype == torch.float32 for part in fast)
    assert fast[0].is_contiguous()
    assert fast[1].is_contiguous(memory_format=torch.channels_last)
    assert_equal_twins(fast, readable, tolerance=1e-4 if shape in LARGE_SHAPES else 1e-5)


LAYOUTS = {"strided": strided, "channels last": channels_last, "expanded": lambda x: x[:1].expand_as(x)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_and_gradients_may_be_laid_out_in_any_way(layout, triton_device):
    arrange = LAYOUTS[layout]
    x, weight, bias = first(3, 3, 8, 5, 6, device=triton_device)
    assert_equal_twins(*both_first(arrange(x), weight, bias, arrange=arrange))
    x, weight, bias = last(3, 3, 8, 5, 6, device=triton_device)
    assert_equal_twins(*both_last(arrange(x), weight, bias, arrange=arrange))


def test_parameters_may_be_strided(triton_device):
    x, *parameters = first(2, 3, 8, 5, 6, device=triton_device)
    assert_equal_twins(*both_first(x, *map(strided, parameters)))
    x, *parameters = last(2, 3, 8, 5, 6, device=triton_device)
    assert_equal_twins(*both_last(x, *map(strided, parameters)))


@pytest.mark.parametrize("arrange", [lambda x: x.contiguous(), channels_last])
def test_gradients_of_weights_are_laid_out_as_the_weights_are(arrange, triton_device):
    for both, (x, weight, bias) in (
        (both_first, first(2, 3, 8, 5, 6, device=triton_device)),
        (both_last, last(2, 3, 8, 5, 6, device=triton_device)),
    ):
        fast, _ = both(x, arrange(weight), bias)
        assert fast[-2].stride() == arrange(weight).stride()


def test_what_needs_no_gradient_is_not_computed(triton_device, launched):
    x, weight, bias = last(2, 3, 8, 5, 6, device=triton_device)
    with forced("cuda"):
        edge_conv_out(x, weight.clone().requires_grad_(), bias).sum().backward()
    assert launched == ["_many_to_few", "_edge_conv_into_parameters"]
    launched.clear()
    with forced("cuda"):
        edge_conv_out(x.clone().requires_grad_(), weight, bias).sum().backward()
    assert launched == ["_many_to_few", "_few_to_many"]


@pytest.mark.parametrize("shape", [(0, 3, 8, 5, 6), (2, 5, 8, 3, 3)])
def test_no_pictures_and_not_so_few_channels_are_left_to_the_readable_functions(shape, triton_device, launched):
    assert_equal_twins(*both_first(*first(*shape, device=triton_device)))
    assert_equal_twins(*both_last(*last(*shape, device=triton_device)))
    assert not launched


def test_one_pixel_that_is_not_a_number_stays_among_its_neighbours(triton_device):
    x, weight, bias = last(2, 3, 8, 5, 9, device=triton_device)
    x[0, 0, 2, 4] = float("nan")
    broken = ~by_kernel(edge_conv_out, x, weight, bias).isfinite()
    assert broken[0, :, 1:4, 3:6].all()
    assert broken.sum() == 27


def test_neighbours_beyond_a_border_are_zero_and_not_those_of_another_line_or_picture(triton_device):
    x = torch.full((2, 1, 2, 2), 5.0, device=triton_device)
    x[0, 0, 0, 0] = 1.0
    weight, bias = torch.zeros(1, 1, 3, 3, device=triton_device), torch.zeros(1, device=triton_device)
    weight[..., 0, 0] = 1.0  # the neighbour above and to the left
    with forced("cuda"):
        for y in (edge_conv_in(x, weight, bias, torch.float32), edge_conv_out(x, weight, bias)):
            assert y[:, 0].tolist() == [[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 5.0]]]


def test_few_programs_share_out_many_tiles(triton_device, monkeypatch):
    from gtmsm.kernels.layers import edge_conv_triton

    monkeypatch.setattr(edge_conv_triton, "PROGRAMS", 4)
    for programs, many in ((4, 16), (2, 70)):
        shape = (7, 3, many, 5, 6)  # a tile each: seven tiles for two or four programs
        assert -(-7 // edge_conv_triton.share_for(7, 4 // programs)) == programs
        x, weight, bias = first(*shape, device=triton_device)
        assert_equal_twins(*both_first(x, weight, bias))
        assert_equal_twins(*both_last(*last(*shape, device=triton_device)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_same_convolution_twice_is_the_same_to_the_bit(triton_device):
    for both, inputs in (
        (both_first, first(3, 3, 16, 8, 8, device=triton_device)),
        (both_last, last(3, 3, 16, 8, 8, device=triton_device)),
    ):
        (one, _), (other, _) = both(*inputs), both(*inputs)
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_what_was_made_may_not_be_changed_before_the_backward_pass(triton_device):
    x, weight, bias = first(2, 3, 8, 5, 6, device=triton_device)
    y = by_kernel(edge_conv_in, x, weight.requires_grad_(), bias, torch.float32)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@on_a_gpu
@shapes
def test_tensor_cores_are_as_exact_as_their_bits_are(shape, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    x, weight, bias = first(*shape, device="cuda")
    assert_equal_twins(*both_first(x, weight, bias), tolerance=4e-3)
    assert_equal_twins(*both_last(*last(*shape, device="cuda")), tolerance=4e-3)
    assert_equal_twins(*both_first(x, weight, bias, torch.bfloat16), tolerance=3e-2)
    assert_equal_twins(*both_last(*last(*shape, device="cuda", dtype=torch.bfloat16)), tolerance=3e-2)


def test_a_gpu_can_keep_both_in_a_graph(in_a_graph):
    picture, *parameters_in = first(64, 3, 32, 32, 32, device="cuda")
    _, *parameters_out = last(64, 3, 32, 32, 32, device="cuda")
    leaves = [part.requires_grad_() for part in (*parameters_in, *parameters_out)]

    def update():
        made = edge_conv_in(picture, *leaves[:2], torch.bfloat16)
        y = edge_conv_out(made, *leaves[2:])
        return [y, *torch.autograd.grad(y.square().mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
