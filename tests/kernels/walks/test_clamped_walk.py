"""Walks between walls equal their readable twin."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtmsm.kernels.choice import forced
from gtmsm.kernels.walks.clamped_walk import clamped_moves, clamped_walk, clamped_walk_by_steps


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


def walk(n, time, size, high, dtype=torch.int64, device="cpu"):
    generator = torch.Generator().manual_seed(100 * n + time)
    start = torch.randint(high + 1, (n, size), generator=generator)
    return [x.to(dtype).to(device) for x in (start, torch.randint(-3, 4, (n, time, size), generator=generator))]


def by_triton(start, steps, high):
    with forced("triton"):
        return clamped_walk(start, steps, high)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 7, 2, 4), (1, 129, 1, 8), (2, 40, 3, 2), (0, 4, 2, 3), (2, 0, 2, 3)]
)
def test_the_triton_walk_equals_the_walk_by_steps(shape, triton_device):
    start, steps = walk(*shape, device=triton_device)
    assert torch.equal(by_triton(start, steps, shape[-1]), clamped_walk_by_steps(start, steps, shape[-1]))


def test_the_triton_walk_goes_in_rounds_where_it_is_long(triton_device, monkeypatch):
    from gtmsm.kernels.walks import clamped_walk_triton

    monkeypatch.setattr(clamped_walk_triton, "STEPS_AT_ONCE", 128)
    start, steps = walk(1, 260, 1, 6, device=triton_device)
    assert torch.equal(by_triton(start, steps, 6), clamped_walk_by_steps(start, steps, 6))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_the_triton_walk_keeps_the_kind_of_number_of_the_steps(dtype, triton_device):
    start, steps = walk(1, 5, 2, 4, dtype, triton_device)
    walked = by_triton(start, steps, 4)
    assert walked.dtype == dtype and torch.equal(walked, clamped_walk_by_steps(start, steps, 4))


def test_the_triton_walk_takes_strided_and_expanded_steps(triton_device):
    start, steps = walk(1, 6, 2, 4, device=triton_device)
    start, steps = start.expand(3, 2), steps.expand(3, 6, 2).transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(by_triton(start, steps, 4), clamped_walk_by_steps(start, steps, 4))


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_steps_may_be_named_by_the_numbers_of_moves(twin, triton_device):
    generator = torch.Generator().manual_seed(0)
    moves = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], device=triton_device)
    actions = torch.randint(5, (3, 40), generator=generator).to(triton_device)
    start = torch.tensor([[0, 4], [2, 2], [4, 0]], device=triton_device)
    with forced(twin):
        walked = clamped_moves(start, actions, moves, high=4)
    assert torch.equal(walked, clamped_walk_by_steps(start, moves[actions], 4))
