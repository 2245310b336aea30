"""Walks between walls, all steps at once, equal walks step by step."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtmsm.kernels.operator import forced
from gtmsm.kernels.walks.clamped_walk import clamped_walk


def by_steps(start, actions, moves, high):
    position, positions = start, []
    for action in actions.unbind(1):
        position = (position + moves[action]).clamp(0, high)
        positions.append(position)
    return torch.stack(positions, 1) if positions else moves.new_empty(*actions.shape, moves.shape[1])


def walk(n, time, size, high, dtype=torch.int64, device="cpu"):
    generator = torch.Generator().manual_seed(100 * n + time)
    start = torch.randint(high + 1, (n, size), generator=generator)
    moves = torch.randint(-3, 4, (7, size), generator=generator)
    actions = torch.randint(7, (n, time), generator=generator)
    return start.to(device, dtype), actions.to(device), moves.to(device, dtype), high


def by_triton(*walk):
    with forced("cuda"):
        return clamped_walk(*walk)


@pytest.mark.parametrize("high", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
def test_every_walk_from_every_start_ends_where_its_steps_lead(high, length):
    walks, starts = torch.tensor(list(product(range(3), repeat=length))), torch.arange(high + 1)
    start, actions = starts.repeat_interleave(len(walks))[:, None], walks.repeat(len(starts), 1)
    given = start, actions, torch.tensor([[-1], [0], [1]]), high
    assert torch.equal(clamped_walk(*given), by_steps(*given))


@settings(max_examples=80, deadline=None)
@given(
    high=st.integers(1, 12),
    moves=st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=3),
    walks=st.integers(1, 70).flatmap(
        lambda time: st.lists(st.lists(st.integers(0, 2), min_size=time, max_size=time), min_size=1, max_size=3)
    ),
    data=st.data(),
)
def test_long_strides_and_long_walks_equal_those_by_steps(high, moves, walks, data):
    cell = st.integers(0, high)
    start = torch.tensor([[data.draw(cell), data.draw(cell)] for _ in walks])
    given = start, torch.tensor(walks), torch.tensor(moves), high
    assert torch.equal(clamped_walk(*given), by_steps(*given))


def test_pushing_against_a_wall_is_forgotten_at_once():
    start, actions, moves = torch.tensor([[0]]), torch.tensor([[0, 0, 0, 1]]), torch.tensor([[-1], [1]])
    assert clamped_walk(start, actions, moves, high=5).flatten().tolist() == [0, 0, 0, 1]


def test_without_a_wall_in_reach_a_walk_is_a_cumulative_sum():
    _, actions, moves, _ = walk(4, 50, 2, 8)
    start = torch.full((4, 2), 300)
    assert torch.equal(clamped_walk(start, actions, moves, 600), start[:, None] + moves[actions].cumsum(1))


@pytest.mark.parametrize("walked", [clamped_walk, by_triton])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_positions_keep_the_kind_of_number_of_the_moves(walked, dtype, triton_device):
    given = walk(1, 5, 2, 4, dtype, triton_device)
    positions = walked(*given)
    assert positions.dtype == dtype and torch.equal(positions, by_steps(*given))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 7, 2, 4), (1, 129, 1, 8), (2, 40, 3, 2), (0, 4, 2, 3), (2, 0, 2, 3)]
)
def test_the_triton_walk_equals_the_walk_by_steps(shape, triton_device):
    given = walk(*shape, device=triton_device)
    assert torch.equal(by_triton(*given), by_steps(*given))


def test_the_triton_walk_takes_several_scans_where_it_is_long(triton_device, monkeypatch):
    from gtmsm.kernels.walks import clamped_walk_triton

    monkeypatch.setattr(clamped_walk_triton, "STEPS_AT_ONCE", 128)
    given = walk(1, 260, 1, 6, device=triton_device)
    assert torch.equal(by_triton(*given), by_steps(*given))


def test_the_triton_walk_takes_strided_and_expanded_actions(triton_device):
    start, actions, moves, high = walk(1, 6, 2, 4, device=triton_device)
    given = start.expand(3, 2), actions.expand(3, 6).T.contiguous().T, moves.T.contiguous().T, high
    assert torch.equal(by_triton(*given), by_steps(*given))
