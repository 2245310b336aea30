"""Walks from unknown starts: where they began, and where they have ended."""

import math

import pytest
import torch

from gtmsm.model import landmark
from gtmsm.model.bearings import moved_to_end
from gtmsm.model.landmark import Known, Landmarks
from gtmsm.model.landmark_filter import Track, Watched
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.recognition import LandmarkConfig, Match
from gtmsm.model.rendering import render_and_compare
from gtmsm.pose import PlaneWithHeading
from gtmsm.tensors import Gaussian, gather

CODE, ACTIONS = 4, 5


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def landmarks_of(kind="free", **settings):
    torch.manual_seed(0)
    motion = build_motion(MotionConfig(kind=kind, noise=0.3, hidden=8), ACTIONS).double()
    return Landmarks(LandmarkConfig(form="bayes", width=8, matches=3, **settings), CODE, motion).double(), motion


def seen_from(monkeypatch, landmarks, silent):
    """Codes are places, and two views tell exactly how far apart; in memory the first views recognise nothing."""

    def told(entries, query, lookup):
        offset = query.mean[:, :, None, :2] - gather(entries.mean, lookup.index)[..., :2]
        odds = torch.full_like(lookup.distance, 20.0)
        if entries.mean.shape[1] == silent[0]:  # looked up in memory alone
            odds[:, : silent[1]] = -20.0
        return Match(odds, offset, torch.full_like(offset[..., :1], 1e-4))

    monkeypatch.setattr(landmarks.compare, "forward", told)
    monkeypatch.setattr(landmarks.compare, "confidence", lambda odds, noise, distance: odds.amax(-1))


@torch.no_grad()
@pytest.mark.parametrize("watch", [True, False])
def test_an_unknown_start_is_found_along_the_steps_that_were_watched(monkeypatch, watch):
    """Every third step fails, and the first ten frames are like nothing in memory."""
    settings = {"surprise": 0.2, "steady": 0.01, "stray": 2.0, "doubt": 0.0, "tolerance": 0.2, "recent": 20}
    landmarks, motion = landmarks_of(kind="free", watch=watch, **settings)
    memory, steps, start = 3 * drawn(2, 30, 2, seed=7), 16, drawn(2, 2, seed=8)
    seen_from(monkeypatch, landmarks, (30, 10))
    a = drawn(2, steps, ACTIONS, seed=9)
    made = (torch.arange(steps) % 3 != 1).double()[:, None]  # the first one does not: no frame came before it
    path = start[:, None] + (made * (a @ motion.M.T)).cumsum(1)

    past = Known.whole(memory, torch.zeros(2, 30, 1).double(), as_code(memory))
    lost = landmarks.ignorance(2, start)
    trace = landmarks.trace(motion, motion.start(2), lost, a, as_code(path), past, closure=0)
    assert ((trace.start - start).norm(dim=-1) < 0.1).all() == watch
    assert landmarks.looks == (32 if watch else 8)
    at_home = landmarks.trace(motion, motion.start(2), 0 * lost, a, as_code(path), past, closure=0)
    before = [found.sights.log_odds[:, 0, 0].isfinite().tolist() for found in (trace, at_home)]
    assert before == [[False, False], [True, True]]  # who is put somewhere has not been where memory ends


def as_code(place):
    """A code that is the place itself."""
    return Gaussian(
        torch.cat([place, torch.zeros_like(place)], -1), torch.full((*place.shape[:2], CODE), -7.0).double()
    )


def blind_to_steps(monkeypatch, landmarks, entries):
    """Only memory alone, of so many entries, tells where a view was seen: what goes wrong on the way is missed."""

    def told(known, query, lookup):
        offset = query.mean[:, :, None, :2] - gather(known.mean, lookup.index)[..., :2]
        odds = torch.full_like(lookup.distance, 20.0 if known.mean.shape[1] == entries else -20.0)
        return Match(odds, offset, torch.full_like(offset[..., :1], 1e-4))

    monkeypatch.setattr(landmarks.compare, "forward", told)
    monkeypatch.setattr(landmarks.compare, "confidence", lambda odds, noise, distance: odds.amax(-1))


SEARCHED = {
    "surprise": 0.01,
    "steady": 0.001,
    "stray": 0.1,
    "doubt": 0.0,
    "tolerance": 0.2,
    "rendered": 3,
    "watch": True,
}


@torch.no_grad()
@pytest.mark.parametrize("closure", [0, 5])
@pytest.mark.parametrize("carried", [0.0, 2.0])
def test_who_was_carried_away_unnoticed_is_found_by_the_last_views(monkeypatch, carried, closure):
    landmarks, motion = landmarks_of(kind="free", **SEARCHED)
    memory, start, steps = 3 * drawn(2, 30, 2, seed=7), drawn(2, 2, seed=8), 20
    blind_to_steps(monkeypatch, landmarks, 30)
    a = drawn(2, steps, ACTIONS, seed=9)
    path = start[:, None] + (a @ motion.M.T).cumsum(1)
    path[:, 10:] += carried
    past, lost = Known.whole(memory, torch.zeros(2, 30, 1).double(), as_code(memory)), landmarks.ignorance(2, start)

    def follow(show):
        return landmarks.trace(motion, motion.start(2), lost, a, as_code(path), past, closure=closure, show=show)

    seeing, blind = follow(as_code), follow(None)
    torch.testing.assert_close(seeing.track.state[:, -1], path[:, -1], rtol=0, atol=0.02)
    assert (seeing.track.variance[:, -1].sqrt() < 0.05).all()
    assert torch.equal(seeing.believed[:, -1], seeing.track.state[:, -1])
    off = (blind.track.state[:, -1] - path[:, -1]).norm(dim=-1)
    assert (off > 1).all() if carried else (off < 0.1).all()


def looked_at_again(landmarks, believed, true, doubted=6, show=as_code, memory=None):
    """A walk of a certain start that is believed to have gone so; of one step nobody could tell how it went."""
    added = torch.full((2, 20, 1), 1e-6).double()
    added[:, doubted], added[:, 0] = 0.1, 0.2  # the first step has no frame before it, but tells the start
    start, step = believed[:, 0] - 0.1, believed.diff(dim=1, prepend=believed[:, :1] - 0.1)
    track = Track(believed, added.cumsum(1), None, Watched(step, added))
    memory = 3 * drawn(2, 30, 2, seed=7) if memory is None else memory
    past = Known.whole(memory, torch.zeros(2, 30, 1).double(), show(memory))
    return landmarks._look_again(start, 0 * added[:, 0], track, track.watched, show(true), past, show)


@torch.no_grad()
def test_only_steps_after_the_one_that_went_wrong_are_moved_by_the_last_views(monkeypatch):
    landmarks, _ = landmarks_of(kind="free", **SEARCHED)
    blind_to_steps(monkeypatch, landmarks, 30)
    believed = 0.3 * drawn(2, 20, 2, seed=8).cumsum(1)
    true = believed.clone()
    true[:, 6:] += torch.tensor([0.8, -0.5])
    start, moved = looked_at_again(landmarks, believed, true)
    torch.testing.assert_close(moved.state, true, rtol=0, atol=0.02)
    torch.testing.assert_close(start, believed[:, 0] - 0.1, rtol=0, atol=0.02)
    steps = torch.cat([start[:, None], moved.state], 1).diff(dim=1)
    torch.testing.assert_close(moved.watched.step, steps)  # by which loops are closed later
    assert (moved.variance[:, -1].sqrt() < 0.05).all() and (moved.variance[:, 2] < 1).all()


@torch.no_grad()
def test_who_has_seen_nothing_that_memory_shows_stays_where_it_is_believed(monkeypatch):
    landmarks, _ = landmarks_of(kind="free", **SEARCHED)
    blind_to_steps(monkeypatch, landmarks, 30)
    believed = 0.3 * drawn(2, 20, 2, seed=8).cumsum(1)
    monkeypatch.setattr(landmark, "render_and_compare", lambda *given: render_and_compare(nowhere, *given[1:]))

    def nowhere(pose):
        return as_code(pose + 50)

    _, moved = looked_at_again(landmarks, believed, believed)
    torch.testing.assert_close(moved.state, believed, rtol=0, atol=1e-12)


@torch.no_grad()
def test_who_walks_where_places_look_alike_is_not_moved_to_another_one(monkeypatch):
    """Views come again every two units, and all of them vote."""
    landmarks, _ = landmarks_of(kind="free", **SEARCHED)
    blind_to_steps(monkeypatch, landmarks, 30)

    def view(place):
        turn = math.pi * place
        return Gaussian(torch.cat([turn.cos(), turn.sin()], -1), torch.full((*place.shape[:2], CODE), -7.0).double())

    monkeypatch.setattr(landmarks.compare, "forward", voted_everywhere)
    believed = 0.1 * drawn(2, 20, 2, seed=8).cumsum(1)
    _, moved = looked_at_again(
        landmarks, believed, believed + 0.02, show=view, memory=2.0 * drawn(2, 30, 2, seed=7).round()
    )
    assert (moved.state[:, -1] - believed[:, -1]).abs().max() < 0.1


def voted_everywhere(known, query, lookup):
    """Of views that come again every two units: each entry names the place near itself that looks like this."""
    angle = [torch.atan2(code[..., 2:], code[..., :2]) / math.pi for code in (query.mean, known.mean)]
    offset = angle[0][:, :, None] - gather(angle[1], lookup.index)
    return Match(torch.full_like(lookup.distance, 20.0), offset, torch.full_like(offset[..., :1], 1e-4))


@torch.no_grad()
def test_nobody_who_looks_for_a_start_is_stopped_by_walls_around_another_place():
    motion = build_motion(MotionConfig(kind="walled", fence=3.0), ACTIONS).double()
    landmarks = Landmarks(LandmarkConfig(form="bayes", width=8, matches=3), CODE, motion).double()
    motion.M.copy_(torch.eye(2, ACTIONS))
    ahead = torch.eye(ACTIONS)[:1].double().expand(8, -1)[None]
    assert motion.unroll(motion.start(1), ahead)[0, -1].norm() < 4
    path, chance = landmarks._first_steps(motion, ahead, as_code(drawn(1, 8, 2)), landmarks.surprise)
    torch.testing.assert_close(path[0, -1], torch.tensor([8.0, 0.0]).double())
    assert chance == landmarks.surprise.chance


@torch.no_grad()
@pytest.mark.parametrize(("guess", "chance"), [(True, 0.9), (False, 0.1)])
def test_of_unknown_actions_none_is_trusted_when_a_start_is_looked_for(monkeypatch, guess, chance):
    landmarks, motion = landmarks_of(surprise=0.1)
    memory, told, look = drawn(1, 30, 2), list[float](), landmark.locate_starts
    monkeypatch.setattr(landmark, "locate_starts", lambda *given: told.append(given[2]) or look(*given))
    past, lost = Known.whole(memory, torch.zeros(1, 30, 1).double(), as_code(memory)), landmarks.ignorance(1, memory)
    code = as_code(drawn(1, 8, 2, seed=1))
    landmarks.trace(motion, motion.start(1), lost, drawn(1, 8, ACTIONS), code, past, guess=guess)
    assert told == [chance]


@torch.no_grad()
@pytest.mark.parametrize("guess", [True, False])
def test_a_long_lost_walk_whose_loops_are_not_closed_is_located_once_more(monkeypatch, guess):
    landmarks, motion = landmarks_of(closure=64, **SEARCHED)
    blind_to_steps(monkeypatch, landmarks, 30)
    again = list[int]()
    monkeypatch.setattr(
        landmarks, "_look_again", lambda start, doubt, track, *others: again.append(1) or (start, track)
    )
    memory, walk = 3 * drawn(2, 30, 2, seed=7), 0.05 * drawn(2, 40, 2, seed=8).cumsum(1)
    past = Known.whole(memory, torch.zeros(2, 30, 1).double(), as_code(memory))
    lost = landmarks.ignorance(2, memory)
    landmarks.trace(
        motion, motion.start(2), lost, drawn(2, 40, ACTIONS), as_code(walk), past, guess=guess, show=as_code
    )
    assert bool(again) == guess  # where actions are known, loops are closed


def test_the_start_is_as_uncertain_as_the_first_steps_disagree():
    landmarks, _ = landmarks_of(kind="turning", reach=3.0, stray=0.5, stray_turn=0.2)
    variance = landmarks._start_variance(torch.tensor([[1.0], [0.0], [0.25]], dtype=torch.float64))
    turn = math.pi**2 / 3
    expected = [[0.25, 0.04], [9.0, turn], [0.25 * 0.25 + 0.75 * 9, 0.25 * 0.04 + 0.75 * turn]]
    torch.testing.assert_close(variance, torch.tensor(expected, dtype=torch.float64))


def test_a_start_that_some_steps_agree_on_is_believed_where_views_judge_it():
    landmarks, _ = landmarks_of(kind="turning", reach=3.0, stray=0.5, stray_turn=0.2, rendered=2)
    variance = landmarks._start_variance(torch.tensor([[0.25], [0.04]], dtype=torch.float64))
    torch.testing.assert_close(variance, torch.tensor([[0.25, 0.04], [9.0, math.pi**2 / 3]], dtype=torch.float64))


def test_a_walk_is_moved_from_its_doubtful_step_on_or_evenly_where_there_is_none():
    space, pose = PlaneWithHeading(), drawn(1, 5, 3)
    added = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [0.0, 0.3], [2.0, 0.0], [0.0, 0.0]]]).double()
    end = pose[:, -1] + torch.tensor([1.0, -2.0, 0.5])
    moved, share = moved_to_end(space, pose, end, added)
    torch.testing.assert_close(share[0, :, 0], torch.tensor([0.0, 0, 0, 1, 1]).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(share[0, :, 1], torch.tensor([0.0, 0, 1, 1, 1]).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(moved[:, -1], end)
    torch.testing.assert_close(moved[:, :2], pose[:, :2], rtol=0, atol=1e-9)
    rigid, _ = moved_to_end(space, pose, end, torch.tensor([[1.0] + [0.0] * 4]).double()[..., None].expand(1, 5, 2))
    steps = [space.displacement(path[:, :-1], path[:, 1:]) for path in (pose, rigid)]
    torch.testing.assert_close(steps[1], steps[0], rtol=0, atol=1e-9)  # all of it, with its heading
    even, share = moved_to_end(space, pose, end, torch.zeros(1, 5, 2).double())
    torch.testing.assert_close(share[0, :, 0], torch.arange(1, 6).double() / 5)
