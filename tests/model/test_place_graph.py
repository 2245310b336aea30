"""Equal views are of one place: what leads from place to place counts together, and corrects the whole map."""

import math

import pytest
import torch

from gtmsm.model.landmark_filter import Sights, Surprise
from gtmsm.model.place_graph import PlaceGraph, Sameness
from gtmsm.model.pose_graph import close_loops
from gtmsm.pose import space_of

SAME = Sameness(0.01, (0.5,))
SURPRISE = Surprise(0.1, (0.05**2,), (1.0,))
PLANE = space_of(2)


def corridor(laps=4, slip=5):
    """Cells of laps to and fro over eight, and the moves planned; the first step to cell 6 was to lead to cell 5."""
    cell = ([*range(8), *range(6, 0, -1)] * laps + [0])[1:]
    plan = [float(b - a) for a, b in zip([0, *cell], cell, strict=False)]
    del cell[slip - 1], plan[slip - 1]
    return cell, plan


def sights_of(cell, first=0, before=(), views=None, k=4):
    """Each step recognises the last earlier ones of the same view; entries `before` are of the past."""
    seen = [*before, *(cell if views is None else [views.get(c, c) for c in cell])]
    index, odds = torch.zeros(len(cell), k, dtype=torch.int64), torch.full((len(cell), k), -math.inf)
    for t in range(len(cell)):
        earlier = [n for n in range(first + t) if seen[n] == seen[first + t]][-k:]
        index[t, : len(earlier)], odds[t, : len(earlier)] = torch.tensor(earlier, dtype=torch.int64), 2.0
    return Sights(index, odds, torch.zeros(len(cell), k, 2), torch.full((len(cell), k, 1), 0.01))


def line(x):
    return torch.stack([torch.tensor(x, dtype=torch.float64), torch.zeros(len(x), dtype=torch.float64)], 1)


def graph_of(pose, plan, sights, first=0, past=None, start=(0.0, 0.0)):
    graph = PlaceGraph.begin(first, torch.tensor(start), 1)
    whole = graph.then(PLANE, SAME, pose, plan, sights, (line([]) if past is None else past).__getitem__)
    return whole.closed(PLANE, SAME, SURPRISE, 2.0)


def test_a_part_of_the_map_that_lies_aside_moves_as_a_whole():
    """A slip is not noticed, and all beyond it is believed a cell aside. Single steps leave it there, once settled."""
    cell, plan = corridor()
    believed, sights = line([c - (c >= 5) for c in cell]), sights_of(cell)
    some = slice(28, None)
    last = Sights(*(x[None, some] for x in sights))
    by_steps = close_loops(
        PLANE, believed[None, some], believed[None, 27], line(plan)[None, some], last, believed[None, :28], SURPRISE
    )
    torch.testing.assert_close(by_steps[0], believed[some], rtol=0, atol=0.1)
    graph = graph_of(believed, line(plan), sights)
    assert graph.is_map
    torch.testing.assert_close(graph.poses, line(cell), rtol=0, atol=0.05)


def test_steps_taken_in_portions_make_the_same_map():
    cell, plan = corridor()
    believed, sights = line([c - (c >= 5) for c in cell]), sights_of(cell)
    graph = PlaceGraph.begin(0, torch.zeros(2), 1)
    for part in (slice(0, 20), slice(20, 21), slice(21, None)):
        graph = graph.then(
            PLANE, SAME, believed[part], line(plan)[part], Sights(*(x[part] for x in sights)), believed.__getitem__
        )
    whole = graph_of(believed, line(plan), sights)
    torch.testing.assert_close(graph.closed(PLANE, SAME, SURPRISE, 2.0).poses, whole.poses)
    assert len(graph.pose) == len(whole.pose) == 9  # eight cells, and where it set out


def test_two_places_of_one_view_stay_two():
    cell, plan = corridor()
    graph = graph_of(line(cell), line(plan), sights_of(cell, views={7: 1}))
    torch.testing.assert_close(graph.poses, line(cell), rtol=0, atol=0.05)
    assert len(graph.pose) == 9


def test_one_place_that_was_taken_for_two_becomes_one():
    cell, plan = corridor()
    lap = cell.index(1, 8)
    pose = line(cell)
    pose[lap:, 0] += 0.8  # as if a slip had not been noticed when the second lap began
    graph = PlaceGraph.begin(0, torch.zeros(2), 1).then(
        PLANE, SAME, pose, line(plan), sights_of(cell), pose.__getitem__
    )
    assert len(graph.pose) > 9
    closed = graph.closed(PLANE, SAME, SURPRISE, 2.0)
    assert len(closed.pose) == 9
    torch.testing.assert_close(closed.poses, line(cell), rtol=0, atol=0.05)


def test_entries_of_before_stay_where_they_are_and_the_walk_comes_to_them():
    cell, plan = corridor(laps=2)
    past, known = line([2.5, 3.5]), [2, 3]
    graph = graph_of(line(cell), line(plan), sights_of(cell, first=2, before=known), 2, past, start=(0.5, 0.0))
    assert torch.equal(graph.pose[graph.past[:, 1]], past)
    moved = graph.poses - line(cell)
    torch.testing.assert_close(moved, line([0.5] * len(cell)), rtol=0, atol=0.15)


def test_a_walk_that_never_leaves_places_of_before_is_a_map_with_nothing_to_correct():
    cell, plan = corridor(laps=2)
    before = sorted(set(cell))
    sights = sights_of(cell, first=len(before), before=before)
    graph = graph_of(line(cell), line(plan), sights, len(before), line(before))
    assert graph.is_map and graph.fixed.all()
    torch.testing.assert_close(graph.poses, line(cell))


def test_only_the_places_that_were_left_last_are_corrected(monkeypatch):
    cell, plan = corridor()
    believed, sights = line([c - (c >= 5) for c in cell]), sights_of(cell)
    monkeypatch.setattr("gtmsm.model.place_graph.FREE", 3)
    graph = graph_of(believed, line(plan), sights)
    off = (graph.poses - believed).norm(dim=-1)
    assert set(torch.tensor(cell)[off > 1e-6].tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(("steps", "is_back"), [(4, False), (12, True)])
def test_a_walk_is_back_where_most_of_its_new_views_are_equal_to_old_ones(steps, is_back):
    sights = Sights(*(x[None] for x in sights_of([0, 1, 2, 3] * 3)))
    assert bool(SAME.is_back(Sights(*(x[:, :steps] for x in sights)), 0)) is is_back
    resting = Sights(*(x[None] for x in sights_of([0] * 12)))
    assert not SAME.is_back(resting, 0)
