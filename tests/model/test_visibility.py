"""Which views to retrieve: those that together see what is to be seen."""

import math

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.visibility import most_visible


def place(x, y, degrees):
    angle = math.radians(degrees)
    return [x, y, math.cos(angle), math.sin(angle)]


def views(*poses):
    return torch.tensor([[place(*pose) for pose in poses]], dtype=torch.float64)


def chosen(memory, query, k, field_of_view=80.0):
    return most_visible(memory, query, k, field_of_view)[0, 0].tolist()


HERE = views((0, 0, 0))


@pytest.mark.parametrize("k", [1, 4, 9])
def test_no_view_is_chosen_twice(k):
    generator = torch.Generator().manual_seed(0)
    xy, angle = 3 * torch.randn(4, 9, 2, generator=generator), 7 * torch.rand(4, 9, 1, generator=generator)
    memory = torch.cat([xy, angle.cos(), angle.sin()], -1)
    index = most_visible(memory, memory[:, :5], k, 80.0)
    assert index.shape == (4, 5, k)
    assert all(len(set(row.tolist())) == k for row in index.flatten(0, 1))


def test_no_view_is_chosen_twice_where_none_sees_anything():
    behind = views(*((-5.0 - i, 0, 180) for i in range(6)))
    assert sorted(chosen(behind, HERE, 6)) == list(range(6))


def test_no_view_is_chosen_twice_where_all_are_the_same():
    assert sorted(chosen(views(*[(0, 0, 0)] * 5), HERE, 5)) == list(range(5))


def test_an_exact_copy_of_the_view_is_among_the_first():
    memory = views((1, 0.5, 20), (-1, 0, 0), (0, 0, 0), (0.3, -0.4, 15), (2, 1, 180), (0, 0.5, 30))
    assert 2 in chosen(memory, HERE, 2)
    assert chosen(views((1, 0.5, 20), (0.3, -0.4, 15), (2, 1, 180), (0, 0, 0)), HERE, 1) == [3]


@pytest.mark.parametrize("away", [(-1, 0, 180), (0, 0, 180), (0, -3, -90), (8, 0, 0)])
def test_a_view_that_looks_away_comes_after_one_that_looks_there(away):
    assert chosen(views(away, (-0.5, 0.2, 5), (0.2, 0.1, -10)), HERE, 3)[-1] == 0


def test_near_copies_are_not_all_chosen_where_another_view_sees_the_rest():
    memory = views(*((0.01 * i, 0, 30) for i in range(6)), (0, 0, -40))
    assert 6 in chosen(memory, HERE, 2)
    assert 6 not in (memory - HERE).square().sum(-1).argsort()[0, :6].tolist(), "it is the farthest of all"


def test_where_the_map_lies_does_not_matter():
    generator = torch.Generator().manual_seed(1)
    xy, angle = 2 * torch.randn(1, 12, 2, generator=generator).double(), 7 * torch.rand(1, 12, generator=generator)
    turn = torch.tensor(2.1).double()
    c, s = turn.cos(), turn.sin()
    moved = torch.stack([7 + c * xy[..., 0] - s * xy[..., 1], s * xy[..., 0] + c * xy[..., 1] - 3], -1)
    picks = []
    for points, heading in ((xy, angle.double()), (moved, angle.double() + turn)):
        memory = torch.cat([points, heading.cos()[..., None], heading.sin()[..., None]], -1)
        picks.append(most_visible(memory[:, 3:], memory[:, :3], 4, 80.0))
    assert torch.equal(*picks)


@pytest.mark.parametrize("k", [0, 3])
def test_more_views_than_there_are_cannot_be_chosen(k):
    with pytest.raises(InputError, match=f"asked for {k} neighbours of a memory that holds 2; give 1 to 2"):
        most_visible(views((0, 0, 0), (1, 0, 0)), HERE, k, 80.0)


def test_choosing_leaves_no_gradients():
    assert not most_visible(views((0, 0, 0), (1, 0, 0)).requires_grad_(), HERE, 2, 80.0).requires_grad


def test_choosing_in_portions_changes_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    xy, angle = 3 * torch.randn(2, 9, 2, generator=generator), 7 * torch.rand(2, 9, 1, generator=generator)
    memory = torch.cat([xy, angle.cos(), angle.sin()], -1)
    whole = most_visible(memory, memory, 4, 80.0)
    monkeypatch.setattr("gtmsm.model.visibility.PAIRS_AT_ONCE", 40)
    assert most_visible(memory, memory, 4, 80.0).equal(whole)
