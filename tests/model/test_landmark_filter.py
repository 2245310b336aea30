"""The filter of App. D with headings; for positions, see the landmark scan."""

import math

import pytest
import torch

from gtmsm.model.landmark_filter import (
    HEARD,
    Sights,
    Surprise,
    Way,
    agree,
    filter_by_steps,
    fuse,
    joined_ways,
    otherwise,
    seen_ways,
)
from gtmsm.model.slips import Habits, Slips
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
        )[:2]  # fmt: skip

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


# ---- the last frame is asked first


def watched(offset, log_odds=50.0, noise=(1e-4, 1e-4), **chosen):
    """What the last frame says of a step that was to lead 0.1 ahead and to turn by 0.2, from the origin."""
    surprise = Surprise(0.2, (1e-8, 1e-8), (0.04, 0.04), Habits((0.2, 0.05)), 3.0, **chosen)
    planned = torch.tensor([[0.1, 0.0, 0.2]], dtype=torch.float64)
    last = Sights(
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([log_odds], dtype=torch.float64),
        torch.tensor([offset], dtype=torch.float64),
        torch.tensor([noise], dtype=torch.float64),
    )
    start = torch.zeros(1, 3, dtype=torch.float64)
    ways = seen_ways(HEADING, planned, last, start, surprise, torch.tensor([[0.2, 0.05]], dtype=torch.float64))
    return ways, [math.exp(way.log_chance.item()) for way in ways]


def test_a_last_frame_that_agrees_says_that_the_step_went_as_planned():
    ways, chances = watched([0.1, 0.0, 0.2])
    assert chances[0] > 0.99 and sum(chances) == pytest.approx(1.0)
    assert ways[0].pose.flatten().tolist() == pytest.approx([0.1, 0.0, 0.2])


def test_a_step_that_was_not_made_is_seen_apart_from_a_turn_that_was():
    ways, chances = watched([0.0, 0.0, 0.2])
    assert chances.index(max(chances)) == 2 and max(chances) > 0.9  # otherwise, and turned as planned
    assert ways[2].pose.flatten().tolist() == pytest.approx([0.0, 0.0, 0.2], abs=1e-3)
    ways, chances = watched([0.1, 0.0, 0.0])
    assert chances.index(max(chances)) == 1 and max(chances) > 0.9
    assert ways[1].pose.flatten().tolist() == pytest.approx([0.1, 0.0, 0.0], abs=1e-3)


def test_a_last_frame_is_believed_no_more_than_to_the_maximum():
    """It says that no step was made: a slip, of which 1 in 20 are, or an error of its own."""
    _, without = watched([0.0, 0.0, 0.2])
    _, at_most = watched([0.0, 0.0, 0.2], surest=-12.0)
    assert without[2] > 0.9 and at_most[0] > 0.7
    assert watched([0.0, 0.0, 0.2], surest=53.0)[1] == without  # the doubt of 3 nats is added before


def test_without_a_last_frame_a_step_goes_as_often_as_expected_each_way():
    ways, chances = watched([9.0, 9.0, 3.0], log_odds=-math.inf)
    assert chances == pytest.approx([0.8 * 0.95, 0.8 * 0.05, 0.2 * 0.95, 0.2 * 0.05])
    for way in ways:
        assert way.pose.flatten().tolist() == pytest.approx([0.1, 0.0, 0.2])
    assert ways[1].fresh.flatten().tolist() == pytest.approx([1e-8, 0.04])


def test_a_watched_turn_goes_wrong_as_often_as_it_is_said_to_and_not_as_often_as_a_step():
    together = Surprise(0.2, (0.0, 0.0), (1.0, 1.0))
    apart = together._replace(habits=Habits((0.2, 0.05)))
    assert [together.mean(0), together.mean(1), apart.mean(0), apart.mean(1)] == pytest.approx([0.2, 0.2, 0.2, 0.05])
    assert apart.of_any_step().mean(1) == pytest.approx(0.9)


def agreed(sighted, log_odds, variance=1.0, noise=1e-2):
    """Where sights of entries that are known exactly put an agent that is believed to be at the origin."""
    places = torch.tensor([sighted], dtype=torch.float64)
    both = torch.full((1, len(sighted), 2), noise, dtype=torch.float64)
    odds = torch.tensor([log_odds], dtype=torch.float64)
    sure = torch.full((1, 2), variance, dtype=torch.float64)
    pose, left = agree(HEADING, torch.zeros(1, 3, dtype=torch.float64), sure, places, 0 * both, odds, both)
    return pose[0].tolist(), left[0].tolist()


def test_sights_that_agree_add_up():
    here = [0.5, 0.0, 0.1]
    one, four = (agreed([here] * n, [20.0] * n, variance=0.01) for n in (1, 4))
    # by so much of each: the precision of the belief is 100, that of a sight is 100, of which a share is heard
    for (pose, left), n in ((one, 1), (four, 4)):
        gain = n * HEARD / (1 + n * HEARD)
        assert pose == pytest.approx([gain * part for part in here])
        assert left == pytest.approx([0.01 / (1 + n * HEARD)] * 2)


def test_a_sight_that_contradicts_the_others_is_not_heard():
    here, there = [0.5, 0.0, 0.1], [-2.0, 1.0, 2.0]
    with_it, without = (agreed(places, [5.0] * len(places)) for places in ([here] * 5 + [there], [here] * 5))
    assert with_it[0] == pytest.approx(without[0], abs=1e-3)


def test_an_agent_that_is_sure_is_not_moved_by_what_it_sees():
    pose, left = agreed([[0.05, 0.0, 0.01]], [20.0], variance=1e-8)
    assert pose == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    assert left == pytest.approx([1e-8, 1e-8], rel=1e-3)


def test_where_nothing_is_recognised_the_belief_stays_as_it_was():
    pose, left = agreed([[9.0, 9.0, 3.0]], [-math.inf], variance=0.3)
    assert pose == [0.0, 0.0, 0.0] and left == pytest.approx([0.3, 0.3])


def test_a_step_that_went_in_one_of_two_ways_is_believed_between_them():
    zero, one = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[1.0, 0.0, 0.4]], dtype=torch.float64)
    half, sure = torch.full((1,), math.log(0.5), dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    pose, added = joined_ways(HEADING, zero, [Way(half, zero, sure + 0.1), Way(half, one, sure + 0.1)])
    assert pose[0].tolist() == pytest.approx([0.5, 0.0, 0.2])
    assert added[0].tolist() == pytest.approx([0.1 + 0.125, 0.1 + 0.04])  # by axis, and of the heading


@pytest.mark.parametrize("watch", [True, False])
def test_a_walker_at_a_wall_that_watches_its_steps_stays_and_another_is_led_on(watch):
    """Ten steps ahead of which the last five fail. Noisy frames; only successive ones are compared."""
    steps, made = 10, 5
    surprise = Surprise(0.2, (1e-6, 1e-8), (0.01, 0.01), Habits((0.2, 0.05)) if watch else None, 5.0)
    index = torch.arange(-1, steps - 1).clamp(min=0).view(1, steps, 1)
    log_odds = torch.full((1, steps, 1), 2.0, dtype=torch.float64)
    log_odds[:, 0] = -math.inf
    offset = torch.zeros(1, steps, 1, 3, dtype=torch.float64)
    offset[:, :made, :, 0] = 0.1
    sights = Sights(index, log_odds - 5.0, offset, torch.full((1, steps, 1, 2), 1e-4, dtype=torch.float64))
    start, nothing = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 0, 3, dtype=torch.float64)
    track = filter_by_steps(
        HEADING,
        lambda s, _: s + number(0.1, 0.0, 0.0),
        lambda _, pose: pose,
        start,
        torch.zeros(1, 2, dtype=torch.float64),
        sights,
        (nothing, nothing[..., :2]),
        surprise,
    )
    off = (track.state[0, -1] - number(0.5, 0.0, 0.0)).norm().item()
    assert off < 0.05 if watch else off > 0.2


def test_the_chance_that_a_group_went_otherwise_is_that_of_all_ways_in_which_it_did():
    ways, chances = watched([0.02, 0.0, 0.17], noise=(1e-3, 1e-3))
    assert otherwise(HEADING, ways)[0].tolist() == pytest.approx([chances[2] + chances[3], chances[1] + chances[3]])


# ---- how often steps slip, learned on the way


def clumsy(every, steps=60, worth=5.0):
    """A walk ahead of which every so many steps is not made; only successive frames are compared."""
    surprise = Surprise(0.02, (1e-6, 1e-8), (0.01, 0.01), Habits((0.02, 0.02), worth), 0.0)
    index = torch.arange(-1, steps - 1).clamp(min=0).view(1, steps, 1)
    log_odds = torch.full((1, steps, 1), 2.0, dtype=torch.float64)
    log_odds[:, 0] = -math.inf
    offset = torch.zeros(1, steps, 1, 3, dtype=torch.float64)
    offset[..., 0] = 0.1
    if every:
        offset[:, every - 1 :: every] = 0.0
    return Sights(index, log_odds, offset, torch.full((1, steps, 1, 2), 1e-4, dtype=torch.float64)), surprise


def walked(sights, surprise, begin=0, track=None):
    """The steps from `begin` on, after those of `track`."""
    nothing = torch.zeros(1, 0, 3, dtype=torch.float64)
    start, past, slips, variance = torch.zeros(1, 3, dtype=torch.float64), (nothing, nothing[..., :2]), None, None
    if track is not None:
        start, past, slips = track.state[:, -1], (track.state, track.variance), Slips.of_column(track.slips[:, -1])
        variance = track.variance[:, -1]
    return filter_by_steps(
        HEADING,
        lambda s, _: s + number(0.1, 0.0, 0.0),
        lambda _, pose: pose,
        start,
        torch.zeros(1, 2, dtype=torch.float64) if variance is None else variance,
        Sights(*(part[:, begin:] for part in sights)),
        past,
        surprise,
        slips,
    )


@pytest.mark.parametrize(("every", "expected"), [(0, 0.0), (10, 1 / 9), (4, 1 / 3)])
def test_a_walker_is_soon_expected_to_slip_as_often_as_it_does(every, expected):
    """Of the steps after one that was made."""
    sights, surprise = clumsy(every)
    slips = Slips.of_column(walked(sights, surprise).slips[:, -1])
    position, turn = slips.chance(surprise.habits)[0].tolist()
    assert position == pytest.approx(expected, rel=0.3, abs=0.01)
    assert turn < 0.01  # which never failed


def test_a_walk_in_parts_is_the_walk_in_one_call():
    sights, surprise = clumsy(7, steps=20)
    whole = walked(sights, surprise)
    first = walked(Sights(*(part[:, :8] for part in sights)), surprise)
    rest = walked(sights, surprise, 8, first)
    for one, other in zip((*whole[:3], *whole.watched), (*rest[:3], *rest.watched), strict=True):
        assert torch.equal(one[:, 8:], other)
    forgotten = walked(sights, surprise, 8, first._replace(slips=0 * first.slips))
    assert not torch.equal(whole.slips[:, 8:], forgotten.slips)


def test_slips_that_are_not_learned_are_no_column_of_memory():
    sights, surprise = clumsy(2, steps=4, worth=0.0)
    assert walked(sights, surprise).slips is None


@pytest.mark.parametrize("placed", [math.inf, 1.0])
def test_sights_of_many_places_leave_a_lost_agent_lost(placed):
    """Eight entries, 2 apart, look like what an agent sees that may be anywhere, most likely at one of them."""
    eight = torch.arange(8)
    sights = Sights(
        torch.cat([torch.tensor([7]), eight])[None, None],  # the previous frame says nothing
        torch.tensor([[[-math.inf] + [3.0] * 8]], dtype=torch.float64),
        torch.zeros(1, 1, 9, 2, dtype=torch.float64), torch.full((1, 1, 9, 1), 0.01, dtype=torch.float64),
    )  # fmt: skip
    past = torch.stack([2.0 * eight - 8, 0 * eight], -1).double()[None], torch.zeros(1, 8, 1, dtype=torch.float64)
    surprise = Surprise(0.2, (1e-4,), (1.0,), Habits((0.2,)), placed=placed)
    track = filter_by_steps(
        Plane(2), lambda s, _: s, lambda _, pose: pose, torch.zeros(1, 2, dtype=torch.float64),
        torch.full((1, 1), 16.0, dtype=torch.float64), sights, past, surprise,
    )  # fmt: skip
    assert bool(track.variance[0, -1, 0] > 10) == (placed == 1.0), track.variance  # added up, they would place it


def test_an_old_place_corrects_where_the_agent_is_and_not_how_fast_it_moves():
    """The last frame agrees with the plan; an entry of the past says that the agent is 0.3 to the left."""

    def settle(planned, pose):  # as a motion with momentum does
        return torch.cat([pose, planned[:, 3:] + (pose - planned[:, :3])[:, :2]], dim=-1)

    surprise = Surprise(0.2, (1e-4, 1e-4), (0.01, 0.01), Habits((0.2, 0.05)))
    sights = Sights(
        torch.tensor([[[1, 0]]]),
        torch.full((1, 1, 2), 20.0, dtype=torch.float64),
        torch.tensor([[[[0.1, 0.0, 0.0], [0.1, 0.3, 0.0]]]], dtype=torch.float64),
        torch.full((1, 1, 2, 2), 1e-3, dtype=torch.float64),
    )
    past = torch.zeros(1, 2, 3, dtype=torch.float64), torch.tensor([[[0.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    track = filter_by_steps(
        HEADING, lambda s, _: s + number(0.1, 0, 0, 0, 0), settle, number(0, 0, 0, 0.1, 0)[None],
        torch.ones(1, 2, dtype=torch.float64), sights, past, surprise,
    )  # fmt: skip
    x, y, _, *velocity = track.state[0, -1].tolist()
    assert [x, y] == pytest.approx([0.1, 0.3], abs=0.01)
    assert track.watched.step[0, 0].tolist() == pytest.approx([0.1, 0.0, 0.0], abs=1e-6)  # what the last frame said
    assert (track.watched.added < 0.01).all()  # of a pose of variance 1
    assert velocity == pytest.approx([0.1, 0.0], abs=1e-6)
