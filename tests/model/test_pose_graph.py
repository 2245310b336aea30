"""Loops are closed: an error that comes to light is spread over the steps that made it."""

import math

import pytest
import torch

from gtmsm.model.landmark_filter import Sights, Surprise, Watched
from gtmsm.model.pose_graph import _Net, close_loops, close_watched_loops
from gtmsm.pose import space_of

FLAT = Surprise(0.1, (0.05**2,), (1.0,))
TURNING = Surprise(0.1, (0.05**2, 0.02**2), (1.0, 0.2**2))
STEADY = Surprise(1e-4, (0.05**2, 0.05**2), (1.0, 0.2**2))
"""Steps that hardly ever go otherwise, but turn a little more or less than planned."""
HEADING = space_of(3)
SURE = 1e9
"""Log-odds beyond any doubt."""


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def walked(start, plan):
    """Poses after each of the displacements."""
    poses, pose = [], start
    for t in range(plan.shape[1]):
        pose = space_of(plan.shape[-1]).step(pose, plan[:, t])
        poses.append(pose)
    return torch.stack(poses, 1)


def sights_of(steps, size, seen, past=0, noise=1e-3, log_odds=SURE):
    """Step t sees `seen[t]`: an entry, and where from there it is; other steps see nothing."""
    groups = 2 if size == 3 else 1
    index = torch.zeros(1, steps, 1, dtype=torch.int64)
    odds = torch.full((1, steps, 1), -math.inf, dtype=torch.float64)
    offset = torch.zeros(1, steps, 1, size, dtype=torch.float64)
    for t, (entry, from_there) in seen.items():
        assert entry < past + t
        index[0, t, 0], odds[0, t, 0], offset[0, t, 0] = entry, log_odds, tensor(from_there)
    return Sights(index, odds, offset, torch.full((1, steps, 1, groups), noise, dtype=torch.float64))


def close_in(pose, *rest):
    """`close_loops` in the space of these poses."""
    return close_loops(space_of(pose.shape[-1]), pose, *rest)


def nothing(size):
    return torch.zeros(1, 0, size, dtype=torch.float64)


def test_a_net_of_equal_threads_spreads_the_error_evenly():
    """Four steps of 1 that a fifth thread, as stiff, says are 3 together: every one of five is off by 1/5."""
    pull = tensor([[[0.0], [0.0], [0.0], [1.0]]])
    net = _Net.of(torch.ones(1, 4, dtype=torch.float64), torch.full((1, 4, 1), -1), pull)
    moved, factor = net.relax(torch.zeros(1, 4, 1, dtype=torch.float64), torch.ones(1, 4, 1, 1, dtype=torch.float64))
    spread = torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1)
    assert spread.flatten().tolist() == pytest.approx([0.8, 1.2, 1.2, 0.8])  # of a bridge of five steps
    assert moved.flatten().tolist() == pytest.approx([-0.2, -0.4, -0.6, -0.8])


def test_a_net_tied_to_itself_lies_where_its_energy_is_least():
    generator = torch.Generator().manual_seed(0)
    off_plan, stiff = torch.randn(2, 6, 2, generator=generator).double(), torch.rand(2, 6, generator=generator).double()
    index = torch.stack([torch.randint(-3, t, (2, 2), generator=generator) for t in range(6)], 1)
    off_sight = torch.randn(2, 6, 2, 2, generator=generator).double()
    pull = torch.rand(2, 6, 2, generator=generator).double()
    x = _Net.of(stiff, index, pull).relax(off_plan, off_sight)[0].requires_grad_()
    every = torch.cat([torch.zeros_like(x[:, :3]), x], 1)
    seen = torch.stack([every[i, index[i] + 3] for i in range(2)])
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    energy = (stiff * (x - before + off_plan).square().sum(-1)).sum()
    energy = energy + (pull * (x[:, :, None] - seen + off_sight).square().sum(-1)).sum()
    energy.backward()
    torch.testing.assert_close(x.grad, torch.zeros_like(x.grad), rtol=0, atol=1e-10)


def test_a_closed_loop_spreads_the_error_over_all_steps_alike():
    plan = tensor([[1.1, 0.0]]).expand(10, 2)[None]
    start = torch.zeros(1, 2, dtype=torch.float64)
    seen = sights_of(10, 2, {9: (0, (10.0, 0.0))}, past=1, noise=1e-5)
    pose = close_in(walked(start, plan), start, plan, seen, start[:, None], FLAT)[0]
    steps = pose.diff(dim=0, prepend=start)
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=0, atol=1e-9)
    torch.testing.assert_close(pose[9], tensor([10.0, 0.0]), rtol=0, atol=1e-3)


def test_an_error_that_one_step_made_is_left_to_the_few_around_it():
    """Right until step 10, 1 too far right after it: what is seen before and after says so."""
    plan = tensor([[1.0, 0.0]]).expand(20, 2)[None].clone()
    start = torch.zeros(1, 2, dtype=torch.float64)
    true = walked(start, plan)
    true[:, 10:, 0] -= 1
    seen = {t: (0, tuple(true[0, t].tolist())) for t in (8, 9, 10, 11, 12, 19)}
    sights = sights_of(20, 2, seen, past=1)
    pose = close_in(walked(start, plan), start, plan, sights, start[:, None], FLAT)
    torch.testing.assert_close(pose, true, rtol=0, atol=0.05)


@pytest.mark.parametrize("size", [2, 3])
def test_perfect_steps_and_true_sights_stay_put(size):
    generator = torch.Generator().manual_seed(1)
    plan = torch.randn(1, 12, size, generator=generator).double()
    start = torch.randn(1, size, generator=generator).double()
    pose = walked(start, plan)
    past = pose[:, [3]] + 0.0
    seen = {5: (0, (0.0,) * size)}
    sights = sights_of(12, size, seen, past=1)
    sights.offset[0, 5, 0] = displaced(past[0, 0], pose[0, 5])
    sights.index[0, 9, 0], sights.log_odds[0, 9, 0] = 3, SURE
    sights.offset[0, 9, 0] = displaced(pose[0, 2], pose[0, 9])
    closed = close_in(pose, start, plan, sights, past, TURNING if size == 3 else FLAT)
    torch.testing.assert_close(closed, pose, rtol=0, atol=1e-9)


def displaced(before, after):
    """The step between two poses in the frame of the first."""
    if len(before) == 2:
        return after - before
    (x, y, turn), c, s = after - before, before[2].cos(), before[2].sin()
    return torch.stack([c * x + s * y, c * y - s * x, turn])


@pytest.mark.parametrize("size", [2, 3])
def test_an_absurd_sight_is_ignored(size):
    plan = tensor([[0.3, 0.1, 0.05][:size]]).expand(10, size)[None]
    start = torch.zeros(1, size, dtype=torch.float64)
    pose = walked(start, plan)
    seen = sights_of(10, size, {9: (0, (40.0, -30.0, 0.0)[:size])}, past=1, log_odds=3.0)
    closed = close_in(pose, start, plan, seen, start[:, None], TURNING if size == 3 else FLAT)
    torch.testing.assert_close(closed, pose, rtol=0, atol=1e-6)


def test_where_nothing_is_seen_every_step_stays_as_it_was_planned():
    plan = tensor([[0.3, 0.1, 0.4]]).expand(7, 3)[None]
    start = tensor([[1.0, 2.0, 3.0]])
    pose = walked(start, plan)
    closed = close_in(pose, start, plan, sights_of(7, 3, {}), nothing(3), TURNING)
    torch.testing.assert_close(closed, pose, rtol=0, atol=1e-9)


def test_what_was_on_the_map_before_stays_and_the_walk_comes_to_it():
    plan = tensor([[1.0, 0.0]]).expand(5, 2)[None]
    start, past = torch.zeros(1, 2, dtype=torch.float64), tensor([[[5.0, 0.4]]])
    kept = past.clone()
    seen = sights_of(5, 2, {4: (0, (0.0, 0.0))}, past=1, noise=1e-5)
    pose = close_in(walked(start, plan), start, plan, seen, past, FLAT)
    assert torch.equal(past, kept)
    torch.testing.assert_close(pose[0, 4], past[0, 0], rtol=0, atol=1e-2)


def test_recognising_an_own_step_moves_both():
    """The first step was 1 too short, which only the map of before can tell, and the last step only the first."""
    plan = tensor([[2.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])[None]
    start, past = torch.zeros(1, 2, dtype=torch.float64), tensor([[[3.0, 0.0]]])
    seen = sights_of(3, 2, {0: (0, (0.0, 0.0)), 2: (1, (0.0, 0.0))}, past=1, noise=1e-6)
    pose = close_in(walked(start, plan), start, plan, seen, past, FLAT)
    torch.testing.assert_close(pose, tensor([[[3.0, 0.0], [4.0, 0.0], [3.0, 0.0]]]), rtol=0, atol=1e-2)


def test_a_square_walked_with_a_biased_turn_closes():
    """Two rounds; who walks them turns 3 degrees too far a step, and recognises the first round in the second."""
    side = tensor([[1.0, 0.0, 0.0]] * 3 + [[1.0, 0.0, math.pi / 2]])
    true_plan = side.repeat(8, 1)[None]
    biased = true_plan + tensor([0.0, 0.0, math.radians(3)])
    start = torch.zeros(1, 3, dtype=torch.float64)
    true, reckoned = walked(start, true_plan), walked(start, biased)
    seen = {t: (t - 16, (0.0, 0.0, 2 * math.pi)) for t in range(16, 32)}
    closed = close_in(reckoned, start, biased, sights_of(32, 3, seen), nothing(3), STEADY)
    off, was_off = ((pose - true)[0, :, :2].norm(dim=-1) for pose in (closed, reckoned))
    torch.testing.assert_close(closed[:, 16:, :2], closed[:, :16, :2], rtol=0, atol=0.05)
    assert was_off.max() > 3
    assert off.mean() < 0.3 * was_off.mean()


def test_walks_side_by_side_do_not_hear_of_each_other():
    generator = torch.Generator().manual_seed(2)
    plan = torch.randn(3, 6, 2, generator=generator).double()
    start = torch.zeros(3, 2, dtype=torch.float64)
    one = sights_of(6, 2, {5: (0, (0.0, 0.3))}, past=0)
    sights = Sights(*(part.repeat(3, *[1] * (part.dim() - 1)) for part in one))
    pose = walked(start, plan)
    together = close_in(pose, start, plan, sights, nothing(2).expand(3, 0, 2), FLAT)
    for i in range(3):
        alone = close_in(pose[[i]], start[[i]], plan[[i]], one, nothing(2), FLAT)
        torch.testing.assert_close(together[[i]], alone, rtol=0, atol=1e-9)


def watched(steps=12, loop=(0.0, 0.0, 0.0), added=1e-6, bump=None, start=0.0):
    """A walk straight on, of which one step or the start was uncertain; the last step sees how it lies from an entry.

    The first sight of each step is that of the last frame, which was heard when the step was watched.
    """
    plan = tensor([[1.0, 0.0, 0.0]]).expand(steps, 3)[None]
    here, noise = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, steps, 2), added, dtype=torch.float64)
    if bump is not None:
        noise[:, bump] = 0.1
    sights = sights_of(steps, 3, {steps - 1: (0, loop)}, past=1, noise=1e-4)
    last = sights_of(steps, 3, {t: (t, (0.5, 0.5, 0.5)) for t in range(1, steps)}, past=1, noise=1e-4)
    both = Sights(*(torch.cat(parts, 2) for parts in zip(last, sights, strict=True)))
    pose = walked(here, plan)
    closed = close_watched_loops(HEADING, pose, here, tensor([[start, 0.0]]), Watched(plan, noise), both, here[:, None])
    return pose, *closed


def test_of_watched_steps_the_uncertain_one_takes_the_error_of_a_loop():
    """The walk is 0.8 short and 0.3 to the left: step 4 may have bumped, the others went as planned."""
    pose, closed, variance = watched(loop=(11.2, 0.3, 0.0), bump=4)
    torch.testing.assert_close(closed[:, :4], pose[:, :4], rtol=0, atol=1e-3)
    torch.testing.assert_close(closed[:, 4:], pose[:, 4:] + tensor([-0.8, 0.3, 0.0]), rtol=0, atol=0.02)
    assert variance[0, 3, 0] < 1e-5 and variance[0, 4:, 0].max() < 2e-3  # 0.1 before the loop was closed


def test_watched_steps_that_went_as_planned_give_way_to_no_sight():
    pose, closed, variance = watched(loop=(11.98, 0.01, 0.0))
    torch.testing.assert_close(closed, pose, rtol=0, atol=2e-3)
    assert (variance <= 1.3e-5).all()


def test_a_start_that_is_uncertain_moves_with_the_walk():
    """The last step says that the walk lies 0.4 to the left; no step can have led there."""
    pose, closed, variance = watched(loop=(12.0, 0.4, 0.0), start=0.1)
    torch.testing.assert_close(closed, pose + tensor([0.0, 0.4, 0.0]), rtol=0, atol=0.02)
    assert (variance[..., 0] < 2e-3).all()


def test_watched_steps_of_single_precision_are_closed_as_those_of_double():
    """Their variances differ by many orders of magnitude."""
    start, plan = torch.zeros(1, 3), torch.tensor([[0.1, 0.0, 0.02]]).expand(200, 3)[None]
    pose, added = walked(start, plan), torch.full((1, 200, 2), 1e-7)
    added[:, 50] = 0.01
    sights = sights_of(200, 3, {199: (0, (1.0, -0.3, 4.0))}, past=1, noise=1e-3)
    sights = Sights(sights.index.expand(1, 200, 2), *(torch.cat([x, x], 2) for x in sights[1:]))
    sights.log_odds[:, :, 0] = -math.inf
    given = pose, start, added[:, 0], Watched(plan, added), sights, start[:, None]
    (double, _), (closed, variance) = (
        close_watched_loops(HEADING, *in_(given, torch.float64)),
        close_watched_loops(HEADING, *in_(given, torch.float32)),
    )
    assert closed.dtype == variance.dtype == torch.float32
    torch.testing.assert_close(closed.double(), double, rtol=0, atol=1e-5)


def in_(parts, dtype):
    """All numbers in this precision."""
    if isinstance(parts, torch.Tensor):
        return parts.to(dtype) if parts.is_floating_point() else parts
    return type(parts)(*(in_(x, dtype) for x in parts)) if hasattr(parts, "_fields") else [in_(x, dtype) for x in parts]
