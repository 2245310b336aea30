"""A dense layer: the fast implementation equals the readable function, values and gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from twins import assert_equal_twins, strided

from gtmsm.kernels.layers.dense_layer import dense_layer
from gtmsm.kernels.operator import forced
from gtmsm.kernels.precision import float32_products

SHAPES = [
    (1, 1, 1),
    (1, 16, 8),
    (5, 3, 2),
    (17, 19, 33),
    (64, 16, 32),
    (70, 65, 67),
    (130, 7, 130),
]  # n, inputs, outputs
LARGE_SHAPES = [
    (2048, 192, 256), (4000, 256, 256), (2048, 256, 32), (6144, 16, 256), (5000, 256, 192), (3001, 134, 250)
]  # fmt: skip  # too large to interpret
ON_A_GPU = torch.cuda.is_available()

elus = pytest.mark.parametrize("elu", [True, False])
on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="Triton needs a CUDA device")


def layer(n, inputs, outputs, dtype=torch.float32, device="cpu"):
    """Input, weight and bias; what comes out lies on both sides of the ELU's kink."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * inputs + outputs)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(device, dtype)

    return draw(n, inputs), draw(outputs, inputs) / inputs**0.5, draw(outputs)


def values_and_gradients(run, *inputs):
    """What a layer makes of its inputs, and the gradients of an uneven sum of it."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with forced("cuda"):
        y = run(*leaves)
        return [y.detach(), *torch.autograd.grad((uneven(y) * y).sum(), leaves)]


def uneven(y):
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view_as(y).to(y.dtype)


def fast_layer(x, weight, bias, elu, made=None):
    with forced("cuda"):
        return dense_layer(x, weight, bias, elu, made or x.dtype)


def readable_layer(x, weight, bias, elu, made=None):
    return dense_layer.readable(x, weight, bias, elu, made or x.dtype)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.layers import dense_layer_triton

    return note_launches(dense_layer_triton, "_dense_layer_rows", "_dense_layer_into_parameters")


def test_large_products_that_must_be_exact_are_left_to_pytorch(triton_device, launched, monkeypatch):
    inputs = layer(9, 4, 5, device=triton_device)
    monkeypatch.setattr("gtmsm.kernels.layers.dense_layer_triton.MOST_EXACT", 9 * 4 * 5 - 1)
    fast_layer(*inputs, True)
    assert not launched
    with float32_products("high"):
        fast_layer(*inputs, True)
    assert launched == ["_dense_layer_rows"]


@pytest.mark.parametrize(("inputs", "outputs"), [(257, 3), (3, 257)])
def test_wide_layers_are_left_to_pytorch(inputs, outputs, triton_device, launched):
    fast_layer(*layer(2, inputs, outputs, device=triton_device), True)
    assert not launched


@elus
def test_a_layer_is_that_of_pytorch(elu):
    x, weight, bias = layer(5, 3, 4)
    network = nn.Linear(3, 4)
    network.weight.data, network.bias.data = weight, bias
    wanted = F.elu(network(x)) if elu else network(x)
    assert torch.equal(dense_layer(x, weight, bias, elu, torch.float32), wanted)


@elus
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 5)])
def test_gradients_agree_with_finite_differences(shape, elu):
    leaves = [x.requires_grad_() for x in layer(*shape, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: readable_layer(*inputs, elu), leaves)


def test_autocast_changes_nothing():
    x, weight, bias = layer(5, 3, 4)
    plain = dense_layer(x, weight, bias, True, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(dense_layer(x, weight, bias, True, torch.float32), plain)
        assert dense_layer(x, weight, bias, True, torch.bfloat16).dtype == torch.bfloat16


def test_products_of_bfloat16_are_added_up_in_float32():
    x, weight, bias = layer(5, 30, 4)
    exact = F.linear(x.bfloat16().double(), weight.bfloat16().double(), bias.double())
    made = dense_layer(x.bfloat16(), weight, bias, False, torch.float32)
    torch.testing.assert_close(made, exact.float(), rtol=1e-5, atol=1e-5)


def test_a_cpu_gets_plain_pytorch(launched):
    dense_layer(*layer(5, 3, 4), True, torch.float32)
    assert not launched


@elus
@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
def test_the_fast_layer_equals_the_readable_one(shape, elu, triton_device, launched):
    inputs = layer(*shape, device=triton_device)
    fast = values_and_gradients(lambda *x: fast_layer(*x, elu), *inputs)
    assert launched == ["_dense_layer_rows", "_dense_layer_rows", "_dense_layer_into_parameters"]
    assert all(part.dtype == torch.float32 for part in fast)
    assert_equal_twins(fast, values_and_gradients(lambda *x: readable_layer(*x, elu), *(x.double() for x in inputs)))


def test_the_fast_layer_takes_strided_inputs_and_gradients(triton_device):
    inputs = layer(21, 6, 5, device=triton_device)

    def run(one_layer, leaves):
        with forced("cuda"):
            y = one_layer(*leaves, True)
            return [y.detach(), *torch.autograd.grad(y, leaves, strided(uneven(y.detach())))]

    leaves = [strided(x).requires_grad_() for x in inputs]
    assert not any(x.is_contiguous() for x in leaves)
    exact = [x.double().requires_grad_() for x in inputs]
    assert_equal_twins(run(fast_layer, leaves), run(readable_layer, exact))


def test_the_fast_layer_takes_expanded_inputs_and_gradients(triton_device):
    x, weight, bias = layer(1, 6, 5, device=triton_device)
    both = []
    for run in (fast_layer, readable_layer):
        leaves = [part.clone().requires_grad_() for part in (x, weight, bias)]
        with forced("cuda"):
            y = run(leaves[0].expand(20, 6), *leaves[1:], True)
            both.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
    assert_equal_twins(*both)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_layers_without_rows_inputs_or_outputs_work(shape, triton_device, launched):
    n, inputs, outputs = shape
    x, weight, bias = (torch.ones(size, device=triton_device) for size in ((n, inputs), (outputs, inputs), (outputs,)))
    fast = values_and_gradients(lambda *leaves: fast_layer(*leaves, True), x, weight, bias)
    assert not launched
    assert fast[0].shape == (n, outputs)
    assert_equal_twins(fast, values_and_gradients(lambda *leaves: readable_layer(*leaves, True), x, weight, bias))


def test_what_needs_no_gradient_is_not_computed(triton_device, launched):
    x, weight, bias = layer(5, 3, 4, device=triton_device)
    with forced("cuda"):
        fast_layer(x, weight.clone().requires_grad_(), bias, True).sum().backward()
    assert launched == ["_dense_layer_rows", "_dense_layer_into_parameters"]
    launched.clear()
    with forced("cuda"):
        fast_layer(x.clone().requires_grad_(), weight, bias, True).sum().backward()
    assert launched == ["_dense_layer_rows", "_dense_layer_rows"]


def test_large_numbers_stay_large_and_small_ones_stop_at_minus_one(triton_device):
    x = torch.tensor([[1e4], [-1e4], [0.0], [float("nan")]], device=triton_device, requires_grad=True)
    y = fast_layer(x, torch.ones(1, 1, device=triton_device), torch.zeros(1, device=triton_device), True)
    torch.testing.assert_close(y[:, 0].tolist(), [1e4, -1.0, 0.0, float("nan")], equal_nan=True)
    with forced("cuda"):
        (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope[:, 0].tolist(), [1.0, 0.0, 1.0, float("nan")], equal_nan=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_same_layer_twice_is_the_same_to_the_bit_but_for_gradients_of_parameters(triton_device):
    inputs = layer(300, 20, 33, device=triton_device)
    first, second = (values_and_gradients(lambda *x: fast_layer(*x, True), *inputs) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert_equal_twins(first[2:], second[2:], 1e-6)  # added up in no fixed order


def test_what_was_made_may_not_be_changed_before_the_backward_pass(triton_device):
    x, weight, bias = layer(5, 3, 4, device=triton_device)
    y = fast_layer(x, weight.requires_grad_(), bias, True)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


SIZES = list(itertools.product((1, 100, 2048, 6144, 12288, 50000), (16, 32, 192, 256, 512), (16, 134, 256, 1024)))


@pytest.mark.parametrize("precision", ["bfloat16", "tf32", "ieee"])
@pytest.mark.usefixtures("triton_device")
def test_tiles_are_what_tensor_cores_take_and_shares_cover_all_rows_once(precision):
    from gtmsm.kernels.layers.dense_layer_triton import share_for, tile_for

    for n, outputs, inputs in SIZES:
        share_tile, share = share_for(n, outputs, inputs, precision)
        for tile in (*(tile_for(n, outputs, inputs, precision, turned) for turned in (False, True)), share_tile):
            assert all(size >= 16 and size & (size - 1) == 0 for size in tile)
            assert tile.ROWS * tile.COLUMNS <= 128 * 64
        parts = -(-n // share)
        assert share % share_tile.DEPTH == 0
        assert (parts - 1) * share < n <= parts * share


@pytest.mark.parametrize("n", [2048, 6144, 12288])
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 256), (256, 256), (256, 32), (16, 256), (256, 192)])
@pytest.mark.usefixtures("triton_device")
def test_layers_as_we_train_them_fill_a_gpu(n, inputs, outputs):
    from gtmsm.kernels.layers.dense_layer_triton import ALMOST_FULL, share_for, tile_for

    for columns, depth, turned in ((outputs, inputs, False), (inputs, outputs, True)):
        tile = tile_for(n, columns, depth, "tf32", turned)
        assert -(-n // tile.ROWS) * -(-columns // tile.COLUMNS) >= ALMOST_FULL
    tile, share = share_for(n, outputs, inputs, "tf32")
    tiles = -(-outputs // tile.ROWS) * -(-inputs // tile.COLUMNS)
    assert tiles * -(-n // share) >= ALMOST_FULL


@on_a_gpu
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES)
def test_tensor_cores_are_as_exact_as_ten_bits_are(shape):
    inputs = layer(*shape, device="cuda")
    with float32_products("high"):
        fast = values_and_gradients(lambda *x: dense_layer(*x, True, torch.float32), *inputs)
    readable = values_and_gradients(lambda *x: readable_layer(*x, True), *(x.double() for x in inputs))
    assert_equal_twins(fast, readable, tolerance=4e-3)


@on_a_gpu  # the interpreter multiplies the bits of a bfloat16
@elus
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES)
def test_bfloat16_goes_in_and_out_and_parameters_stay_float32(shape, elu):
    x, weight, bias = layer(*shape, device="cuda")
    x = x.bfloat16()
    fast = values_and_gradients(lambda *leaves: dense_layer(*leaves, elu, torch.bfloat16), x, weight, bias)
    assert [part.dtype for part in fast] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    exact = [part.double() for part in (x, weight, bias)]
    assert_equal_twins(fast, values_and_gradients(lambda *leaves: readable_layer(*leaves, elu), *exact), 2e-2)


@on_a_gpu
def test_a_last_layer_makes_float32_of_bfloat16():
    x, weight, bias = layer(2048, 256, 32, device="cuda")
    fast = values_and_gradients(lambda *leaves: fast_layer(*leaves, False, torch.float32), x.bfloat16(), weight, bias)
    exact = [part.double() for part in (x.bfloat16(), weight.bfloat16(), bias)]
    torch.testing.assert_close(fast[0], F.linear(*exact).float(), rtol=1e-4, atol=1e-4)
    assert [part.dtype for part in fast] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]


def test_a_gpu_can_keep_the_layer_in_a_graph(in_a_graph):
    leaves = [x.requires_grad_() for x in layer(300, 20, 33, device="cuda")]

    def update():
        y = dense_layer(*leaves, True, torch.float32)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    warm, replayed = in_a_graph(update)
    assert_equal_twins(replayed, warm, 1e-6)  # gradients of parameters are added up in no fixed order
