"""The dictionary: where -> what."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from torch.distributions import MultivariateNormal, kl_divergence

from gtmsm.errors import InputError
from gtmsm.model.memory import Memory, measure
from gtmsm.tensors import Belief, Gaussian, gather


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def memory_of(keys, covariance=None, code_size=3):
    """A memory with these keys, and codes that can be told apart."""
    batch, n = keys.shape[:2]
    mean = torch.randn(batch, n, code_size, dtype=keys.dtype, generator=seeded(11))
    return Memory(Belief(keys, covariance), Gaussian(mean, 0.1 * mean))


def points(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed)).to(dtype)


def covariances(*lead, size=2, seed=0):
    root = points(*lead, size, size, seed=seed)
    return root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64)


def tree_distances(keys, query, k):
    """Distances to the k nearest, by a k-d tree in float64, nearest first."""
    found = [
        cKDTree(one.double().numpy()).query(asked.double().numpy(), k=[*range(1, k + 1)])[0]
        for one, asked in zip(keys, query, strict=True)
    ]
    return torch.from_numpy(np.stack(found))


@pytest.mark.parametrize(("batch", "time", "n", "k", "size"), [
    (1, 1, 1, 1, 2), (1, 3, 20, 1, 2), (3, 7, 50, 5, 2), (2, 4, 9, 9, 3), (5, 1, 256, 5, 1), (2, 32, 30, 29, 4),
])  # fmt: skip
def test_the_nearest_entries_are_those_of_a_kd_tree(batch, time, n, k, size):
    keys, query = points(batch, n, size), points(batch, time, size, seed=1)
    near = memory_of(keys).nearest(Belief(query), k)
    assert near.index.shape == near.distance2.shape == (batch, time, k)
    torch.testing.assert_close(
        near.distance2.sort(-1).values.sqrt(), tree_distances(keys, query, k), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_far_from_the_origin_the_nearest_are_still_the_nearest(offset):
    keys, query = (points(2, n, 2, seed=n).add(offset).float() for n in (200, 40))
    near = memory_of(keys).nearest(Belief(query), 5)
    torch.testing.assert_close(near.distance2.double().sqrt(), tree_distances(keys, query, 5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_an_exact_revisit_is_at_a_distance_of_exactly_zero(offset):
    keys = points(3, 100, 2).add(offset).float()
    near = memory_of(keys).nearest(Belief(keys[:, [17, 3, 99]]), 5)
    assert torch.equal(near.index[..., 0], torch.tensor([17, 3, 99]).expand(3, 3))
    assert torch.equal(near.distance2[..., 0], torch.zeros(3, 3))


@settings(max_examples=60, deadline=None)
@given(
    grid=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=25),
    query=st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
    data=st.data(),
)
def test_on_a_grid_full_of_ties_no_entry_left_out_is_nearer_than_one_retrieved(grid, query, data):
    k = data.draw(st.integers(1, len(grid)))
    keys, asked = torch.tensor([grid]).float(), torch.tensor([[query]]).float()
    near = memory_of(keys).nearest(Belief(asked), k)
    every = (keys - asked).square().sum(-1)[0]
    assert len(set(near.index.flatten().tolist())) == k
    assert torch.equal(near.distance2.flatten(), every[near.index.flatten()])
    assert torch.equal(near.distance2.flatten().sort().values, every.sort().values[:k])


def test_each_memory_of_the_batch_is_searched_by_its_own_queries():
    keys, query = points(4, 30, 2), points(4, 6, 2, seed=1)
    together = memory_of(keys).nearest(Belief(query), 5)
    for i in range(4):
        alone = memory_of(keys[i : i + 1]).nearest(Belief(query[i : i + 1]), 5)
        assert torch.equal(together.index[i], alone.index[0])


def test_the_nearest_comes_first():
    near = memory_of(points(2, 40, 2)).nearest(Belief(points(2, 8, 2, seed=1)), 6)
    assert torch.equal(near.distance2, near.distance2.sort(-1).values)


def test_distances_have_the_gradients_of_finite_differences():
    keys, query = points(2, 6, 2).requires_grad_(), points(2, 3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: memory_of(k).nearest(Belief(q), 3).distance2, (query, keys))


def test_three_and_four_make_twentyfive():
    place = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    near = measure(place, torch.zeros(1, 1, 2), torch.tensor([[[1, 0, 1]]]))
    assert near.distance2.tolist() == [[[25.0, 0.0, 25.0]]]


# batch, n, time, K, P
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (3, 5, 33, 4, 4), (1, 9, 2, 9, 3), (2, 3, 5, 6, 8), (0, 4, 3, 2, 2),
                                   (2, 4, 0, 2, 2), (2, 4, 3, 0, 2)])  # fmt: skip
def test_distances_and_their_gradients_are_those_of_differences_one_by_one(shape):
    batch, n, time, k, axes = shape
    leaves = [points(batch, n, axes).requires_grad_(), points(batch, time, axes, seed=1).requires_grad_()]
    index = torch.randint(n, (batch, time, k), generator=seeded(2))  # an entry may be found many times
    distance2 = measure(*leaves, index).distance2
    expected = (leaves[1][:, :, None] - gather(leaves[0], index)).square().sum(-1)
    torch.testing.assert_close(distance2, expected)
    weight = points(batch, time, k, seed=3)
    found, wanted = (torch.autograd.grad((weight * each).sum(), leaves) for each in (distance2, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_distances_have_the_higher_of_two_precisions(dtype):
    place, query = points(1, 7, 2).to(dtype), points(1, 3, 2, seed=1, dtype=torch.float32).requires_grad_()
    distance2 = measure(place, query, torch.tensor([[[0, 1], [2, 3], [4, 5]]])).distance2
    assert distance2.dtype == torch.promote_types(dtype, torch.float32)
    distance2.sum().backward()
    torch.testing.assert_close(query.grad, 2 * (2 * query - place[:, 0::2][:, :3] - place[:, 1::2]).float().detach())


def test_only_retrieved_entries_get_a_gradient():
    keys, query = points(1, 20, 2).requires_grad_(), points(1, 1, 2, seed=1)
    near = memory_of(keys).nearest(Belief(query), 4)
    near.distance2.sum().backward()
    learning = (keys.grad.abs().sum(-1) > 0).nonzero()[:, 1]
    assert sorted(near.index.flatten().tolist()) == learning.tolist()


@pytest.mark.parametrize("distance", ["euclidean", "kl"])
def test_an_exact_revisit_has_a_finite_gradient(distance):
    keys = points(1, 8, 2).requires_grad_()
    spread = 0.1 * torch.eye(2, dtype=torch.float64).expand(1, 8, 2, 2)
    near = memory_of(keys, spread).nearest(Belief(keys[:, :3], spread[:, :3]), 2, distance)
    near.distance2.sum().backward()
    assert torch.isfinite(keys.grad).all()


def test_searching_is_not_part_of_the_graph():
    keys, query = points(2, 30, 2).requires_grad_(), points(2, 4, 2, seed=1).requires_grad_()
    near = memory_of(keys).nearest(Belief(query), 3)
    nodes, seen = [near.distance2.grad_fn], set()
    while nodes:
        node = nodes.pop()
        seen.add(type(node).__name__)
        nodes += [following for following, _ in node.next_functions if following is not None]
    assert not any("cdist" in name.lower() or "topk" in name.lower() for name in seen), seen


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_kl_distance_is_the_divergence_between_gaussians(size):
    keys, query = points(2, 7, size), points(2, 4, size, seed=1)
    wide, asked_wide = covariances(2, 7, size=size, seed=2), covariances(2, 4, size=size, seed=3)
    near = memory_of(keys, wide).nearest(Belief(query, asked_wide), 3, "kl")
    every = kl_divergence(
        MultivariateNormal(query[:, :, None], asked_wide[:, :, None]), MultivariateNormal(keys[:, None], wide[:, None])
    )
    expected, index = every.topk(3, largest=False)
    assert torch.equal(near.index, index)
    torch.testing.assert_close(near.distance2, expected, rtol=1e-9, atol=1e-10)


def test_the_kl_distance_of_equally_sure_beliefs_orders_like_the_euclidean():
    keys, query = points(2, 30, 2), points(2, 5, 2, seed=1)
    round_ = 0.3 * torch.eye(2, dtype=torch.float64)
    memory = memory_of(keys, round_.expand(2, 30, 2, 2))
    by_kl = memory.nearest(Belief(query, round_.expand(2, 5, 2, 2)), 4, "kl")
    by_means = memory.nearest(Belief(query), 4)
    assert torch.equal(by_kl.index, by_means.index)
    torch.testing.assert_close(by_kl.distance2, by_means.distance2 / (2 * 0.3), rtol=1e-9, atol=1e-12)


def test_the_kl_distance_has_the_gradients_of_finite_differences():
    keys, query = points(1, 4, 2).requires_grad_(), points(1, 2, 2, seed=1).requires_grad_()
    wide = covariances(1, 4, seed=2).requires_grad_()
    asked_wide = covariances(1, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, p, k, c: memory_of(k, c).nearest(Belief(q, p), 2, "kl").distance2, (query, asked_wide, keys, wide)
    )


@pytest.mark.parametrize("missing", ["key", "query"])
def test_the_kl_distance_needs_to_know_how_sure_beliefs_are(missing):
    keys, wide = points(1, 4, 2), covariances(1, 4)
    memory = memory_of(keys, None if missing == "key" else wide)
    query = Belief(keys[:, :1], None if missing == "query" else wide[:, :1])
    with pytest.raises(InputError, match="the KL distance needs covariances"):
        memory.nearest(query, 2, "kl")


@pytest.mark.parametrize("k", [-1, 0, 8, 100])
def test_more_neighbours_than_there_are_entries_or_none_are_refused(k):
    memory = memory_of(points(2, 7, 2))
    with pytest.raises(InputError, match=f"asked for {k} neighbours of a memory that holds 7; give 1 to 7"):
        memory.nearest(Belief(points(2, 1, 2)), k)


@pytest.mark.parametrize(("ask", "complaint"), [
    (lambda m: m.place_at(torch.tensor([[7], [0]])), "asked for entry 7 of a memory that holds 7; give 0 to 6"),
    (lambda m: m.code_at(torch.tensor([[0], [-1]])), "asked for entry -1 of a memory that holds 7"),
    (lambda m: m.retrieve(torch.full((2, 1, 100), 7)), "asked for entry 7 of a memory that holds 7"),
    (lambda m: m.place_at(torch.zeros(3, 1).long()), r"by torch.int64 of shape \(3, 1\) .*; give .* \(2,"),
    (lambda m: m.nearest(Belief(points(1, 1, 2)), 3), r"the query is .* \(1, 1, 2\) on cpu; give .* \(2, time, 2\)"),
    (lambda m: m.nearest(Belief(points(2, 1, 2) * torch.nan), 3), "a query holds NaN or infinity"),
    (lambda m: m.write(memory_of(points(2, 1, 3))), r"place of what is written is .* \(2, 1, 3\) on cpu; expected"),
    (lambda m: m.write(memory_of(points(1, 1, 2))), r"place of what is written is .* \(1, 1, 2\) on cpu; expected"),
    (lambda m: m.write(memory_of(points(2, 1, 2) * torch.nan)), "what is written holds NaN or infinity"),
])  # fmt: skip
def test_what_a_memory_cannot_answer_or_hold_is_refused(ask, complaint):
    with pytest.raises(InputError, match=complaint):
        ask(memory_of(points(2, 7, 2)))


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 4), n=st.integers(1, 9), which=st.lists(st.integers(1, 3), min_size=0, max_size=3),
    value=st.lists(st.integers(1, 3), min_size=0, max_size=2),
)  # fmt: skip
def test_gathering_is_indexing(batch, n, which, value):
    entries = points(batch, n, *value)
    index = torch.randint(n, (batch, *which), generator=seeded(1))
    expected = torch.stack([entries[i, index[i]] for i in range(batch)])
    assert torch.equal(gather(entries, index), expected)


def test_gathering_adds_up_the_gradients_of_entries_taken_twice():
    entries = points(2, 5, 3).requires_grad_()
    index = torch.tensor([[0, 0, 4], [1, 2, 2]])
    gather(entries, index).sum().backward()
    times = torch.tensor([[2.0, 0, 0, 0, 1], [0, 1, 2, 0, 0]], dtype=torch.float64)
    assert torch.equal(entries.grad, times[..., None].expand(2, 5, 3))


def test_a_gathered_tensor_need_not_be_contiguous():
    entries = points(5, 2, 3).transpose(0, 1)
    index = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(gather(entries, index), torch.stack([entries[0, [4, 0]], entries[1, [1, 1]]]))


def test_codes_are_those_of_the_entries_asked_for():
    memory = memory_of(points(3, 10, 2))
    index = torch.tensor([[1, 5], [0, 9], [3, 3]])
    code = memory.code_at(index)
    for i in range(3):
        assert torch.equal(code.mean[i], memory.code.mean[i, index[i]])
        assert torch.equal(code.log_var[i], memory.code.log_var[i, index[i]])


def test_writing_appends():
    first, second = (memory_of(points(2, n, 2, seed=n), covariances(2, n, seed=n)) for n in (4, 3))
    both = first.write(second)
    assert len(both) == 7
    for part, where in ((first, slice(0, 4)), (second, slice(4, 7))):
        assert torch.equal(both.place.mean[:, where], part.place.mean)
        assert torch.equal(both.place.covariance[:, where], part.place.covariance)
        assert torch.equal(both.code.mean[:, where], part.code.mean)
        assert torch.equal(both.code.log_var[:, where], part.code.log_var)


def test_writing_leaves_the_old_memory_as_it_was():
    memory = memory_of(points(2, 4, 2))
    before = memory.place.mean.clone()
    memory.write(memory_of(points(2, 3, 2)))
    assert len(memory) == 4
    assert torch.equal(memory.place.mean, before)


def test_a_memory_half_of_which_is_unsure_how_sure_it_is_knows_no_covariances():
    sure, unsaid = memory_of(points(1, 2, 2), covariances(1, 2)), memory_of(points(1, 3, 2))
    assert sure.write(unsaid).place.covariance is None


def test_some_of_the_memories_can_be_taken():
    memory = Memory(
        Belief(torch.randn(3, 5, 2), torch.eye(2).expand(3, 5, 2, 2)),
        Gaussian(torch.randn(3, 5, 4), torch.randn(3, 5, 4)),
        digest=torch.randn(3, 5, 2, 6),
        variance=torch.rand(3, 5, 1),
    )
    some = memory[1:]
    assert some.batch == 2 and len(some) == 5
    assert torch.equal(some.code.log_var, memory.code.log_var[1:]) and torch.equal(some.digest, memory.digest[1:])
    assert torch.equal(some.place.covariance, memory.place.covariance[1:])
    assert torch.equal(some.variance, memory.variance[1:])
