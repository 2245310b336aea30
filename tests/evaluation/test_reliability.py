"""Whether a probability can be believed."""

import json

import pytest
import torch

from gtmsm.evaluation.metrics import reliability


def test_what_comes_true_as_often_as_was_said_is_perfectly_calibrated():
    said = torch.tensor([0.25] * 4 + [0.75] * 4)
    right = torch.tensor([1, 0, 0, 0, 1, 1, 1, 0], dtype=torch.bool)
    found = reliability(said, right)
    assert found["expected_calibration_error"] == pytest.approx(0)
    assert found["count"] == [0, 0, 4, 0, 0, 0, 0, 4, 0, 0]
    assert (found["predicted"][2], found["right"][2]) == (0.25, 0.25)
    assert (found["predicted"][7], found["right"][7]) == (0.75, 0.75)


def test_who_is_always_sure_and_half_right_is_off_by_a_half():
    found = reliability(torch.ones(10), torch.arange(10) < 5)
    assert found["expected_calibration_error"] == pytest.approx(0.5)
    assert found["count"][-1] == 10, "certainty belongs to the last bin"
    assert found["right"][-1] == 0.5


def test_bins_weigh_by_what_is_in_them():
    said = torch.tensor([0.05] * 3 + [0.95])
    found = reliability(said, torch.tensor([False, False, False, False]))
    assert found["expected_calibration_error"] == pytest.approx((3 * 0.05 + 0.95) / 4)


def test_an_empty_bin_says_nothing_and_nothing_at_all_can_be_written_down():
    found = reliability(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    assert found["right"] == [None] * 10
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["edges"][0] == 0 and found["edges"][-1] == 1
