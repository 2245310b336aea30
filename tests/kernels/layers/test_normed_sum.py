"""A shortcut and a layer norm in one pass: the fast implementation equals the readable function."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins

from gtmsm.kernels.layers.normed_sum import normed_sum
from gtmsm.kernels.operator import forced

EPS = 1e-5
SHAPES = [(1, 2), (3, 5), (7, 64), (2, 3, 33), (1, 1, 1, 8), (300, 24), (3, 1000), (2, 1024), (9,)]
LARGE_SHAPES = [(336, 64, 256), (54_272, 256), (10_001, 100), (5_000, 1024), (20_000, 12)]
ON_A_GPU = torch.cuda.is_available()
NAMES = ("x", "r", "bias", "weight", "shift")
LEFT_OUT = [(), ("bias",), ("weight", "shift"), ("r", "bias"), NAMES[1:]]


def seam(*shape, dtype=torch.float32, device="cpu", without=(), size=2.0):
    """x, r, bias, weight and shift, some of them left out."""
    generator = torch.Generator().manual_seed(sum(shape))

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(device)

    x, r = (size * draw(*shape)).to(dtype), (size * draw(*shape)).to(dtype)
    parts = x, r, draw(shape[-1]), 1 + 0.3 * draw(shape[-1]), draw(shape[-1])
    return [None if name in without else part for name, part in zip(NAMES, parts, strict=True)]


def uneven(y, start=-1):
    """No two numbers count alike."""
    return torch.linspace(start, 2, y.numel(), dtype=torch.float64, device=y.device).view(y.shape).to(y.dtype)


def values_and_gradients(run, inputs, arrange=lambda g: g, looked_at=(0, 1), frozen=()):
    """What was made, and the gradients of an uneven sum of those results that are looked at."""
    leaves = [None if part is None else part.detach().requires_grad_() for part in inputs]
    for name in frozen:
        leaves[NAMES.index(name)].requires_grad_(False)
    with forced("cuda"):
        made = run(*leaves, EPS)
        seen = [made[index] for index in looked_at]
        weights = [arrange(uneven(part.detach(), -1 + 0.5 * index)) for index, part in enumerate(seen)]
        learning = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = torch.autograd.grad(seen, learning, weights, allow_unused=True, materialize_grads=True)
    return [*(part.detach() for part in made), *found]


def by_kernel(*inputs):
    with forced("cuda"):
        return normed_sum(*inputs)


def doubled(parts):
    return [None if part is None else part.double() for part in parts]


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.layers import normed_sum_triton

    return note_launches(normed_sum_triton, "_normed_sum_forward", "_normed_sum_backward")


def test_it_is_a_sum_and_its_layer_norm():
    x, r, bias, weight, shift = seam(4, 6)
    y, n = normed_sum(x, r, bias, weight, shift, EPS)
    assert torch.equal(y, x + r + bias)
    assert torch.equal(n, F.layer_norm(y, (6,), weight, shift, EPS))
    assert torch.equal(normed_sum(x, r, None, None, None, EPS)[1], F.layer_norm(x + r, (6,), eps=EPS))


def test_without_anything_to_add_the_sum_is_the_input(triton_device):
    x, _, _, weight, shift = seam(4, 6, device=triton_device)
    for run in (normed_sum.readable, by_kernel):
        y, n = run(x, None, None, weight, shift, EPS)
        assert torch.equal(y, x)
        torch.testing.assert_close(n, F.layer_norm(x, (6,), weight, shift, EPS))


def test_what_is_normalised_is_the_rounded_sum():
    x, r, bias, weight, shift = seam(4, 6, dtype=torch.bfloat16)
    y, n = normed_sum(x, r, bias, weight, shift, EPS)
    assert torch.equal(y, (x.float() + r.float() + bias).bfloat16())
    assert torch.equal(n, F.layer_norm(y.float(), (6,), weight, shift, EPS).bfloat16())


@pytest.mark.parametrize("without", LEFT_OUT)
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 5)])
def test_gradients_agree_with_finite_differences(shape, without):
    leaves = [None if part is None else part.requires_grad_() for part in doubled(seam(*shape, without=without))]
    assert torch.autograd.gradcheck(normed_sum.readable, (*leaves, EPS))


@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_equals_the_readable_function(shape, dtype, triton_device, launched):
    inputs = seam(*shape, dtype=dtype, device=triton_device)
    fast = values_and_gradients(by_kernel, inputs)
    assert launched == ["_normed_sum_forward", "_normed_sum_backward"]
    assert [part.dtype for part in fast] == [dtype] * 4 + [torch.float32] * 3
    # bfloat16 rounds the sum before it is normalised: of rows of two numbers, which may lie close, nothing is left
    if dtype == torch.float32 or shape[-1] > 2:
        readable = values_and_gradients(normed_sum.readable, doubled(inputs))
        assert_equal_twins(fast, readable, tolerance=3e-5 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize("without", LEFT_OUT)
@pytest.mark.parametrize("looked_at", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_may_be_left_out_and_results_left_alone(without, looked_at, dtype, triton_device, launched):
    inputs = seam(5, 12, dtype=dtype, device=triton_device, without=without)
    fast = values_and_gradients(by_kernel, inputs, looked_at=looked_at)
    assert launched == ["_normed_sum_forward", "_normed_sum_backward"]
    readable = values_and_gradients(normed_sum.readable, doubled(inputs), looked_at=looked_at)
    assert_equal_twins(fast, readable, tolerance=1e-5 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize("frozen", [some for count in range(1, 5) for some in itertools.combinations(NAMES, count)])
def test_what_does_not_learn_has_no_gradient(frozen, triton_device):
    inputs = seam(5, 12, device=triton_device)
    looked_at = (0, 1) if {"x", "r", "bias"} - {*frozen} else (1,)
    fast = values_and_gradients(by_kernel, inputs, looked_at=looked_at, frozen=frozen)
    readable = values_and_gradients(normed_sum.readable, doubled(inputs), looked_at=looked_at, frozen=frozen)
    assert_equal_twins(fast, readable)


@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_large_and_small_numbers_are_normalised_alike(size, triton_device):
    inputs = seam(7, 64, device=triton_device)
    inputs[0] = inputs[0] + size  # far away from 0, where a mean of squares less a square of means is nothing but noise
    fast = values_and_gradients(by_kernel, inputs)
    assert_equal_twins(fast, values_and_gradients(normed_sum.readable, doubled(inputs)), tolerance=2e-3)


def test_a_row_of_equal_numbers_is_normalised_to_nothing(triton_device):
    x = torch.full((3, 5), 7.0, device=triton_device, requires_grad=True)
    _, n = by_kernel(x, None, None, None, None, EPS)
    assert torch.equal(n, torch.zeros_like(n))
    with forced("cuda"):
        (slope,) = torch.autograd.grad(n[:, 0].sum(), x)
    assert slope.isfinite().all()


def test_both_sides_of_a_sum_may_be_used_elsewhere(triton_device):
    """Both get the same gradient, in one tensor: adding to one of them must not change the other."""

    def gradients(run, inputs):
        x, r, bias, weight, shift = (part.detach().requires_grad_() for part in inputs)
        left, right = x * 2, r * 3
        y, n = run(left, right, bias, weight, shift, EPS)
        loss = (y * uneven(y)).sum() + (n * uneven(n, 0)).sum()
        loss = loss + left.square().sum() + right.pow(3).sum() + x.pow(3).sum() + r.square().sum()
        loss.backward()
        y, n = run(x, r, None, weight, shift, EPS)
        (y.sum() + n.square().sum() + x.sum() + r.square().sum()).backward()
        y, _ = run(x, r, None, weight, shift, EPS)
        (y.sum() + x.sum() + r.square().sum()).backward()
        return x.grad, r.grad, bias.grad, weight.grad, shift.grad

    inputs = seam(4, 9, device=triton_device)
    with forced("cuda"):
        assert_equal_twins(gradients(normed_sum, inputs), gradients(normed_sum.readable, doubled(inputs)))


def test_sums_come_one_after_another(triton_device):
    def chain(run):
        def walk(x, r, bias, weight, shift, eps):
            x, n = run(x, None, None, weight, shift, eps)
            for _ in range(3):
                x, n = run(x, r * n, bias, weight, shift, eps)
            return x, n

        return walk

    inputs = seam(4, 9, device=triton_device)
    fast = values_and_gradients(chain(by_kernel), inputs)
    assert_equal_twins(fast, values_and_gradients(chain(normed_sum.readable), doubled(inputs)), tolerance=3e-5)


@pytest.mark.parametrize("arrange", [lambda g: g.mT.contiguous().mT, lambda g: g[:1].expand_as(g)])
def test_gradients_may_come_in_any_layout(arrange, triton_device):
    inputs = seam(2, 5, 7, device=triton_device)
    fast = values_and_gradients(by_kernel, inputs, arrange)
    assert_equal_twins(fast, values_and_gradients(normed_sum.readable, doubled(inputs), arrange))


def test_parameters_may_be_strided(triton_device):
    x, r, *parameters = seam(5, 7, device=triton_device)
    strided = [torch.stack([part, part], 1)[:, 0] for part in parameters]
    made, wanted = by_kernel(x, r, *strided, EPS), by_kernel(x, r, *parameters, EPS)
    assert all(torch.equal(one, other) for one, other in zip(made, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(dtype, triton_device):
    inputs = seam(5, 12, dtype=dtype, device=triton_device)
    for run in (normed_sum.readable, by_kernel):
        plain = values_and_gradients(run, inputs)
        with torch.autocast(triton_device, torch.bfloat16):
            cast = values_and_gradients(run, inputs)
        assert all(torch.equal(one, other) for one, other in zip(cast, plain, strict=True))


OTHERWISE = {
    "strided": lambda x, r, *rest: (torch.stack([x, x], -1)[..., 0], r, *rest),
    "r expanded": lambda x, r, *rest: (x, r[:1].expand_as(r), *rest),
    "double": lambda *parts: doubled(parts),
    "r more precise": lambda x, r, *rest: (x.bfloat16(), r, *rest),
    "half parameters": lambda x, r, *rest: (x, r, *(part.bfloat16() for part in rest)),
    "no rows": lambda x, r, *rest: (x[:0], r[:0], *rest),
    "bias but no r": lambda x, r, *rest: (x, None, *rest),
    "weight but no shift": lambda *parts: (*parts[:-1], None),
}


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_what_the_kernel_cannot_do_is_left_to_the_readable_function(otherwise, launched):
    inputs = OTHERWISE[otherwise](*seam(5, 7))
    results, wanted = (values_and_gradients(run, inputs) for run in (by_kernel, normed_sum.readable))
    assert not launched
    assert results[0].dtype == results[1].dtype == inputs[0].dtype
    torch.testing.assert_close(results, wanted)


def test_rows_too_wide_are_left_to_the_readable_function(launched):
    values_and_gradients(by_kernel, seam(2, 1025))
    assert not launched


def test_few_programs_share_out_many_rows(triton_device, monkeypatch):
    from gtmsm.kernels.layers import normed_sum_triton

    monkeypatch.setattr(normed_sum_triton, "PROGRAMS", 2)
    monkeypatch.setattr(normed_sum_triton, "TILE_BACK", 64)
    inputs = seam(37, 12, device=triton_device)
    assert normed_sum_triton.tile_for(12, 64) == (4, 16)  # ten tiles, the last with one row
    fast = values_and_gradients(by_kernel, inputs)
    assert_equal_twins(fast, values_and_gradients(normed_sum.readable, doubled(inputs)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_same_twice_is_the_same_to_the_bit(triton_device):
    inputs = seam(300, 24, device=triton_device)
    first, second = (values_and_gradients(by_kernel, inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_gpu_can_keep_it_in_a_graph(in_a_graph):
    leaves = [part.requires_grad_() for part in seam(64, 64, 256, dtype=torch.bfloat16, device="cuda")]

    def update():
        y, n = normed_sum(*leaves, EPS)
        return [y, n, *torch.autograd.grad((y * n).square().sum(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
