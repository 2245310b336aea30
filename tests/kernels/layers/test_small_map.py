"""A small matrix applied to many rows: its fast twins equal the readable one, in full precision."""

from functools import partial

import pytest
import torch
from torch.func import functional_call, jacrev, vmap
from twins import assert_close_twins

from gtmsm.kernels.choice import forced
from gtmsm.kernels.layers.small_map import small_map, small_map_by_parts

# leading axes of x, A, D
SHAPES = [((), 5, 3), ((1,), 1, 1), ((7,), 5, 1), ((130,), 3, 2), ((4, 65), 5, 3), ((2, 3, 5), 32, 8), ((300,), 6, 2)]
LONG_SHAPES = [((64, 288), 5, 2), ((128, 288), 5, 3), ((64, 576), 32, 8)]  # too long to interpret
EMPTY_SHAPES = [((0,), 5, 3), ((4, 0), 5, 2), ((3,), 5, 0), ((3,), 0, 2)]
fast_twins = pytest.mark.parametrize("twin", ["cpu", "triton"])


@pytest.fixture
def device(twin, request):
    return request.getfixturevalue("triton_device") if twin == "triton" else "cpu"


def drawn(leading, A, D, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(100 * A + D)
    shapes = (*leading, A), (D, A)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(device, dtype) for shape in shapes]


def value_and_gradients(function, x, M, dtype=None):
    """Of a sum in which no two outputs count alike."""
    leaves = [part.detach().to(dtype or part.dtype).requires_grad_() for part in (x, M)]
    y = function(*leaves)
    uneven = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    return [y.detach(), *torch.autograd.grad((uneven * y).sum(), leaves)]


assert_equal_twins = partial(assert_close_twins, ("y", "x", "M"))


def test_an_action_does_what_its_column_says():
    M = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert torch.equal(small_map(torch.eye(3), M), M.T)


def test_gradients_of_the_readable_twin_are_those_of_its_differences():
    for shape in (((), 5, 3), ((1,), 1, 1), ((2, 3), 5, 2)):
        assert torch.autograd.gradcheck(small_map_by_parts, [part.requires_grad_() for part in drawn(*shape)])


@fast_twins
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_fast_twins_equal_the_readable_one(shape, twin, device):
    x, M = drawn(*shape, torch.float32, device)
    with forced(twin):
        fast = value_and_gradients(small_map, x, M)
    # a gradient of M is a sum over all rows: so many rounded numbers of order one
    assert_equal_twins(
        fast, value_and_gradients(small_map_by_parts, x, M, torch.float64), atol=1e-5 + 1e-7 * x[..., :1].numel()
    )


@fast_twins
def test_no_digit_is_lost_where_fast_products_may_lose_some(twin, device):
    x, M = drawn((40,), 5, 3, torch.float32, device)
    expected = value_and_gradients(small_map_by_parts, x, M, torch.float64)

    def mixed(x, M):
        with torch.autocast(device, torch.bfloat16):
            return small_map(x, M)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with forced(twin):
            assert_equal_twins(value_and_gradients(mixed, x, M), expected, rtol=1e-6, atol=2e-6)
    finally:
        torch.set_float32_matmul_precision(before)


@fast_twins
def test_large_inputs_are_mapped_as_exactly_as_small_ones(twin, device):
    x, M = drawn((9,), 5, 2, torch.float32, device)
    with forced(twin):
        fast = value_and_gradients(small_map, 1e4 * x, M)
    assert_equal_twins(fast, value_and_gradients(small_map_by_parts, 1e4 * x, M, torch.float64), rtol=1e-5, atol=1e-2)


@fast_twins
def test_inputs_need_not_be_contiguous(twin, device):
    x, M = drawn((3, 4), 5, 3, torch.float32, device)
    awkward = {
        "a part of a clip": torch.cat([x, x], 1)[:, :4],
        "every second number": torch.stack([x, x + 1], -1)[..., 0],
        "axes stored backwards": x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        "one for the whole batch": x[:1].expand(3, -1, -1),
        "one for all times": x[:, :1].expand(-1, 4, -1),
        "four axes": x[:, None, :, None].expand(-1, 2, -1, 3, -1),
    }
    turned = M.T.contiguous().T
    for name, part in awkward.items():
        assert not part.is_contiguous(), name
        for matrix in (M, turned, M[::2]):
            with forced(twin):
                fast = value_and_gradients(small_map, part, matrix)
            assert_equal_twins(fast, value_and_gradients(small_map_by_parts, part, matrix, torch.float64))


@fast_twins
def test_what_is_asked_of_outputs_need_not_be_contiguous(twin, device):
    x, M = drawn((3, 4), 5, 3, torch.float32, device)
    leaves = [part.requires_grad_() for part in (x, M)]
    with forced(twin):
        y = small_map(*leaves)
    for read in (
        lambda y: y.sum(),
        lambda y: y[:, 1:, 2].sum(),
        lambda y: (y.transpose(0, 1) @ y.new_ones(3, 2)).sum(),
    ):
        fast = torch.autograd.grad(read(y), leaves, retain_graph=True)
        readable = torch.autograd.grad(read(small_map_by_parts(*leaves)), leaves)
        assert_equal_twins([y, *fast], [y, *readable])


@fast_twins
@pytest.mark.parametrize("learns", [(True, False), (False, True)])
def test_what_needs_no_gradient_gets_none(learns, twin, device):
    x, M = drawn((7,), 5, 3, torch.float32, device)
    expected = value_and_gradients(small_map_by_parts, x, M)[1:]
    leaves = [part.requires_grad_(needed) for part, needed in zip((x, M), learns, strict=True)]
    with forced(twin):
        y = small_map(*leaves)
    (torch.linspace(-1, 2, y.numel(), device=device).view_as(y) * y).sum().backward()
    for leaf, needed, gradient in zip(leaves, learns, expected, strict=True):
        if needed:
            torch.testing.assert_close(leaf.grad, gradient, rtol=1e-5, atol=1e-5)
        else:
            assert leaf.grad is None


@fast_twins
def test_candidates_of_a_matrix_are_tried_at_once_as_one_by_one(twin, device):
    x, _ = drawn((3, 4), 5, 3, torch.float32, device)
    candidates = torch.stack([drawn((), 5, 3 + i, torch.float32, device)[1][:3] for i in range(6)])
    module = torch.nn.Module()
    module.M = torch.nn.Parameter(candidates[0])
    module.forward = lambda x: small_map(x, module.M)
    with forced(twin):
        one_by_one = torch.stack([small_map(x, M) for M in candidates])
        with torch.no_grad():
            at_once = vmap(lambda M: functional_call(module, {"M": M}, (x,)))(candidates)
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-5)


@fast_twins
def test_a_step_can_be_linearised_along_a_path(twin, device):
    x, M = drawn((2, 3), 5, 3, torch.float32, device)
    s = torch.randn(2, 3, 3, device=device)

    def step(s, a):
        return s + s.sin() * small_map(a, M)

    with forced(twin):
        along = vmap(vmap(jacrev(step)))(s, x)
        of_action = vmap(vmap(jacrev(small_map, argnums=0), (0, None)), (0, None))(x, M)
        of_matrix = jacrev(small_map, argnums=1)(x, M)
    expected = torch.diag_embed(1 + s.cos() * small_map_by_parts(x, M))
    torch.testing.assert_close(along, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_action, M.expand(2, 3, -1, -1))
    torch.testing.assert_close(of_matrix, torch.einsum("de,bta->btdea", torch.eye(3, device=device), x))


@fast_twins
@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_other_precisions_are_as_good_as_the_better_of_both(precision, twin, device):
    x, M = drawn((6,), 5, 2, torch.float32, device)
    x = x.to(precision)
    with forced(twin):
        y = small_map(x, M)
        assert small_map(x, M.to(precision)).dtype == precision
    assert y.dtype == torch.promote_types(precision, torch.float32)
    torch.testing.assert_close(y, small_map_by_parts(x, M))


def test_a_matrix_too_large_to_unroll_is_left_to_the_readable_twin(triton_device):
    for A, D in ((33, 2), (5, 9)):
        x, M = drawn((4,), A, D, torch.float32, triton_device)
        with forced("triton"):
            assert torch.equal(small_map(x, M), small_map_by_parts(x, M))


def test_the_same_gradients_come_out_to_the_bit(triton_device):
    x, M = drawn((600,), 5, 3, torch.float32, triton_device)
    with forced("triton"):
        once, again = (value_and_gradients(small_map, x, M) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


def test_a_gpu_can_keep_the_map_in_a_graph(in_a_graph):
    leaves = [part.requires_grad_() for part in drawn((64, 288), 5, 3, torch.float32, "cuda")]

    def update():
        y = small_map(*leaves)
        return [y, *torch.autograd.grad(y.square().mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
