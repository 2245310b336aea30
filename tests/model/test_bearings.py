"""Where did a walk begin?"""

import math

import pytest
import torch
from torch import Tensor

from gtmsm.model.bearings import find_starts
from gtmsm.model.motion import MotionConfig, Walled
from gtmsm.pose import Plane, PlaneWithHeading

START = torch.tensor([[2.0, -3.0], [0.5, 4.0]])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_path(steps: int = 20) -> Tensor:
    return torch.randint(-1, 2, (2, steps, 2), generator=seeded(0)).float().cumsum(1)


def test_sights_that_are_right_tell_the_start():
    path = a_path()
    sighted = (path + START[:, None])[:, :, None].expand(-1, -1, 3, -1)
    found, agreed = find_starts(Plane(2), path, sighted, torch.ones(2, 20, 3), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(found[:, 0], START)
    torch.testing.assert_close(agreed, torch.full((2, 1), 60.0))


def test_a_third_of_wrong_sights_does_not_matter():
    path = a_path()
    sighted = (path + START[:, None])[:, :, None].repeat(1, 1, 3, 1)
    sighted[:, :, 0] = 8 * torch.rand(2, 20, 2, generator=seeded(1)) - 4
    found, agreed = find_starts(Plane(2), path, sighted, torch.ones(2, 20, 3), torch.tensor([0.5, 0.5]))
    assert (agreed >= 39).all() and (agreed < 50).all()
    torch.testing.assert_close(found[:, 0], START, atol=0.1, rtol=0)


def test_starts_are_told_by_how_many_sights_agree_on_them():
    path, elsewhere = a_path(), START + torch.tensor([5.0, 0.0])
    sighted = (path + START[:, None])[:, :, None].repeat(1, 1, 3, 1)
    sighted[:, :, 0] = path + elsewhere[:, None]
    found, agreed = find_starts(Plane(2), path, sighted, torch.ones(2, 20, 3), torch.tensor([0.5, 0.5]), count=2)
    torch.testing.assert_close(found, torch.stack([START, elsewhere], 1))
    torch.testing.assert_close(agreed, torch.tensor([[40.0, 20.0]] * 2))


def test_the_start_of_an_agent_with_a_heading():
    start = torch.tensor([[1.0, -2.0, 0.7]])
    path = torch.tensor([[[0.5, 0.0, 0.3], [1.0, 0.2, 0.9], [1.2, 1.0, 2.0]]])
    sighted = PlaneWithHeading().step(start[:, None].expand(1, 3, 3), path)[:, :, None] + torch.tensor(
        [0.0, 0.0, 2 * math.pi]
    )
    found, _ = find_starts(PlaneWithHeading(), path, sighted, torch.ones(1, 3, 1), torch.tensor([0.2, 0.2, 0.1]))
    torch.testing.assert_close(found[:, 0, :2], start[:, :2], atol=1e-5, rtol=0)
    assert torch.cos(found[:, 0, 2] - start[:, 2]) > 1 - 1e-6


@pytest.fixture
def walled() -> Walled:
    """Walls between cells 4 and 5, all around; the actions are up, down, left, right."""
    motion = Walled(MotionConfig(hidden=4), 4)
    motion.M.data.copy_(torch.tensor([[-1.0, 1, 0, 0], [0, 0, -1, 1]]))
    motion.W.data.copy_(10 * torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
    motion.b.data.fill_(-45.0)
    motion.v.data.fill_(-10.0)
    motion.c.data.fill_(8.0)
    return motion


def test_an_agent_that_ran_into_two_walls_knows_where_it_is(walled: Walled):
    down, right = torch.eye(4)[1], torch.eye(4)[3]
    actions = torch.stack([down] * 6 + [right] * 6)[None]
    made = torch.tensor([1.0] * 2 + [0.0] * 4 + [1.0] * 3 + [0.0] * 3)  # two cells from one wall, three from the other
    steps = (actions @ walled.M.T) * made[None, :, None]
    before = torch.cat([torch.zeros(1, 1, 2), steps.cumsum(1)[:, :-1]], dim=1)
    shift, variance = walled.among_walls(before, actions, steps, 0.1)
    torch.testing.assert_close(shift, torch.tensor([[2.0, 1.0]]), atol=0.35, rtol=0)
    assert variance < 1


def test_an_agent_that_touched_no_wall_does_not(walled: Walled):
    actions = torch.eye(4)[[1, 0]][None]
    steps = actions @ walled.M.T
    before = torch.cat([torch.zeros(1, 1, 2), steps[:, :1]], dim=1)
    shift, variance = walled.among_walls(before, actions, steps, 0.1)
    torch.testing.assert_close(shift, torch.zeros(1, 2), atol=0.6, rtol=0)
    assert variance > 3
