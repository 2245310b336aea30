"""How many frames a captured update encodes."""

import pytest
import torch

from gtmsm.training.capacity import Capacity, with_headroom


def capacity_of(frames, needed):
    capacity = Capacity(torch.device("cpu"))
    capacity.frames = frames
    capacity.note(torch.tensor(needed))
    return capacity


@pytest.mark.parametrize(
    ("updates", "needed", "then"),
    [
        (50, 1001, 1152),  # a twentieth more than the most of many updates, in round numbers
        (3, 1001, 1280),  # a fifth more than that of a few
        (50, 1000, 1000),  # enough
        (50, 420, 1000),
        (50, 300, 384),  # far too much
        (50, 0, 1000),  # nothing was counted
    ],
)
def test_the_capacity_follows_what_updates_need(updates, needed, then):
    capacity = capacity_of(1000, needed)
    assert capacity.review(updates) == (then != 1000)
    assert capacity.frames == then


def test_a_review_forgets_what_came_before():
    capacity = capacity_of(1000, 2000)
    assert capacity.review(50)
    assert not capacity.review(50)


def test_the_first_updates_choose_the_capacity():
    capacity = capacity_of(None, 300)
    capacity.note(torch.tensor(200))
    capacity.settle()
    assert capacity.frames == with_headroom(300) == 384


def test_where_all_of_memory_is_read_there_is_no_capacity():
    capacity = Capacity(torch.device("cpu"))
    capacity.note(None)
    capacity.settle()
    assert capacity.frames is None
    assert not capacity.review(50)
