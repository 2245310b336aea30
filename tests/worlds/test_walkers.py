"""Policies: which actions are chosen, and for how long they are held."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gtmsm.errors import InputError
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.physics import ACTIONS, IDLE
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import (
    PoissonWalker,
    PoissonWalkerConfig,
    SpinWalker,
    SpinWalkerConfig,
    held_actions,
    poisson_lower,
)

CPU = torch.device("cpu")
LEFT, RIGHT = ACTIONS.index("turn left"), ACTIONS.index("turn right")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def agents(n):
    """A world of so many agents."""
    world = ImageWalk(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), ImageWalkConfig())
    world.reset(n)
    return world


def roommates(n):
    """So many agents that can turn."""
    world = Rooms(draw_floorplans("room", 2, 0, load_textures("procedural"), 0), RoomsConfig())
    world.reset(n)
    return world


def run_lengths(row):
    """Lengths of the stretches of equal numbers, without the last, which the end cuts off."""
    edges = np.flatnonzero(np.diff(row)) + 1
    return np.diff(np.concatenate([[0], edges]))


@pytest.mark.parametrize("mean", [0.0, 0.1, 1.0, 3.0, 40.0, 1000.0])
def test_the_table_is_the_poisson_distribution(mean):
    table = poisson_lower(mean, CPU)
    expected = stats.poisson.cdf(np.arange(len(table)) - 1, mean)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("mean", [0.0, 0.1, 1.0, 3.0, 40.0, 1000.0])
def test_the_table_leaves_out_nothing_a_float_could_hold(mean):
    assert stats.poisson.sf(len(poisson_lower(mean, CPU)) - 2, mean) < 2**-53


@pytest.mark.parametrize(
    "shape", [(1, 1, 3.0), (3, 7, 0.0), (4, 129, 3.0), (2, 9, 1000.0), (2, 300, 40.0), (0, 3, 1.0)]
)
def test_choices_follow_each_other_and_each_is_done_as_often_as_its_uniform_number_says(shape):
    n, time, mean = shape
    choices = torch.randint(1_000_000, (n, time), generator=seeded())
    uniform = torch.rand(n, time, dtype=torch.float64, generator=seeded(1))
    table = poisson_lower(mean, CPU)
    for row, numbers, actions in zip(choices.tolist(), uniform, held_actions(choices, uniform, table), strict=True):
        by_hand = [a for a, u in zip(row, numbers, strict=True) for _ in range(int((table <= u).sum()))]
        assert actions.tolist() == by_hand[: len(row)]


def test_a_uniform_number_that_is_an_entry_of_the_table_counts_it():
    table = torch.tensor([0, 0.25, 0.5, 1.0], dtype=torch.float64)
    uniform = torch.tensor([[0.25, 0.2, 0.5, 0.0]], dtype=torch.float64)
    assert held_actions(torch.tensor([[5, 6, 7, 8]]), uniform, table).tolist() == [[5, 5, 6, 7]]


@pytest.mark.parametrize("mean", [0.5, 3.0])
def test_an_action_is_held_for_one_step_and_a_poisson_number_of_repeats(mean):
    # With a million actions to choose from, two runs in a row never share one.
    walker = PoissonWalker(PoissonWalkerConfig(mean_repeats=mean), actions=1_000_000)
    walks = walker(agents(400), 200, seeded()).numpy()
    # Only runs that begin in the first half: none of them is cut off, so long ones are not missed.
    lengths = np.concatenate([runs[np.cumsum(runs) - runs < 100] for runs in map(run_lengths, walks)])
    most = int(stats.poisson.isf(1e-3, mean))
    observed = np.bincount(np.minimum(lengths - 1, most), minlength=most + 1)
    chances = np.append(stats.poisson.pmf(np.arange(most), mean), stats.poisson.sf(most - 1, mean))
    assert stats.chisquare(observed, chances * observed.sum()).pvalue > 1e-3


def test_every_action_is_as_likely_as_any_other():
    actions = PoissonWalker()(agents(20_000), 1, seeded()).flatten()
    assert stats.chisquare(actions.bincount(minlength=5).numpy()).pvalue > 1e-3


def test_later_steps_choose_as_uniformly_as_the_first():
    actions = PoissonWalker()(agents(20_000), 40, seeded(1))[:, -1]
    assert stats.chisquare(actions.bincount(minlength=5).numpy()).pvalue > 1e-3


def test_with_no_repeats_every_step_is_a_new_choice():
    walks = PoissonWalker(PoissonWalkerConfig(mean_repeats=0.0), actions=1_000_000)(agents(50), 100, seeded())
    assert (walks[:, 1:] != walks[:, :-1]).all()


def test_with_a_thousand_repeats_a_short_walk_is_a_single_action():
    walks = PoissonWalker(PoissonWalkerConfig(mean_repeats=1000.0))(agents(50), 100, seeded())
    assert (walks == walks[:, :1]).all()


def test_the_same_seed_chooses_the_same_actions():
    walker = PoissonWalker()
    assert torch.equal(walker(agents(8), 64, seeded(7)), walker(agents(8), 64, seeded(7)))


def test_another_seed_chooses_other_actions():
    walker = PoissonWalker()
    assert not torch.equal(walker(agents(8), 64, seeded(7)), walker(agents(8), 64, seeded(8)))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 9), (5, 288)])
def test_there_is_an_action_for_every_agent_and_step(shape):
    actions = PoissonWalker()(agents(shape[0]), shape[1], seeded())
    assert actions.shape == shape
    assert actions.dtype == torch.int64
    assert actions.min() >= 0 and actions.max() < 5


@pytest.mark.parametrize("mean", [-1.0, math.nan, math.inf, 1000.5])
def test_a_mean_that_makes_no_sense_is_refused(mean):
    with pytest.raises(InputError, match="mean_repeats is .*from 0 .* to 1000"):
        PoissonWalkerConfig(mean_repeats=mean)


def test_a_walker_without_actions_is_refused():
    with pytest.raises(InputError, match="number of actions is 0"):
        PoissonWalker(actions=0)


def test_a_spin_holds_one_turn_by_a_coin_for_each_agent():
    actions = SpinWalker()(roommates(400), 50, seeded())
    assert (actions == actions[:, :1]).all()
    assert set(actions.flatten().tolist()) == {LEFT, RIGHT}
    assert 150 < (actions[:, 0] == LEFT).sum() < 250


def test_a_spin_with_pauses_also_rests_and_turns_back():
    actions = SpinWalker(SpinWalkerConfig(pauses=True))(roommates(300), 300, seeded())
    assert set(actions.flatten().tolist()) == {LEFT, RIGHT, IDLE}
    assert 0.2 < (actions == IDLE).float().mean() < 0.3
    assert (actions == LEFT).any(1).logical_and((actions == RIGHT).any(1)).float().mean() > 0.9
    assert (actions[:, 1:] == actions[:, :-1]).float().mean() > 0.9


def test_a_spin_keeps_the_agents_where_they_are():
    world = roommates(3)
    before = world.pose[:, :2]
    poses = world.travel(SpinWalker(SpinWalkerConfig(pauses=True))(world, 60, seeded()))
    assert torch.equal(poses[:, -1, :2], before)


def test_who_cannot_turn_cannot_spin():
    with pytest.raises(InputError, match='needs the action "turn left"; the world has up, down'):
        SpinWalker()(agents(1), 3, seeded())


def test_runs_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="mean_run is 0.5"):
        SpinWalkerConfig(mean_run=0.5)
