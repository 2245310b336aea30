"""Squared distances of what was found from who asked: the fast twins equal the readable one."""

from functools import partial

import pytest
import torch
from twins import assert_close_twins, strided

from gtmsm.kernels.choice import forced
from gtmsm.kernels.search import separations_cpu
from gtmsm.kernels.search.separations import separations, separations_by_parts

# batch, n, m, K, P; K = n too, and more entries than a program looks at together
SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 7, 3, 5, 2),
    (3, 5, 33, 4, 4),
    (1, 9, 2, 9, 3),
    (2, 3, 5, 6, 8),
    (1, 300, 2, 300, 2),
    (1, 4, 130, 1, 2),
]
LONG_SHAPES = [(64, 256, 32, 5, 2), (32, 150, 32, 4, 4), (64, 256, 32, 256, 2)]  # too long to interpret
EMPTY_SHAPES = [(0, 4, 3, 2, 2), (2, 4, 0, 2, 2), (2, 4, 3, 0, 2), (2, 0, 0, 5, 2)]
fast_twins = pytest.mark.parametrize("twin", ["cpu", "triton"])


@pytest.fixture
def device(twin, request):
    return request.getfixturevalue("triton_device") if twin == "triton" else "cpu"


def found(batch, n, m, K, P, dtype=torch.float64, device="cpu"):
    """Any entry may be found any number of times."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * m + 10 * K + P)
    place, query = (torch.randn(batch, size, P, dtype=torch.float64, generator=generator) for size in (n, m))
    index = torch.randint(max(n, 1), (batch, m, K), generator=generator)
    return place.to(device, dtype), query.to(device, dtype), index.to(device)


def value_and_gradients(function, place, query, index, dtype=None):
    """Of a sum in which no two distances count alike."""
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (place, query)]
    distance2 = function(*leaves, index)
    uneven = torch.linspace(-1, 2, distance2.numel(), dtype=distance2.dtype, device=distance2.device)
    return [distance2.detach(), *torch.autograd.grad((uneven.view_as(distance2) * distance2).sum(), leaves)]


assert_equal_twins = partial(assert_close_twins, ("distance2", "place", "query"))


def test_three_and_four_make_twentyfive():
    place = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    distance2 = separations(place, torch.zeros(1, 1, 2), torch.tensor([[[1, 0, 1]]]))
    assert distance2.tolist() == [[[25.0, 0.0, 25.0]]]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 4, 3, 5, 2), (1, 5, 2, 3, 4)])
def test_gradients_are_those_of_differences(shape):
    place, query, index = found(*shape)
    leaves = [x.requires_grad_() for x in (place, query)]
    assert torch.autograd.gradcheck(lambda *x: separations_by_parts(*x, index), leaves)
    with forced("cpu"):
        assert torch.autograd.gradcheck(lambda *x: separations(*x, index), leaves)


@fast_twins
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_fast_twins_equal_the_readable_one(shape, twin, device):
    inputs = found(*shape, torch.float32, device)
    with forced(twin):
        fast = value_and_gradients(separations, *inputs)
    readable = value_and_gradients(separations_by_parts, *inputs, torch.float64)
    assert_equal_twins(fast, readable, rtol=2e-5, atol=1e-4)


@fast_twins
def test_places_far_from_the_origin_are_as_far_apart_as_near_it(twin, device):
    place, query, index = found(2, 7, 3, 5, 2, torch.float32, device)
    place, query = place + 1e4, query + 1e4  # rounded here, for all twins alike
    query[0, 0] = place[0, index[0, 0, 0]]
    with forced(twin):
        fast = value_and_gradients(separations, place, query, index)
    assert_equal_twins(fast, value_and_gradients(separations_by_parts, place, query, index, torch.float64))
    assert fast[0][0, 0, 0] == 0


@fast_twins
def test_an_entry_found_by_everyone_learns_from_everyone(twin, device):
    place, query, index = found(2, 4, 33, 5, 2, torch.float32, device)
    index = torch.full_like(index, 2)
    with forced(twin):
        fast = value_and_gradients(separations, place, query, index)
    readable = value_and_gradients(separations_by_parts, place, query, index, torch.float64)
    assert_equal_twins(fast, readable, atol=1e-4)
    assert not fast[1][:, [0, 1, 3]].any()


@fast_twins
def test_parts_of_a_walk_need_no_copy(twin, device):
    place, query, index = found(2, 4, 3, 5, 2, torch.float32, device)
    walk = torch.cat([place, query], 1)
    every = torch.arange(4, device=device).expand(2, 3, 4)  # all of memory, as who wants all of it asks for it
    for which in (index, every, strided(index)):
        results = []
        for function, dtype in ((separations, torch.float32), (separations_by_parts, torch.float64)):
            leaf = walk.to(dtype).requires_grad_()
            with forced(twin):
                distance2 = function(leaf[:, :4], leaf[:, 4:], which)
            results.append([distance2.detach(), *torch.autograd.grad(distance2.square().sum(), [leaf])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-4)


@fast_twins
def test_places_may_be_expanded_and_so_may_what_is_asked_of_distances(twin, device):
    place, query, index = found(3, 4, 3, 5, 2, torch.float32, device)
    results = []
    for function, dtype in ((separations, torch.float32), (separations_by_parts, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in (place[:1], query[:, :1].transpose(0, 1))]
        with forced(twin):
            distance2 = function(leaves[0].expand(3, -1, -1), leaves[1].transpose(0, 1).expand(-1, 3, -1), index)
        results.append([distance2.detach(), *torch.autograd.grad(distance2.sum(), leaves)])
    assert_equal_twins(*results, atol=1e-4)


@fast_twins
@pytest.mark.parametrize("learns", [(True, False), (False, True)])
def test_what_needs_no_gradient_gets_none(learns, twin, device):
    place, query, index = found(2, 7, 3, 5, 2, torch.float32, device)
    leaves = [x.requires_grad_(needed) for x, needed in zip((place, query), learns, strict=True)]
    expected = value_and_gradients(separations_by_parts, place, query, index)[1:]
    with forced(twin):
        distance2 = separations(*leaves, index)
    (torch.linspace(-1, 2, distance2.numel(), device=device).view_as(distance2) * distance2).sum().backward()
    for leaf, needed, gradient in zip(leaves, learns, expected, strict=True):
        if needed:
            torch.testing.assert_close(leaf.grad, gradient, rtol=1e-5, atol=1e-5)
        else:
            assert leaf.grad is None


@fast_twins
def test_inputs_are_left_alone_and_answers_belong_to_the_caller(twin, device):
    place, query, index = found(2, 7, 3, 5, 2, torch.float32, device)
    leaves = [x.clone().requires_grad_() for x in (place, query)]
    with forced(twin):
        distance2 = separations(*leaves, index)
    gradients = torch.autograd.grad(distance2.mul_(3.0).sum(), leaves)
    readable = torch.autograd.grad(3 * separations_by_parts(*leaves, index).sum(), leaves)
    assert all(torch.equal(leaf, x) for leaf, x in zip(leaves, (place, query), strict=True))
    for one, other in zip(gradients, readable, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_a_cpu_gets_gradients_by_hand_in_both_precisions(monkeypatch):
    told = []
    original = separations_cpu.measure
    monkeypatch.setattr(separations_cpu, "measure", lambda *inputs: told.append(inputs[0].dtype) or original(*inputs))
    for dtype in (torch.float32, torch.float64):
        assert separations(*found(2, 7, 3, 5, 2, dtype)).dtype == dtype
    assert told == [torch.float32, torch.float64]


@fast_twins
def test_places_of_another_precision_are_left_to_the_readable_twin(twin, device):
    place, query, index = found(2, 7, 3, 5, 2, torch.float32, device)
    with forced(twin):
        assert separations(place.double(), query, index).dtype == torch.float64
        assert separations(place.bfloat16(), query, index).dtype == torch.float32


def test_places_of_many_axes_are_left_to_the_readable_twin(triton_device):
    inputs = found(2, 4, 3, 5, 9, torch.float32, triton_device)
    with forced("triton"):
        assert torch.equal(separations(*inputs), separations_by_parts(*inputs))


def test_a_gpu_can_keep_distances_in_a_graph(in_a_graph):
    *places, index = found(64, 256, 32, 5, 2, torch.float32, "cuda")
    leaves = [x.requires_grad_() for x in places]

    def update():
        distance2 = separations(*leaves, index)
        return [distance2, *torch.autograd.grad(distance2.mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert_equal_twins(replayed, warm)
