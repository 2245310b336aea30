"""The filter of App. D with headings; for positions, see the landmark scan."""

import math

import pytest
import torch

from gtmsm.model.landmark_filter import Sights, Surprise, filter_by_steps, fuse
from gtmsm.pose import Plane, PlaneWithHeading, space_of

HEADING = PlaneWithHeading()


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_of_bayes_rule_agree_with_finite_differences(size):
    generator = torch.Generator().manual_seed(size)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    groups = 2 if size == 3 else 1  # a heading has a variance of its own
    surprise = Surprise(0.2, (0.1, 0.05)[:groups], (0.6, 0.3)[:groups])
    leaves = [draw(2, size), draw(2, groups).exp(), draw(2, 4, size), draw(2, 4, groups).exp(), draw(2, 4)]
    leaves = [x.requires_grad_() for x in (*leaves, draw(2, 4, groups).exp())]
    assert torch.autograd.gradcheck(lambda *leaves: tuple(fuse(space_of(size), *leaves, surprise)), leaves)


def test_gradients_of_a_walk_with_headings_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    leaves = [draw(2, 3), 0.3 * draw(2, 4, 3), draw(2, 2).exp(), draw(2, 4, 2), 0.3 * draw(2, 4, 2, 3)]
    leaves += [0.2 * draw(2, 4, 2, 2).exp(), draw(2, 2, 3), draw(2, 2, 2).exp()]
    index = torch.tensor([[0, 1], [2, 0], [3, 1], [2, 4]]).expand(2, 4, 2)

    def scan(start, steps, variance, log_odds, offset, noise, *past):
        return filter_by_steps(
            HEADING, lambda s, t: HEADING.step(s, steps[:, t]), lambda s, pose: pose, start, variance,
            Sights(index, log_odds, offset, noise), past, Surprise(0.2, (0.1, 0.05), (0.6, 0.3)),
        )  # fmt: skip

    assert torch.autograd.gradcheck(scan, [x.requires_grad_() for x in leaves], fast_mode=True)


def one_sight(space, planned, sighted, noise, log_odds=1e6, fresh=(1.0, 1.0)):
    """A plan whose pose was known exactly before the step, and one entry that is known exactly."""
    groups = len(space.groups)
    surprise = Surprise(0.5, fresh[:groups], fresh[:groups])
    zero = torch.zeros(groups, dtype=torch.float64)
    return fuse(space, planned, zero, sighted[None], zero[None], number(log_odds), noise[None], surprise)


def test_a_heading_is_moved_the_shorter_way_round():
    fused = one_sight(HEADING, number(0.0, 0.0, 3.0), number(2.0, 0.0, -3.0), number(1.0, 1.0))
    assert fused.pose.tolist() == pytest.approx([1.0, 0.0, math.pi])  # half the way, both
    assert fused.variance.tolist() == pytest.approx([0.5, 0.5])
    assert fused.beta.tolist() == pytest.approx([0.5])


def test_position_and_heading_have_gains_of_their_own():
    """One variance is free in each: a position seen with a noise of 3, a heading with one of 1/3."""
    fused = one_sight(HEADING, number(0.0, 0.0, 0.0), number(1.0, -2.0, 0.4), number(3.0, 1 / 3))
    assert fused.pose.tolist() == pytest.approx([0.25, -0.5, 0.3])
    assert fused.variance.tolist() == pytest.approx([0.25 * 3, 0.75 / 3])


def test_three_axes_of_a_plane_are_no_heading():
    fused = one_sight(Plane(3), number(0.0, 0.0, 3.0), number(0.0, 0.0, -3.0), number(1.0))
    assert fused.pose.tolist() == pytest.approx([0.0, 0.0, 0.0])
