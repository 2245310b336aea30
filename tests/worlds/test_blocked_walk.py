"""Walks among solid cells, all steps at once, equal walks step by step."""

from itertools import product

import pytest
import torch

from gtmsm.worlds.blocked_walk import blocked_walk

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def by_steps(start, steps, solid):
    """Clamp to the grid, then stay where the cell is solid, one step after the other."""
    last = torch.tensor(solid.shape[1:]) - 1
    position, positions = start, []
    for step in steps.unbind(1):
        aim = torch.minimum((position + step).clamp(min=0), last)
        is_solid = solid[torch.arange(len(start)), aim[:, 0], aim[:, 1]]
        position = torch.where(is_solid[:, None], position, aim)
        positions.append(position)
    return torch.stack(positions, 1)


def walks(n, time, rows, columns, longest=1, density=0.3):
    """Steps, and solid cells everywhere but where a walk starts."""
    generator = seeded(n + 10 * time + 100 * rows + 1000 * columns)
    start = torch.stack([torch.randint(side, (n,), generator=generator) for side in (rows, columns)], 1)
    steps = torch.randint(-longest, longest + 1, (n, time, 2), generator=generator)
    solid = torch.rand(n, rows, columns, generator=generator) < density
    solid[torch.arange(n), start[:, 0], start[:, 1]] = False
    return start, steps, solid


@pytest.mark.parametrize("time", [1, 2, 3, 31, 64, 65])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (9, 9), (3, 5)])
@pytest.mark.parametrize("n", [1, 4])
def test_all_at_once_equals_step_by_step(n, time, rows, columns):
    start, steps, solid = walks(n, time, rows, columns)
    assert torch.equal(blocked_walk(start, steps, solid), by_steps(start, steps, solid))


def test_a_long_stride_counts_only_where_it_lands():
    start, steps, solid = walks(5, 40, 9, 9, longest=4)
    assert torch.equal(blocked_walk(start, steps, solid), by_steps(start, steps, solid))


@pytest.mark.parametrize("steps_at_once", [0, 1, 7, 40])
def test_a_walk_cut_into_stretches_is_the_same_walk(steps_at_once):
    start, steps, solid = walks(3, 40, 9, 9)
    cut = blocked_walk(start, steps, solid, cells_at_once=steps_at_once * solid.numel())
    assert torch.equal(cut, by_steps(start, steps, solid))


def test_every_way_around_a_block_in_the_middle():
    solid = torch.zeros(1, 3, 3, dtype=torch.bool)
    solid[0, 1, 1] = True
    steps = torch.tensor(list(product((UP, DOWN, LEFT, RIGHT), repeat=4)))
    start, solid = torch.zeros(len(steps), 2, dtype=torch.long), solid.expand(len(steps), 3, 3)
    walked = blocked_walk(start, steps, solid)
    assert torch.equal(walked, by_steps(start, steps, solid))
    assert not (walked == 1).all(-1).any()


def test_pushing_against_a_block_is_forgotten_at_once():
    solid = torch.tensor([[[False, False, True]]])
    steps = torch.tensor([[RIGHT, RIGHT, RIGHT, LEFT]])
    assert blocked_walk(torch.tensor([[0, 0]]), steps, solid)[0, :, 1].tolist() == [1, 1, 1, 0]


def test_without_solid_cells_only_the_edges_count():
    start, steps, solid = walks(1, 50, 9, 9, density=0)
    expected = start[0].tolist()
    for step, position in zip(steps[0].tolist(), blocked_walk(start, steps, solid)[0].tolist(), strict=True):
        expected = [min(max(at + by, 0), 8) for at, by in zip(expected, step, strict=True)]
        assert position == expected
