"""The motion from views that come back."""

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.tensors import Gaussian
from gtmsm.training.loops import find_by_loops, look_same, moved
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.slip import SlipConfig, slipping
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig


def walked(slip: float, clips: int = 64) -> Clip:
    """Walks among obstacles."""
    world = slipping(
        ImageWalk(load_images("builtin", 32).train, ImageWalkConfig(obstacles=2)), SlipConfig(probability=slip)
    )
    walker = PoissonWalker(PoissonWalkerConfig(look_first=True))
    return record(world, walker, clips, 96, torch.Generator().manual_seed(0))


def as_code(clip: Clip) -> Gaussian:
    """Pixels for a code."""
    mean = clip.x.flatten(2)
    return Gaussian(mean, torch.full_like(mean, -6.0))


@pytest.mark.parametrize(("slip", "closed"), [(0.0, 0.99), (0.1, 0.7)])
def test_loops_tell_opposite_moves_at_right_angles(slip: float, closed: float):
    clip = walked(slip)
    loops = find_by_loops(as_code(clip), clip.a, dimensions=2, length=2.0)
    left, right, up, down, stay = loops.M.T
    assert loops.found and loops.closed > closed and loops.runner_up < 0.1
    assert torch.allclose(left, -right, atol=0.01) and torch.allclose(up, -down, atol=0.01)
    assert torch.allclose(loops.M[:, :4].norm(dim=0), torch.ones(4), atol=0.01)
    assert abs(float(left @ up)) < 0.01 and float(stay.norm()) == 0
    assert "found" in loops.verdict and "not found" not in loops.verdict


def test_steps_that_change_nothing_were_not_made():
    clip = walked(0.0)
    made = moved(as_code(clip))[:, 1:].bool()
    truly = (clip.true_pose[:, 1:] != clip.true_pose[:, :-1]).any(-1)
    assert torch.equal(made, truly)


def test_walks_that_never_come_back_say_so():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(16, 48, 8, generator=generator)
    actions = torch.nn.functional.one_hot(torch.randint(5, (16, 48), generator=generator), 5).float()
    loops = find_by_loops(Gaussian(mean, torch.zeros_like(mean)), actions, dimensions=2, length=2.0)
    assert not loops.found and "too few" in loops.verdict


@pytest.mark.parametrize("steps", [1, 2])
def test_clips_too_short_for_a_loop_say_so(steps: int):
    clip = walked(0.0)[:, :steps]
    loops = find_by_loops(as_code(clip), clip.a, dimensions=2, length=2.0)
    assert not loops.found and loops.verdict.startswith("0 views came back")


def test_views_that_come_back_at_random_find_nothing():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randint(3, (64, 48, 1), generator=generator).float()
    actions = torch.nn.functional.one_hot(torch.randint(5, (64, 48), generator=generator), 5).float()
    loops = find_by_loops(Gaussian(mean, torch.zeros_like(mean)), actions, dimensions=2, length=2.0)
    assert loops.count > 1_000 and not loops.found and "not found" in loops.verdict


def test_the_codes_own_variance_is_the_tolerance():
    one, other = torch.zeros(1, 4), torch.full((1, 4), 0.01)
    sharp, blurred = torch.full((1, 4), -8.0), torch.full((1, 4), 2.0)
    assert not look_same(Gaussian(one, sharp), Gaussian(other, sharp))
    assert look_same(Gaussian(one, blurred), Gaussian(other, blurred))
