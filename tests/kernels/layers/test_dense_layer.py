"""A dense layer, whole: the fast twin equals the readable one, values and gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from twins import assert_equal_twins, strided

from gtmsm.errors import InputError
from gtmsm.kernels.choice import float32_products, forced
from gtmsm.kernels.layers import dense_layer as module
from gtmsm.kernels.layers.dense_layer import dense_layer, dense_layer_by_parts

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
    (2048, 192, 256), (6144, 256, 256), (2048, 256, 32), (6144, 16, 256), (12288, 256, 192),
    (3001, 134, 512), (20000, 1024, 512), (777, 512, 128),
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


def table_and_rows(m, n, inputs, outputs, device, dtype=torch.float32):
    """A table of frames, which of them are wanted (one of them twice), and parameters."""
    table, weight, bias = layer(m, inputs, outputs, device=device)
    rows = torch.randint(m, (n,), generator=torch.Generator().manual_seed(n)).to(device)
    rows[-1] = rows[0]
    table = (255 * table.sigmoid()).to(dtype) if dtype == torch.uint8 else table.to(dtype)
    return table, weight, bias, rows


def values_and_gradients(run, *inputs):
    """What a layer makes of its inputs, and the gradients of an uneven sum of it."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad((uneven(y) * y).sum(), leaves)]


def uneven(y):
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view_as(y).to(y.dtype)


def by_triton(*inputs):
    with forced("triton"):
        return dense_layer(*inputs)


@pytest.fixture
def launched(triton_device, note_launches, monkeypatch):
    from gtmsm.kernels.layers import dense_layer_triton

    monkeypatch.setattr("gtmsm.kernels.layers.dense_layer.MOST_EXACT", 2**60)
    return note_launches(
        dense_layer_triton, "_dense_layer_forward", "_dense_layer_into_input", "_dense_layer_into_parameters"
    )


def test_large_products_that_must_be_exact_are_left_to_others(triton_device, launched, monkeypatch):
    inputs = layer(9, 4, 5, device=triton_device)
    monkeypatch.setattr("gtmsm.kernels.layers.dense_layer.MOST_EXACT", 9 * 4 * 5 - 1)
    by_triton(*inputs, True)
    assert not launched
    with float32_products("high"):
        by_triton(*inputs, True)
    assert launched == ["_dense_layer_forward"]


@elus
def test_a_layer_is_that_of_pytorch(elu):
    x, weight, bias = layer(5, 3, 4)
    network = nn.Linear(3, 4)
    network.weight.data, network.bias.data = weight, bias
    wanted = F.elu(network(x)) if elu else network(x)
    assert torch.equal(dense_layer(x, weight, bias, elu), wanted)


@elus
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 5)])
def test_gradients_agree_with_finite_differences(shape, elu):
    leaves = [x.requires_grad_() for x in layer(*shape, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: dense_layer_by_parts(*inputs, elu), leaves)


def test_gradients_of_gathered_bytes_agree_with_finite_differences():
    table, weight, bias, rows = table_and_rows(4, 6, 3, 5, "cpu", torch.uint8)
    leaves = [x.double().requires_grad_() for x in (weight, bias)]
    assert torch.autograd.gradcheck(lambda w, b: dense_layer_by_parts(table, w, b, True, rows), leaves)


def test_bytes_count_from_0_to_1():
    table = torch.tensor([[0], [51], [255]], dtype=torch.uint8)
    y = dense_layer(table, torch.ones(1, 1), torch.zeros(1), False, torch.tensor([2, 1, 0, 2]))
    torch.testing.assert_close(y, torch.tensor([[1.0], [0.2], [0.0], [1.0]]))


def test_a_layer_keeps_the_precision_of_its_input_under_autocast():
    x, weight, bias = layer(5, 3, 4)
    plain = dense_layer(x, weight, bias, True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(dense_layer(x, weight, bias, True), plain)
        assert dense_layer(x.bfloat16(), weight, bias, True).dtype == torch.bfloat16


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_a_table_that_requires_a_gradient_is_refused(twin):
    x, weight, bias = layer(5, 3, 4)
    with forced(twin), pytest.raises(InputError, match=r"table of 5 rows.*requires a gradient.*x\.detach\(\)"):
        dense_layer(x.requires_grad_(), weight, bias, True, torch.tensor([0, 3]))


def test_a_cpu_gets_plain_pytorch(monkeypatch):
    asked = []
    original = module.dense_layer_by_parts
    monkeypatch.setattr(module, "dense_layer_by_parts", lambda *inputs: asked.append(1) or original(*inputs))
    dense_layer(*layer(5, 3, 4), True)
    assert asked == [1]


@elus
@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
def test_the_triton_layer_equals_the_layer_by_parts(shape, elu, triton_device, launched):
    inputs = layer(*shape, device=triton_device)
    fast = values_and_gradients(lambda *x: by_triton(*x, elu), *inputs)
    assert launched == ["_dense_layer_forward", "_dense_layer_into_input", "_dense_layer_into_parameters"]
    assert all(part.dtype == torch.float32 for part in fast)
    assert_equal_twins(
        fast, values_and_gradients(lambda *x: dense_layer_by_parts(*x, elu), *(x.double() for x in inputs))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("shape", [(5, 1, 3, 2), (9, 20, 19, 33), (3, 140, 16, 8)])
def test_the_triton_layer_gathers_its_rows(shape, dtype, triton_device, launched):
    table, weight, bias, rows = table_and_rows(*shape, triton_device, dtype)
    fast = values_and_gradients(lambda w, b: by_triton(table, w, b, True, rows), weight, bias)
    assert launched == ["_dense_layer_forward", "_dense_layer_into_parameters"]
    exact = table if dtype == torch.uint8 else table.double()
    readable = values_and_gradients(
        lambda w, b: dense_layer_by_parts(exact, w, b, True, rows), weight.double(), bias.double()
    )
    assert_equal_twins(fast, readable)


def test_the_triton_layer_takes_bytes_that_are_not_gathered(triton_device):
    table, weight, bias, _ = table_and_rows(9, 1, 5, 4, triton_device, torch.uint8)
    fast = by_triton(table, weight, bias, False)
    assert_equal_twins([fast], [dense_layer_by_parts(table, weight.double(), bias.double(), False)])


def test_the_triton_layer_takes_strided_inputs_and_gradients(triton_device):
    inputs = layer(21, 6, 5, device=triton_device)

    def run(one_layer, leaves):
        y = one_layer(*leaves, True)
        return [y.detach(), *torch.autograd.grad(y, leaves, strided(uneven(y.detach())))]

    leaves = [strided(x).requires_grad_() for x in inputs]
    assert not any(x.is_contiguous() for x in leaves)
    exact = [x.double().requires_grad_() for x in inputs]
    assert_equal_twins(run(by_triton, leaves), run(dense_layer_by_parts, exact))


def test_the_triton_layer_takes_strided_tables_and_rows(triton_device):
    table, weight, bias, rows = table_and_rows(9, 20, 5, 4, triton_device)
    fast = values_and_gradients(lambda w, b: by_triton(strided(table), w, b, True, strided(rows)), weight, bias)
    readable = values_and_gradients(lambda w, b: dense_layer_by_parts(table, w, b, True, rows), weight, bias)
    assert_equal_twins(fast, readable)


def test_the_triton_layer_takes_expanded_inputs_and_gradients(triton_device):
    x, weight, bias = layer(1, 6, 5, device=triton_device)
    both = []
    for run in (by_triton, dense_layer_by_parts):
        leaves = [part.clone().requires_grad_() for part in (x, weight, bias)]
        y = run(leaves[0].expand(20, 6), *leaves[1:], True)
        both.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
    assert_equal_twins(*both)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_layers_without_rows_inputs_or_outputs_work(shape, triton_device, launched):
    n, inputs, outputs = shape
    x, weight, bias = (torch.ones(size, device=triton_device) for size in ((n, inputs), (outputs, inputs), (outputs,)))
    fast = values_and_gradients(lambda *leaves: by_triton(*leaves, True), x, weight, bias)
    assert not launched
    assert fast[0].shape == (n, outputs)
    assert_equal_twins(fast, values_and_gradients(lambda *leaves: dense_layer_by_parts(*leaves, True), x, weight, bias))


def test_no_rows_at_all_may_be_gathered(triton_device):
    table, weight, bias, rows = table_and_rows(5, 1, 3, 4, triton_device)
    y, *gradients = values_and_gradients(lambda w, b: by_triton(table, w, b, True, rows[:0]), weight, bias)
    assert y.shape == (0, 4)
    assert not any(gradient.any() for gradient in gradients)


def test_what_needs_no_gradient_is_not_computed(triton_device, launched):
    x, weight, bias = layer(5, 3, 4, device=triton_device)
    by_triton(x, weight.clone().requires_grad_(), bias, True).sum().backward()
    assert launched == ["_dense_layer_forward", "_dense_layer_into_parameters"]
    launched.clear()
    by_triton(x.clone().requires_grad_(), weight, bias, True).sum().backward()
    assert launched == ["_dense_layer_forward", "_dense_layer_into_input"]


def test_large_numbers_stay_large_and_small_ones_stop_at_minus_one(triton_device):
    x = torch.tensor([[1e4], [-1e4], [0.0], [float("nan")]], device=triton_device, requires_grad=True)
    y = by_triton(x, torch.ones(1, 1, device=triton_device), torch.zeros(1, device=triton_device), True)
    torch.testing.assert_close(y[:, 0].tolist(), [1e4, -1.0, 0.0, float("nan")], equal_nan=True)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope[:, 0].tolist(), [1.0, 0.0, 1.0, float("nan")], equal_nan=True)


def test_the_same_layer_twice_is_the_same_to_the_bit(triton_device):
    inputs = layer(300, 20, 33, device=triton_device)
    first, second = (values_and_gradients(lambda *x: by_triton(*x, True), *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_was_made_may_not_be_changed_before_the_way_back(triton_device):
    x, weight, bias = layer(5, 3, 4, device=triton_device)
    y = by_triton(x, weight.requires_grad_(), bias, True)
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
        fast = values_and_gradients(lambda *x: dense_layer(*x, True), *inputs)
    readable = values_and_gradients(lambda *x: dense_layer_by_parts(*x, True), *(x.double() for x in inputs))
    assert_equal_twins(fast, readable, tolerance=4e-3)


@on_a_gpu
@pytest.mark.parametrize("shape", [(9, 20, 19, 33), (5000, 6144, 192, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_tensor_cores_take_gathered_rows(shape, dtype):
    table, weight, bias, rows = table_and_rows(*shape, "cuda", dtype)
    with float32_products("high"):
        fast = values_and_gradients(lambda w, b: dense_layer(table, w, b, True, rows), weight, bias)
    exact = table if dtype == torch.uint8 else table.double()
    readable = values_and_gradients(
        lambda w, b: dense_layer_by_parts(exact, w, b, True, rows), weight.double(), bias.double()
    )
    assert_equal_twins(fast, readable, tolerance=2e-2 if dtype == torch.bfloat16 else 4e-3)


@on_a_gpu  # the interpreter multiplies the bits of a bfloat16
@elus
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES)
def test_bfloat16_goes_in_and_out_and_parameters_stay_float32(shape, elu):
    x, weight, bias = layer(*shape, device="cuda")
    x = x.bfloat16()
    fast = values_and_gradients(lambda *leaves: dense_layer(*leaves, elu), x, weight, bias)
    assert [part.dtype for part in fast] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    exact = [part.double() for part in (x, weight, bias)]
    assert_equal_twins(fast, values_and_gradients(lambda *leaves: dense_layer_by_parts(*leaves, elu), *exact), 2e-2)


def test_a_gpu_can_keep_the_layer_in_a_graph(in_a_graph):
    leaves = [x.requires_grad_() for x in layer(300, 20, 33, device="cuda")]

    def update():
        y = dense_layer(*leaves, True)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
