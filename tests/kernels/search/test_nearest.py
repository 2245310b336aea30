"""Nearest keys: fast implementations find what a stable sort of all distances finds, index for index."""

import math

import pytest
import torch
from twins import strided

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.search import nearest, nearest_cpu
from gtmsm.kernels.search.nearest import nearest_k

SHAPES = [  # batch, n, m, P, K
    (1, 1, 1, 1, 1),
    (1, 1, 3, 2, 1),
    (3, 7, 2, 2, 7),
    (2, 33, 5, 4, 4),
    (1, 40, 11, 3, 5),
    (2, 32, 9, 2, 5),
    (2, 70, 1, 8, 16),
    (1, 300, 3, 2, 16),
    (3, 150, 4, 4, 4),
]
LARGE_SHAPES = [  # too large to interpret
    (64, 256, 32, 2, 5),
    (32, 150, 32, 4, 4),
    (12288, 32, 16, 2, 5),
    (3, 5000, 150, 4, 16),
    (2, 100_000, 37, 4, 4),
    (1, 1_000_003, 2, 2, 5),
]
EVERYWHERE = [0.0, 100.0, 1e4]

# Triton's interpreter computes with NumPy, which warns where a GPU does not.
beyond_numbers = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")


@pytest.fixture(params=["cpu", "cuda"])
def searched(request):
    """`nearest_k` by one of the fast implementations."""
    where = request.getfixturevalue("triton_device") if request.param == "cuda" else "cpu"

    def search(keys, queries, k):
        with forced(request.param):
            return nearest_k(keys.to(where), queries.to(where), k).cpu()

    return search


def scattered(batch, n, m, axes, offset=0.0, dtype=torch.float32):
    """Keys and queries anywhere: no two distances are equal."""
    generator = torch.Generator().manual_seed(n + m)
    keys, queries = (torch.randn(batch, count, axes, generator=generator) for count in (n, m))
    return (keys + offset).to(dtype), (queries + offset).to(dtype)


def on_a_grid(batch, n, m, axes, offset=0.0, step=0.3):
    """Keys and queries on a few cells, as in the image walk: nearly every distance has its equals."""
    generator = torch.Generator().manual_seed(n + m)
    return tuple(step * torch.randint(-2, 3, (batch, count, axes), generator=generator) + offset for count in (n, m))


@pytest.mark.parametrize("places", [scattered, on_a_grid])
@pytest.mark.parametrize("shape", SHAPES)
def test_fast_implementations_find_what_a_stable_sort_finds(searched, places, shape):
    *sizes, k = shape
    keys, queries = places(*sizes)
    found = searched(keys, queries, k)
    assert found.dtype == torch.int64
    assert torch.equal(found, nearest_k.readable(keys, queries, k))


@pytest.mark.parametrize("places", [scattered, on_a_grid])
@pytest.mark.parametrize("offset", EVERYWHERE)
def test_far_from_the_origin_they_still_do(searched, places, offset):
    keys, queries = places(2, 60, 5, 2, offset)
    assert torch.equal(searched(keys, queries, 5), nearest_k.readable(keys, queries, 5))


@pytest.mark.parametrize("offset", EVERYWHERE)
def test_an_exact_revisit_is_found_first_and_its_first_visit_before_later_ones(searched, offset):
    keys, _ = scattered(1, 12, 1, 2, offset)
    found = searched(keys.repeat(1, 3, 1), keys, 4)
    first = torch.arange(12)[None]
    assert torch.equal(found[..., :3], torch.stack([first, first + 12, first + 24], -1))
    assert torch.equal(found[..., 3], nearest_k.readable(keys.repeat(1, 3, 1), keys, 4)[..., 3])


def test_equals_on_either_side_of_a_query_come_by_index(searched):
    # 0.1^2 + 0.7^2 is one number whichever comes first, as long as nothing is fused
    keys = torch.tensor([[[0.7, 0.1], [0.1, 0.7], [-0.1, 0.7], [-0.7, -0.1], [0.1, -0.7], [0.7, 0.1], [9.0, 9.0]]])
    for order in (torch.arange(7), torch.arange(6, -1, -1)):
        found = searched(keys[:, order], torch.zeros(1, 1, 2), 6)
        assert found.flatten().tolist() == [i for i in range(7) if order[i] != 6]


def test_by_hand():
    keys, queries = torch.tensor([[[5.0], [1.0], [3.0], [1.0]]]), torch.tensor([[[0.0], [4.5]]])
    assert nearest_k.readable(keys, queries, 3).tolist() == [[[1, 3, 2], [0, 2, 1]]]


def test_inputs_need_not_be_contiguous_and_may_be_expanded(searched):
    keys, queries = on_a_grid(3, 30, 4, 2)
    wanted = nearest_k.readable(keys, queries, 5)
    assert not strided(keys).is_contiguous()
    assert torch.equal(searched(strided(keys), strided(queries), 5), wanted)
    both = torch.cat([keys, queries], 1)
    assert torch.equal(searched(both[:, :30], both[:, 30:], 5), wanted)
    one = searched(keys[:1].expand(3, -1, -1), queries, 5)
    assert torch.equal(one, nearest_k.readable(keys[:1].expand(3, -1, -1), queries, 5))


def test_inputs_are_left_alone(searched):
    keys, queries = scattered(2, 20, 3, 2)
    before = keys.clone(), queries.clone()
    searched(keys, queries, 5)
    assert torch.equal(keys, before[0])
    assert torch.equal(queries, before[1])


@pytest.mark.parametrize(("batch", "m"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("implementation", ["readable", "cpu", "cuda"])
def test_where_nothing_is_asked_nothing_is_found(implementation, batch, m):
    with forced(implementation):
        assert nearest_k(torch.zeros(batch, 5, 2), torch.zeros(batch, m, 2), 3).shape == (batch, m, 3)


@beyond_numbers
@pytest.mark.parametrize("k", [5, 16])
def test_what_is_nowhere_comes_last_and_is_still_an_entry(searched, k):
    keys, queries = scattered(2, 40, 4, 2)
    keys[0, 3:33, 0], keys[1, 5, 1], keys[1, 7], keys[0, 2] = math.nan, -math.nan, math.inf, -math.inf
    queries[0, 1], queries[1, 2, 0] = math.nan, math.inf
    found = searched(keys, queries, k)
    assert torch.equal(found, nearest_k.readable(keys, queries, k))
    assert torch.equal(found[0, 1], torch.arange(k))  # nowhere itself: nothing is nearer than anything else


@beyond_numbers
def test_distances_that_overflow_or_underflow_keep_their_order(searched):
    keys = torch.tensor([1e30, -1e25, 1e-30, 0.0, 1.0, -1e-21, 1e-22]).view(1, 7, 1)
    queries = torch.zeros(1, 1, 1)
    found = searched(keys, queries, 6)
    assert torch.equal(found, nearest_k.readable(keys, queries, 6))
    assert found[0, 0, -2:].tolist() == [4, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_is_compared_in_float64(shape):
    *sizes, k = shape
    keys, queries = scattered(*sizes, dtype=torch.float64)
    keys = keys / 1e9 + 1e4
    assert torch.equal(nearest_k(keys, queries, k), nearest_k.readable(keys, queries, k))


@pytest.mark.parametrize("at_once", [1, 50, 333, 10**6])
def test_portions_change_nothing(monkeypatch, at_once):
    keys, queries = on_a_grid(3, 50, 7, 2)
    wanted = nearest_k.readable(keys, queries, 5)
    monkeypatch.setattr(nearest, "AT_ONCE", at_once)
    monkeypatch.setattr(nearest_cpu, "IN_CACHE", at_once)
    for implementation in ("readable", "cpu"):
        with forced(implementation):
            assert torch.equal(nearest_k(keys, queries, 5), wanted)


@pytest.mark.parametrize(("batch", "m", "n", "at_once"), [(3, 7, 50, 1), (3, 7, 50, 120), (9, 4, 10, 95), (2, 1, 9, 9)])
def test_portions_are_bounded_and_cover_every_query_once(batch, m, n, at_once):
    asked = torch.zeros(batch, m)
    for some, which in nearest_cpu.portions(batch, m, n, at_once):
        asked[some, which] += 1
        assert asked[some, which].numel() * n <= max(at_once, n)
    assert (asked == 1).all()


@pytest.mark.parametrize(("warps", "m", "lanes"), [(1, 40, 1), (1, 16, 2), (9, 20, 8), (99, 3, 32)])
@pytest.mark.parametrize("places", [scattered, on_a_grid])
def test_few_lanes_for_each_of_many_queries_find_the_same(triton_device, monkeypatch, places, warps, m, lanes):
    from gtmsm.kernels.search import nearest_triton

    monkeypatch.setattr(nearest_triton, "WARPS", warps)
    keys, queries = (x.to(triton_device) for x in places(2, 37, m, 2))
    assert nearest_triton._tile(2, m, 37, 5)[1] == lanes
    assert torch.equal(nearest_triton.nearest_k.forward(keys, queries, 5)[0], nearest_k.readable(keys, queries, 5))


@pytest.mark.parametrize(
    ("n", "m", "k", "merged"), [(200, 3, 4, 512), (170, 5, 5, 10), (130, 1, 16, 64), (64, 2, 1, 2)]
)
@pytest.mark.parametrize("places", [scattered, on_a_grid])
def test_keys_split_over_programs_are_merged_in_order(triton_device, monkeypatch, places, n, m, k, merged):
    from gtmsm.kernels.search import nearest_triton

    monkeypatch.setattr(nearest_triton, "LONG", 64)
    monkeypatch.setattr(nearest_triton, "MERGED", merged)
    keys, queries = (x.to(triton_device) for x in places(2, n, m, 2))
    keys[0, 5:-9] = math.nan
    *_, splits = nearest_triton._tile(2, m, n, k)
    assert splits > 1
    assert torch.equal(nearest_triton.nearest_k.forward(keys, queries, k)[0], nearest_k.readable(keys, queries, k))


@pytest.mark.parametrize(("dtype", "axes", "k"), [(torch.float64, 2, 3), (torch.float32, 9, 3), (torch.float32, 2, 17)])
def test_what_triton_does_not_support_the_readable_function_does(dtype, axes, k):
    keys, queries = scattered(2, 20, 3, axes, dtype=dtype)
    with forced("cuda"):
        assert torch.equal(nearest_k(keys, queries, k), nearest_k.readable(keys, queries, k))


def test_searching_needs_no_gradients_and_makes_none(searched):
    keys, queries = (x.requires_grad_() for x in scattered(1, 20, 3, 2))
    assert not searched(keys, queries, 5).requires_grad


def test_pytorch_accepts_its_registration():
    torch.library.opcheck(torch.ops.gtmsm.nearest_k.default, (*scattered(2, 20, 3, 2), 5))


@pytest.mark.parametrize("k", [0, -1, 6])
def test_more_neighbours_than_keys_are_refused(k):
    with pytest.raises(InputError, match=f"asked for {k} neighbours of 5 keys; give 1 to 5"):
        nearest_k(torch.zeros(1, 5, 2), torch.zeros(1, 1, 2), k)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="too large to interpret")
@pytest.mark.parametrize("places", [scattered, on_a_grid])
@pytest.mark.parametrize("shape", LARGE_SHAPES)
def test_on_a_gpu_large_searches_find_the_same(places, shape):
    *sizes, k = shape
    keys, queries = (x.cuda() for x in places(*sizes))
    with forced("readable"):
        wanted = nearest_k(keys, queries, k)
    assert torch.equal(nearest_k(keys, queries, k), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has graphs")
@pytest.mark.parametrize("shape", [(64, 256, 32, 2, 5), (2, 50_000, 37, 4, 4)])
def test_a_search_can_be_captured_in_a_graph(shape):
    *sizes, k = shape
    keys, queries = (x.cuda() for x in scattered(*sizes))
    nearest_k(keys, queries, k)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = nearest_k(keys, queries, k)
    others = on_a_grid(*sizes)
    keys.copy_(others[0])
    queries.copy_(others[1])
    graph.replay()
    assert torch.equal(found, nearest_k(keys, queries, k))
