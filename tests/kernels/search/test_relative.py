"""How places that were found lie from who asked: the fast twin equals the readable one."""

import math
from functools import partial

import pytest
import torch
from torch.func import vmap
from twins import assert_close_twins, strided

from gtmsm.kernels.choice import forced
from gtmsm.kernels.search.relative import relative, relative_by_parts

# batch, n, m, K; K = n too, and more entries than a program looks at together
SHAPES = [(1, 1, 1, 1), (2, 7, 3, 5), (3, 5, 33, 4), (1, 9, 2, 9), (2, 3, 5, 6), (1, 300, 2, 300), (1, 4, 130, 1)]
LONG_SHAPES = [(64, 256, 32, 5), (32, 150, 32, 4), (64, 256, 32, 256)]  # too long to interpret
EMPTY_SHAPES = [(0, 4, 3, 2), (2, 4, 0, 2), (2, 4, 3, 0), (2, 0, 0, 5)]


def found(batch, n, m, K, dtype=torch.float64, device="cpu"):
    """Any entry may be found any number of times."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * m + 10 * K)
    place, query = (at(torch.randn(batch, size, 3, dtype=torch.float64, generator=generator)) for size in (n, m))
    index = torch.randint(max(n, 1), (batch, m, K), generator=generator)
    return place.to(device, dtype), query.to(device, dtype), index.to(device)


def at(pose):
    x, y, heading = (3 * pose).unbind(-1)
    return torch.stack([x, y, heading.cos(), heading.sin()], -1)


def value_and_gradients(function, place, query, index, dtype=None):
    """Of a sum in which no two numbers count alike."""
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (place, query)]
    seen = function(*leaves, index)
    uneven = torch.linspace(-1, 2, seen.numel(), dtype=seen.dtype, device=seen.device).view_as(seen)
    return [seen.detach(), *torch.autograd.grad((uneven * seen).sum(), leaves)]


assert_equal_twins = partial(assert_close_twins, ("seen", "place", "query"))


def test_who_looks_north_has_the_east_to_the_right():
    north, east = at(torch.tensor([[[0.0, 0.0, math.pi / 6]]])), at(torch.tensor([[[1.0, 0.0, 0.0]]]))
    seen = relative(east, north, torch.tensor([[[0]]]))
    torch.testing.assert_close(seen[0, 0, 0], torch.tensor([0.0, -3.0, 0.0, -1.0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 4, 3, 5), (1, 5, 2, 5)])
def test_gradients_of_the_readable_twin_are_those_of_its_differences(shape):
    place, query, index = found(*shape)
    leaves = [x.requires_grad_() for x in (place, query)]
    assert torch.autograd.gradcheck(lambda *x: relative_by_parts(*x, index), leaves)


@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_twin_equals_the_readable_one(shape, triton_device):
    inputs = found(*shape, torch.float32, triton_device)
    with forced("triton"):
        fast = value_and_gradients(relative, *inputs)
    readable = value_and_gradients(relative_by_parts, *inputs, torch.float64)
    assert_equal_twins(fast, readable, rtol=2e-5, atol=5e-4)  # sums of up to hundreds of numbers


def test_places_far_from_the_origin_lie_from_each_other_as_near_it(triton_device):
    place, query, index = found(2, 7, 3, 5, torch.float32, triton_device)
    away = torch.tensor([1e4, -1e4, 0.0, 0.0], device=triton_device)
    place, query = place + away, query + away  # rounded here, for all twins alike
    query[0, 0, :2] = place[0, index[0, 0, 0], :2]
    with forced("triton"):
        fast = value_and_gradients(relative, place, query, index)
    assert_equal_twins(fast, value_and_gradients(relative_by_parts, place, query, index, torch.float64), atol=1e-4)
    assert not fast[0][0, 0, 0, :2].any()


def test_an_entry_found_by_everyone_learns_from_everyone(triton_device):
    place, query, index = found(2, 4, 33, 5, torch.float32, triton_device)
    index = torch.full_like(index, 2)
    with forced("triton"):
        fast = value_and_gradients(relative, place, query, index)
    readable = value_and_gradients(relative_by_parts, place, query, index, torch.float64)
    assert_equal_twins(fast, readable, atol=1e-4)
    assert not fast[1][:, [0, 1, 3]].any()


def test_parts_of_a_walk_need_no_copy(triton_device):
    place, query, index = found(2, 4, 3, 5, torch.float32, triton_device)
    walk = torch.cat([place, query], 1)
    every = torch.arange(4, device=triton_device).expand(2, 3, 4)  # as who wants all of a memory asks for it
    for which in (index, every, strided(index)):
        results = []
        for function, dtype in ((relative, torch.float32), (relative_by_parts, torch.float64)):
            leaf = walk.to(dtype).requires_grad_()
            with forced("triton"):
                seen = function(leaf[:, :4], leaf[:, 4:], which)
            results.append([seen.detach(), *torch.autograd.grad(seen.square().sum(), [leaf])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-3)


def test_places_may_be_expanded_and_so_may_what_is_asked_of_them(triton_device):
    place, query, index = found(3, 4, 3, 5, torch.float32, triton_device)
    for read in (
        lambda seen: seen.sum(),
        lambda seen: seen[..., 1:3].sum(),
        lambda seen: (seen.transpose(1, 2) @ seen.new_ones(4, 2)).sum(),
    ):
        results = []
        for function, dtype in ((relative, torch.float32), (relative_by_parts, torch.float64)):
            leaves = [x.to(dtype).requires_grad_() for x in (place[:1], query[:, :1].transpose(0, 1))]
            with forced("triton"):
                seen = function(leaves[0].expand(3, -1, -1), leaves[1].transpose(0, 1).expand(-1, 3, -1), index)
            results.append([seen.detach(), *torch.autograd.grad(read(seen), leaves)])
        assert_equal_twins(*results, atol=1e-4)


@pytest.mark.parametrize("learns", [(True, False), (False, True)])
def test_what_needs_no_gradient_gets_none(learns, triton_device):
    place, query, index = found(2, 7, 3, 5, torch.float32, triton_device)
    expected = value_and_gradients(relative_by_parts, place, query, index)[1:]
    leaves = [x.requires_grad_(needed) for x, needed in zip((place, query), learns, strict=True)]
    with forced("triton"):
        seen = relative(*leaves, index)
    (torch.linspace(-1, 2, seen.numel(), device=triton_device).view_as(seen) * seen).sum().backward()
    for leaf, needed, gradient in zip(leaves, learns, expected, strict=True):
        if needed:
            torch.testing.assert_close(leaf.grad, gradient, rtol=1e-5, atol=1e-4)
        else:
            assert leaf.grad is None


def test_inputs_are_left_alone_and_answers_belong_to_the_caller(triton_device):
    place, query, index = found(2, 7, 3, 5, torch.float32, triton_device)
    leaves = [x.clone().requires_grad_() for x in (place, query)]
    with forced("triton"):
        seen = relative(*leaves, index)
    gradients = torch.autograd.grad(seen.mul_(3.0).sum(), leaves)
    readable = torch.autograd.grad(3 * relative_by_parts(*leaves, index).sum(), leaves)
    assert all(torch.equal(leaf, x) for leaf, x in zip(leaves, (place, query), strict=True))
    for one, other in zip(gradients, readable, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_several_queries_are_tried_at_once_as_one_by_one(triton_device):
    place, query, index = found(2, 7, 3, 5, torch.float32, triton_device)
    candidates = torch.stack([query, -query, 2 * query])
    with forced("triton"):
        one_by_one = torch.stack([relative(place, each, index) for each in candidates])
        at_once = vmap(lambda each: relative(place, each, index))(candidates)
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-5)


def test_places_of_another_precision_are_left_to_the_readable_twin(triton_device):
    place, query, index = found(2, 7, 3, 5, torch.float32, triton_device)
    with forced("triton"):
        assert relative(place.double(), query, index).dtype == torch.float64
        assert relative(place.bfloat16(), query, index).dtype == torch.float32


def test_a_gpu_can_keep_what_is_seen_in_a_graph(in_a_graph):
    *places, index = found(64, 256, 32, 5, torch.float32, "cuda")
    leaves = [x.requires_grad_() for x in places]

    def update():
        seen = relative(*leaves, index)
        return [seen, *torch.autograd.grad(seen.square().mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert_equal_twins(replayed, warm)
