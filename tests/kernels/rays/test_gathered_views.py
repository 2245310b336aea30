"""Retrieved views, shifted and normalised: the fast implementation equals the readable function."""

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins, strided

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.rays.gathered_views import gathered_views

ON_A_GPU = torch.cuda.is_available()
SHAPES = [  # rows, grid rows, columns, width, n, K
    (1, 1, 1, 1, 1, 1),
    (3, 2, 3, 5, 2, 2),
    (4, 3, 2, 16, 1, 4),
    (2, 2, 2, 8, 5, 3),
    (9, 1, 4, 33, 2, 2),
    (5, 5, 1, 7, 3, 1),
]
LARGE_SHAPES = [  # too large to interpret
    (512, 8, 8, 256, 336, 10),
    (700, 8, 8, 256, 31, 9),
    (50, 7, 5, 200, 40, 6),
    (3, 4, 4, 1024, 100, 5),
]


def views(rows, high, columns, width, n, k, dtype=torch.float32, device="cpu", far=0.0):
    """Views, which of them are used, some of them unused, and what is added to their columns."""
    generator = torch.Generator().manual_seed(rows + n + width)
    digest = torch.randn(rows, high * columns, width, generator=generator) + far
    row = torch.randint(0, rows, (n, k), generator=generator)
    column = torch.randn(n, k, columns, width, generator=generator)
    return digest.to(device, dtype), row.to(device), column.to(device, dtype)


def uneven(y):
    """No two numbers count alike."""
    return torch.sin(torch.arange(y.numel(), dtype=torch.float64, device=y.device)).view(y.shape).to(y.dtype)


def values_and_gradients(run, digest, row, column, arrange=lambda g: g):
    leaves = [part.detach().requires_grad_() for part in (digest, column)]
    with forced("cuda"):
        y = run(leaves[0], row, leaves[1])
        return [y.detach(), *torch.autograd.grad(y, leaves, arrange(uneven(y.detach())))]


def by_kernel(digest, row, column):
    with forced("cuda"):
        return gathered_views(digest, row, column)


def readable_in_double(digest, row, column, arrange=lambda g: g):
    return values_and_gradients(gathered_views.readable, digest.double(), row, column.double(), arrange)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.rays import gathered_views_triton

    return note_launches(gathered_views_triton, "_gathered_views_forward", "_gathered_views_backward")


def test_every_token_of_a_column_is_shifted_alike_and_then_normalised():
    digest, row, column = views(4, 2, 3, 5, 2, 3)
    memory = gathered_views(digest, row, column).view(2, 3, 2, 3, 5)
    for asker in range(2):
        for use in range(3):
            view = digest[row[asker, use]].view(2, 3, 5)
            wanted = F.layer_norm(view + column[asker, use], (5,))
            torch.testing.assert_close(memory[asker, use], wanted)


@pytest.mark.parametrize("shape", [(1, 1, 1, 3, 1, 1), (3, 2, 2, 3, 2, 2)])
def test_gradients_agree_with_finite_differences(shape):
    digest, row, column = views(*shape, dtype=torch.float64)
    leaves = digest.requires_grad_(), column.requires_grad_()
    assert torch.autograd.gradcheck(lambda d, c: gathered_views.readable(d, row, c), leaves)


@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_equals_the_readable_function(shape, dtype, triton_device, launched):
    inputs = views(*shape, dtype=dtype, device=triton_device)
    fast = values_and_gradients(by_kernel, *inputs)
    assert launched == ["_gathered_views_forward", "_gathered_views_backward"]
    assert all(part.dtype == dtype for part in fast)
    assert_equal_twins(fast, readable_in_double(*inputs), tolerance=2e-5 if dtype == torch.float32 else 2e-2)


def test_what_is_made_is_rounded_once(triton_device):
    digest, row, column = views(4, 2, 3, 16, 3, 2, dtype=torch.bfloat16, device=triton_device)
    exact = gathered_views.readable(digest.double(), row, column.double())
    for run in (by_kernel, gathered_views.readable):
        made = run(digest, row, column)
        assert made.dtype == torch.bfloat16
        assert ((made - exact).abs() <= exact.abs() * 2**-7).all()


def test_precisions_may_differ(triton_device, launched):
    digest, row, column = views(4, 2, 3, 16, 3, 2, device=triton_device)
    inputs = digest.bfloat16(), row, column
    fast = values_and_gradients(by_kernel, *inputs)
    assert launched == ["_gathered_views_forward", "_gathered_views_backward"]
    assert [part.dtype for part in fast] == [torch.float32, torch.bfloat16, torch.float32]
    assert [part.dtype for part in values_and_gradients(gathered_views.readable, *inputs)] == [
        part.dtype for part in fast
    ]
    assert_equal_twins(fast, readable_in_double(*inputs), tolerance=1e-2)


def test_unused_views_have_a_gradient_of_zero(triton_device):
    digest, _, column = views(6, 2, 2, 8, 2, 3, device=triton_device)
    row = torch.tensor([[4, 1, 4], [4, 1, 1]], device=triton_device)
    _, ddigest, _ = values_and_gradients(by_kernel, digest, row, column)
    assert [bool(part.any()) for part in ddigest] == [False, True, False, False, True, False]


def test_one_view_may_have_all_the_uses(triton_device):
    digest, row, column = views(3, 2, 2, 8, 5, 3, device=triton_device)
    inputs = digest, torch.full_like(row, 2), column
    assert_equal_twins(values_and_gradients(by_kernel, *inputs), readable_in_double(*inputs))


def test_they_agree_far_from_zero(triton_device):
    inputs = views(4, 2, 3, 16, 3, 2, device=triton_device, far=1e4)
    # as exact as such numbers are in single precision
    assert_equal_twins(values_and_gradients(by_kernel, *inputs), readable_in_double(*inputs), tolerance=2e-3)


def test_tokens_of_nothing_but_one_number_stay_finite(triton_device):
    inputs = [torch.zeros_like(part) for part in views(2, 2, 2, 8, 2, 2, device=triton_device)]
    fast = values_and_gradients(by_kernel, *inputs)
    assert all(part.isfinite().all() for part in fast)
    assert_equal_twins(fast, readable_in_double(*inputs))


def test_inputs_need_not_be_contiguous_and_may_be_expanded(triton_device):
    digest, row, column = views(4, 2, 3, 5, 3, 2, device=triton_device)
    assert not strided(digest).is_contiguous()
    wanted = by_kernel(digest, row, column)
    assert torch.equal(by_kernel(strided(digest), strided(row), strided(column)), wanted)
    assert torch.equal(by_kernel(digest, row.int(), column), wanted)
    inputs = digest[:1].expand(4, -1, -1), row[:, :1].expand(-1, 2), column[:1].expand(3, -1, -1, -1)
    torch.testing.assert_close(by_kernel(*inputs), gathered_views.readable(*inputs))


@pytest.mark.parametrize("arrange", [lambda g: g.mT.contiguous().mT, lambda g: g[:1].expand_as(g)])
def test_gradients_may_come_in_any_layout(arrange, triton_device):
    inputs = views(4, 2, 3, 5, 3, 2, device=triton_device)
    fast = values_and_gradients(by_kernel, *inputs, arrange)
    assert_equal_twins(fast, readable_in_double(*inputs, arrange))


def test_few_numbers_at_once_change_nothing(triton_device, monkeypatch):
    from gtmsm.kernels.rays import gathered_views_triton

    inputs = views(4, 3, 3, 16, 3, 2, device=triton_device)
    whole = values_and_gradients(by_kernel, *inputs)
    monkeypatch.setattr(gathered_views_triton, "TILE", 32)
    for one, other in zip(values_and_gradients(by_kernel, *inputs), whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("rows", "uses"), [(1, 1), (1, 9), (7, 20), (30, 3), (5, 40)])
def test_uses_are_sorted_by_view(rows, uses, triton_device):
    from gtmsm.kernels.rays import gathered_views_triton

    generator = torch.Generator().manual_seed(uses)
    row = torch.randint(0, rows, (1, uses), generator=generator).to(triton_device)
    order, ends = gathered_views_triton.uses_by_view(row, rows)
    assert order.tolist() == sorted(range(uses), key=row[0].tolist().__getitem__)
    assert ends.tolist() == [(row < view).sum().item() for view in range(rows + 1)]


UNUSUAL = {
    "double": lambda d, r, c: (d.double(), r, c.double()),
    "half": lambda d, r, c: (d.half(), r, c.half()),
    "no askers": lambda d, r, c: (d, r[:0], c[:0]),
    "no uses": lambda d, r, c: (d, r[:, :0], c[:, :0]),
    "no tokens": lambda d, r, c: (d[:, :0], r, c),
    "no views": lambda d, r, c: (d[:0], r[:0], c[:0]),
    "too wide": lambda d, r, c: (d.repeat(1, 1, 2000), r, c.repeat(1, 1, 1, 2000)),
    "too tall": lambda d, r, c: (d.repeat(1, 2000, 1), r, c),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_the_kernel_cannot_do_is_left_to_the_readable_function(case, launched):
    inputs = UNUSUAL[case](*views(2, 3, 2, 5, 2, 2))
    results = values_and_gradients(by_kernel, *inputs)
    assert not launched
    n, k = inputs[1].shape
    assert results[0].shape == (n, k * inputs[0].shape[1], inputs[0].shape[2])
    assert results[0].dtype == inputs[0].dtype
    for one, other in zip(results, values_and_gradients(gathered_views.readable, *inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("columns", [0, 4])
def test_columns_that_do_not_divide_a_view_are_refused(columns):
    digest, row, _ = views(2, 3, 2, 5, 2, 2)
    with pytest.raises(InputError, match=f"views of 6 tokens have no {columns} columns; give as many as divide 6"):
        gathered_views(digest, row, torch.zeros(2, 2, columns, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_same_twice_is_the_same_to_the_bit(triton_device):
    inputs = views(4, 2, 3, 16, 6, 4, device=triton_device)
    first, second = (values_and_gradients(by_kernel, *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_was_made_may_not_be_changed_before_the_backward_pass(triton_device):
    digest, row, column = views(2, 2, 2, 5, 2, 2, device=triton_device)
    y = by_kernel(digest.requires_grad_(), row, column)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_gpu_can_keep_it_in_a_graph(in_a_graph):
    digest, row, column = views(50, 8, 8, 256, 40, 10, dtype=torch.bfloat16, device="cuda")
    leaves = digest.requires_grad_(), column.requires_grad_()

    def update():
        y = gathered_views(digest, row, column)
        return [y, *torch.autograd.grad(y, leaves, uneven(y.detach()))]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
