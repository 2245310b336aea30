"""What the page says of landmarks."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from gtmsm.evaluation.metrics import reliability
from gtmsm.evaluation.report import landmark_plots, sections
from gtmsm.evaluation.report.figure_style import svg

STEPS = 300


def way(level: float, rooms: bool) -> dict[str, Any]:
    keys = ["position_error"] + (["position_error_relative", "heading_error"] if rooms else []) + ["within"]
    return {key: level for key in keys} | {f"{key}_by_step": [level] * STEPS for key in keys}


def scores(rooms: bool = False) -> dict[str, Any]:
    def walks() -> dict[str, Any]:
        levels = {"landmarks": 0.9, "closing_loops": 0.92, "loops_closed": 0.95, "dead_reckoning": 0.2}
        return {name: way(level, rooms) for name, level in levels.items()}

    lost = {
        "trials": 8, "within": 0.5, "within_by_step": [0.25, 0.5], "trials_at_memorised": 0,
        "within_at_memorised": None, "within_at_memorised_by_step": None, "within_on_own_map": None,
        "within_on_own_map_by_step": [None, None],
    }  # fmt: skip
    looks = {
        "visited": 10, "top1_visited": 0.8, "top1_visited_on_own_map": 0.9, "known_visited": 0.7, "unvisited": 0,
        "top1_unvisited": None, "known_unvisited": None, "foreign": 6, "false_known": 0.125,
        "reliability": reliability(torch.tensor([0.1, 0.9, 0.95]), torch.tensor([False, True, True])),
    }  # fmt: skip
    slip = [{"probability": p} | walks() for p in (0.0, 0.05)]
    return {
        "slip": slip, "bump": walks() if rooms else None, "unknown_start": lost, "localise": looks, "walks": 4,
        "memorised": 64, "unit": "wall heights" if rooms else "cells", "right": "within half a cell",
    }  # fmt: skip


def test_a_model_without_landmarks_has_no_section():
    assert sections.landmarks({"psnr_pooled": 20.0}) == ()


@pytest.mark.parametrize("rooms", [False, True])
def test_a_model_with_landmarks_has_its_figures_and_its_numbers_in_words(rooms: bool):
    page = "".join(sections.landmarks({"landmarks": scores(rooms)}))
    assert re.findall(r'role="img" aria-label="([^"]+)"', page) == ["landmarks over time", "localisation"]
    assert "no slip 90.0%, 92.0%, 95.0% and 20.0%; 5% slip 90.0%, 92.0%, 95.0% and 20.0%" in page
    assert ("bumps, no slip 90.0%, 92.0%, 95.0% and 20.0%" in page) == rooms
    assert "right for 80.0% of 10" in page and "12.5% of 6 pictures of other places" in page
    assert ("heading off (degrees)" in page) == rooms


def test_counts_stand_in_the_reliability_diagram():
    text = svg(landmark_plots.localisation(scores()), "localisation")
    assert len(re.findall(r">[0-9]</text>", text)) >= 10


def test_short_curves_stay_as_they_are_and_long_ones_lose_their_teeth():
    teeth = np.tile([0.0, 1.0], 250)
    np.testing.assert_array_equal(landmark_plots.smoothed(teeth[:50]), teeth[:50])
    smooth = landmark_plots.smoothed(teeth)
    assert smooth[0] == 0
    np.testing.assert_allclose(smooth[40:], 0.5)
