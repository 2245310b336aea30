"""Spaces of poses: a plane, and a plane with a heading."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError

from gtmsm.pose import Plane, PlaneWithHeading, space_of

QUARTER = math.pi / 2
SPACES = [Plane(1), Plane(2), Plane(3), PlaneWithHeading()]
HEADING = PlaneWithHeading()
spaces = pytest.mark.parametrize("space", SPACES, ids=["line", "plane", "three axes", "heading"])


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def exactly(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),  # one ahead, looking east
        ([0.0, 0.0, QUARTER], [0.0, 1.0, QUARTER], [1.0, 0.0, 0.0]),  # one ahead, looking north
        ([5.0, 2.0, QUARTER], [4.0, 2.0, QUARTER], [0.0, 1.0, 0.0]),  # one to the left, looking north
        ([5.0, 2.0, math.pi], [5.0, 3.0, math.pi], [0.0, -1.0, 0.0]),  # one to the right, looking west
        ([0.0, 0.0, 1.0], [0.0, 0.0, 1.5], [0.0, 0.0, 0.5]),  # a turn on the spot
        ([0.0, 0.0, 0.0], [1.0, 0.0, QUARTER], [1.0, 0.0, QUARTER]),  # it moves along the heading before the turn
        ([0.0, 0.0, 0.1], [0.0, 0.0, 6.5], [0.0, 0.0, 6.4]),  # headings are not wrapped
    ],
)
def test_a_displacement_is_in_the_frame_of_the_pose_before_it(before, after, step):
    before, after, step = exactly(*before), exactly(*after), exactly(*step)
    torch.testing.assert_close(HEADING.displacement(before, after), step, rtol=0, atol=1e-15)
    torch.testing.assert_close(HEADING.step(before, step), after, rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_on_a_plane_displacements_differences_and_relative_places_are_differences(size):
    space, before, after = Plane(size), drawn(4, size), drawn(4, size, seed=1)
    assert torch.equal(space.displacement(before, after), after - before)
    assert torch.equal(space.difference(before, after), after - before)
    assert torch.equal(space.relative(after, before), after - before)
    assert space.place(before) is before and space.pose_at(before) is before


@spaces
def test_a_displacement_leads_back_to_the_pose_after_it(space):
    before, after = drawn(4, 5, space.size), drawn(4, 5, space.size, seed=1)
    torch.testing.assert_close(space.step(before, space.displacement(before, after)), after, rtol=1e-12, atol=1e-12)


@spaces
def test_leading_axes_broadcast(space):
    one, many = drawn(2, 1, space.size), drawn(2, 5, space.size, seed=1)
    for method in (space.displacement, space.step, space.difference):
        assert torch.equal(method(one, many), method(one.expand_as(many), many))
        assert torch.equal(method(many, one), method(many, one.expand_as(many)))


def test_a_difference_of_headings_is_the_shorter_way_round():
    before, after = exactly([0.0, 0.0, 3.0], [1.0, 2.0, 0.1]), exactly([1.0, 1.0, -3.0], [0.0, 0.0, 12.7])
    expected = exactly([1.0, 1.0, 2 * math.pi - 6], [-1.0, -2.0, 12.6 - 4 * math.pi])
    torch.testing.assert_close(HEADING.difference(before, after), expected, rtol=0, atol=1e-12)


@spaces
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize(("batch", "time"), [(1, 1), (3, 9), (2, 0)])
def test_a_path_is_many_steps(space, batch, time, noisy):
    start, d = drawn(batch, space.size), drawn(batch, time, space.size, seed=1)
    noise = 0.1 * drawn(batch, time, space.size, seed=2) if noisy else None
    poses, pose = space.path(start, d, noise), start
    assert poses.shape == d.shape
    for t in range(time):
        pose = space.step(pose, d[:, t]) + (noise[:, t] if noisy else 0)
        torch.testing.assert_close(poses[:, t], pose, rtol=1e-12, atol=1e-12)


@spaces
def test_several_noises_give_several_paths_of_the_same_displacements(space):
    start, d, noise = drawn(3, space.size), drawn(3, 6, space.size, seed=1), drawn(2, 3, 6, space.size, seed=2)
    both = space.path(start, d, noise)
    for one, shaken in zip(both, noise, strict=True):
        torch.testing.assert_close(one, space.path(start, d, shaken), rtol=1e-12, atol=1e-12)


def test_gradients_of_a_path_with_turns_agree_with_finite_differences():
    parts = [drawn(2, 3), drawn(2, 4, 3, seed=1), drawn(2, 4, 3, seed=2)]
    assert torch.autograd.gradcheck(HEADING.path, [part.requires_grad_() for part in parts])


@spaces
def test_a_pose_is_found_again_from_its_place(space):
    pose = 3 * drawn(7, space.size)
    again = space.pose_at(space.place(pose))
    torch.testing.assert_close(space.difference(again, pose), torch.zeros_like(pose), rtol=0, atol=1e-12)


def test_a_relative_place_is_the_place_of_the_displacement():
    one, other = drawn(6, 3), drawn(6, 3, seed=1)
    relative = HEADING.relative(HEADING.place(other), HEADING.place(one))
    torch.testing.assert_close(relative, HEADING.place(HEADING.displacement(one, other)), rtol=1e-12, atol=1e-12)


@spaces
def test_a_walk_from_its_start_ends_where_it_ended(space):
    start, path = drawn(5, space.size), drawn(5, space.size, seed=1)
    found = space.start_of(path, space.step(start, path))
    torch.testing.assert_close(found, start, rtol=1e-12, atol=1e-12)


def test_position_and_heading_have_lengths_of_their_own():
    difference = exactly(3.0, 4.0, 0.5)
    assert [x.item() for x in HEADING.squared_lengths(difference)] == [25.0, 0.25]
    assert [x.item() for x in Plane(3).squared_lengths(difference)] == [25.25]
    assert [(space.positions, space.angles, len(space.groups)) for space in SPACES] == [
        (1, 0, 1), (2, 0, 1), (3, 0, 1), (2, 1, 2),
    ]  # fmt: skip


def test_recorded_poses_of_three_numbers_have_a_heading():
    assert isinstance(space_of(3), PlaneWithHeading)
    assert space_of(2) == Plane(2)


def test_shapes_in_signatures_are_checked():
    assert HEADING.place(torch.zeros(2, 3)).shape == (2, 4)
    with pytest.raises(TypeCheckError):
        HEADING.place(torch.zeros(2, 4))
