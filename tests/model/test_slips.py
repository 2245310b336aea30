"""How often steps slip, learned on the way."""

import pytest
import torch

from gtmsm.model.slips import LEAST, MOST, Habits, Slips

HABITS = Habits((0.02, 0.01), worth=10.0, again=0.8)


def after(*slipped, habits=HABITS):
    """The chances that the next step slips and the next turn does, after steps that did with these probabilities."""
    slips = Slips.none(torch.zeros(1, 2, dtype=torch.float64))
    for step in slipped:
        slips = slips.then(torch.tensor([step], dtype=torch.float64))
    return slips.chance(habits)[0].tolist()


MADE, MISSED = (0.0, 0.0), (1.0, 0.0)


def test_before_a_walk_steps_slip_as_often_as_was_said():
    assert after() == pytest.approx([0.02, 0.01])


def test_a_walker_that_never_slips_is_believed_ever_more():
    assert after(*[MADE] * 10) == pytest.approx([0.01, 0.005])  # as much evidence as was there before
    assert after(*[MADE] * 10_000) == pytest.approx([LEAST, LEAST])  # but never blindly


def test_a_walker_that_slips_every_tenth_step_is_soon_expected_to():
    position, turn = after(*([MADE] * 9 + [MISSED]) * 5, MADE)
    assert position == pytest.approx(0.1, abs=0.02)
    assert turn < 0.01


def test_after_a_slip_another_is_expected_and_after_a_wrong_turn_no_other():
    assert after(MADE, MISSED)[0] == pytest.approx(0.8)
    assert after(MADE, (0.5, 0.0))[0] == pytest.approx(0.5 * 0.8 + 0.5 * (0.2 + 0.5) / 12)
    assert after(MADE, (0.0, 1.0))[1] == pytest.approx((0.1 + 1) / 12)


def test_slips_in_a_row_are_one_slip_that_lasts():
    once, long = after(MISSED, MADE), after(*[MISSED] * 30, MADE)
    assert long == pytest.approx([once[0], 0.1 / (10 + 31)])


def test_even_one_that_always_slips_may_go_as_planned():
    assert after(*[MISSED, MADE] * 500)[0] == pytest.approx(MOST)


def test_what_is_not_learned_stays_as_it_was_said():
    assert after(*[MISSED] * 50, habits=Habits((0.02, 0.01), again=0.8)) == pytest.approx([0.02, 0.01])


def test_a_column_of_memory_holds_all_of_it():
    slips = Slips(*(torch.rand(2, 2, generator=torch.Generator().manual_seed(i)) for i in range(3)))
    assert all(torch.equal(*pair) for pair in zip(Slips.of_column(slips.column), slips, strict=True))


def test_who_begins_elsewhere_remembers_how_often_it_slips_and_not_that_it_just_did():
    slips = Slips.none(torch.zeros(1, 1)).then(torch.ones(1, 1)).at_rest()
    assert slips.chance(Habits((0.02,), 10.0, 0.8)).item() == pytest.approx(1.2 / 11)
