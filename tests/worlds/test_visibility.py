"""Which pixels show what was seen before."""

import math

import pytest
import torch

from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms
from gtmsm.worlds.scene import Camera, Scene
from gtmsm.worlds.visibility import depths, seen_before


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    """A few furnished rooms."""
    return draw_rooms(RoomsConfig(textures="procedural"), 4, seed=3)


def _seen(rooms: Rooms, past: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
    return seen_before(rooms.plans.scene, rooms.camera, rooms.where, past, pose)


def test_from_the_same_pose_everything_was_seen(rooms: Rooms) -> None:
    """A frame shows itself."""
    rooms.reset(4)
    assert _seen(rooms, rooms.pose[:, None], rooms.pose[:, None]).all()


def test_behind_an_agent_that_never_turned_nothing_was_seen(rooms: Rooms) -> None:
    """Nothing is in both views."""
    rooms.reset(4)
    behind = rooms.pose + torch.tensor([0.0, 0.0, math.pi])
    assert not _seen(rooms, rooms.pose[:, None], behind[:, None]).any()


def test_a_turn_by_half_a_view_shows_half_of_what_was_seen(rooms: Rooms) -> None:
    """To the left the right half is known, whatever stands in the room: one eye, nothing hides."""
    rooms.reset(4)
    left = rooms.pose + torch.tensor([0.0, 0.0, math.radians(rooms.config.field_of_view / 2)])
    seen = _seen(rooms, rooms.pose[:, None], left[:, None])[:, 0].float().mean((0, 1))
    assert (seen[:16] == 0).all()
    assert seen[20:].mean() > 0.8  # but for corners that lie above and below the other frame


def test_what_stands_in_the_way_hides_what_lies_behind_it() -> None:
    """From the side, the wall behind a column is in sight, and was not before."""
    scene, place = _hall(column=True), torch.zeros(1, dtype=torch.long)
    camera = Camera(pixels=32, antialias=1)
    before, aside = torch.tensor([[[0.0, 0.0, 0.0]]]), torch.tensor([[[2.9, 0.0, 0.0]]])
    hidden = seen_before(scene, camera, place, before, aside)[0, 0]
    bare = seen_before(_hall(column=False), camera, place, before, aside)[0, 0]
    middle = slice(14, 18)
    assert bare[middle, middle].all()
    assert not hidden[middle, middle].any()
    assert hidden[middle, 0].all()  # past the column


def test_the_depth_of_a_wall_is_its_distance_along_the_view() -> None:
    """In every column alike, since depth is not measured along rays."""
    camera = Camera(pixels=32, antialias=1)
    depth = depths(_hall(column=False), camera, torch.zeros(1, dtype=torch.long), torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(depth[0, 15:17], torch.full((2, 32), 3.0))
    floor = camera.eye / (camera.edge * 31 / 32)
    torch.testing.assert_close(depth[0, 31], torch.full((32,), floor))


def _hall(column: bool) -> Scene:
    """A wall four units to the east, as wide as can be seen, and perhaps a column two units before the origin."""
    one = torch.zeros(1, 1, 1, dtype=torch.long)
    return Scene(
        walls=torch.tensor([[[4.0, -9.0, 4.0, 9.0]]]),
        wall_texture=one[0],
        floor_texture=one,
        ceiling_texture=one,
        corner=torch.zeros(1, 2),
        tile=1.0,
        objects=torch.tensor([[[2.0, 0.0, 0.4, 1.0, 0.0]]]),
        object_kind=torch.full((1, 1), int(column)),
        object_colour=torch.ones(1, 1, 3),
        textures=torch.zeros(1, 8, 8, 3, dtype=torch.uint8),
    )
