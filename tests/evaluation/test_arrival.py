"""Whether a journey ended at its goal."""

from collections.abc import Callable

import pytest
import torch

from gtmsm.evaluation.arrival import FARTHER, Arrival, arrival_in, spl
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms


def over_an_image() -> Arrival:
    return arrival_in(ImageWalk(torch.zeros(1, 3, 20, 20, dtype=torch.uint8), ImageWalkConfig(size=20)))


def in_a_room() -> Arrival:
    return arrival_in(draw_rooms(RoomsConfig(textures="procedural", objects=0, antialias=1), 1, 0))


@pytest.mark.parametrize("where", [over_an_image, in_a_room])
def test_what_is_reached_before_the_first_step_is_no_goal(where: Callable[[], Arrival]):
    arrival = where()
    here = arrival.world.pose[0]  # type: ignore[attr-defined]
    assert arrival.there(here)
    assert not arrival.fair(here)
    assert spl(True, 0.0, 0.0) == 0  # nor would it count


def test_a_goal_in_a_room_is_further_than_what_counts_as_there():
    arrival = in_a_room()
    near = arrival.world.pose[0] + torch.tensor([0.9 * FARTHER * float(arrival.world.width[0]), 0, 0])  # type: ignore[attr-defined]
    assert not arrival.there(near)
    assert not arrival.fair(near)


def test_a_goal_elsewhere_on_an_image_has_a_way_to_it():
    arrival = over_an_image()
    goal = torch.tensor([0.0, 4.0])
    assert arrival.fair(goal)
    assert arrival.shortest(goal) == 4
    assert spl(True, 4.0, 5.0) == 0.8 and spl(False, 4.0, 5.0) == 0
