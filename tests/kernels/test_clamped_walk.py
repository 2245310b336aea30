"""Walks between walls equal their readable twin."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtmsm.kernels.clamped_walk import clamped_walk, clamped_walk_by_steps


@pytest.mark.parametrize("high", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
def test_every_walk_from_every_start_ends_where_its_steps_lead(high, length):
    walks = torch.tensor(list(product((-1, 0, 1), repeat=length)))
    starts = torch.arange(high + 1)
    start = starts.repeat_interleave(len(walks))[:, None]
    steps = walks.repeat(len(starts), 1)[..., None]
    assert torch.equal(clamped_walk(start, steps, high), clamped_walk_by_steps(start, steps, high))


@settings(max_examples=80, deadline=None)
@given(
    high=st.integers(1, 12),
    walks=st.integers(1, 70).flatmap(
        lambda time: st.lists(
            st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=time, max_size=time),
            min_size=1,
            max_size=3,
        )
    ),
    data=st.data(),
)
def test_long_strides_and_long_walks_equal_the_twin(high, walks, data):
    steps = torch.tensor(walks)
    cell = st.integers(0, high)
    start = torch.tensor([[data.draw(cell), data.draw(cell)] for _ in walks])
    assert torch.equal(clamped_walk(start, steps, high), clamped_walk_by_steps(start, steps, high))


def test_pushing_against_a_wall_is_forgotten_at_once():
    start, steps = torch.tensor([[0]]), torch.tensor([[[-1], [-1], [-1], [1]]])
    assert clamped_walk(start, steps, high=5).flatten().tolist() == [0, 0, 0, 1]


def test_without_a_wall_in_reach_a_walk_is_a_cumulative_sum():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(-1, 2, (4, 50, 2), generator=generator)
    start = torch.full((4, 2), 100)
    assert torch.equal(clamped_walk(start, steps, high=200), start[:, None] + steps.cumsum(1))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_positions_keep_the_kind_of_number_of_the_steps(dtype):
    steps = torch.ones(1, 3, 1, dtype=dtype)
    assert clamped_walk(torch.zeros(1, 1, dtype=dtype), steps, high=2).dtype == dtype
