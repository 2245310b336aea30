"""What landmarks come to in rooms is told in words."""

from typing import Any

from gtmsm.evaluation.long_walks import found_in_rooms, kinds_of_walks, late


def walks(off: float, **more: Any) -> dict[str, Any]:
    """Scores of walks that are so far off, ten times as far by actions alone."""
    curve = {"within_by_step": [1.0] * 1000}
    return {
        "landmarks": {"position_error_relative_late": off, "heading_error_late": 0.6, **curve},
        "dead_reckoning": {"position_error_relative_late": 10 * off, "heading_error_late": 0.4, **curve},
    } | more


RECOGNISED = {
    "unknown_start": {"within": 0.8, "within_by_step": [0.8] * 20, "trials": 64},
    "localise": {"top1_visited": None, "visited": 0},
}


def test_each_kind_of_walk_is_told_by_the_errors_of_its_last_steps():
    scores = {"slip": [walks(0.031, probability=0.0), walks(0.074, probability=0.1)], "bump": None, **RECOGNISED}
    careful = scores | {"careful": walks(0.007) | RECOGNISED}
    told = found_in_rooms(careful)
    assert "last 300 of 1,000 steps" in told and "never closed, by actions alone" in told
    for part in (
        "no slip, bumps 3.1% 0.6°, 31.0% 0.4°", "10% slip, bumps 7.4% 0.6°", "no slip, no bumps 0.7% 0.6°, 7.0% 0.4°",
        "known after 20 steps: 80% of 64", "known after 20 steps without bumps: 80% of 64", "placed: – of 0",
    ):  # fmt: skip
        assert part in told
    assert "bumps" not in found_in_rooms(scores)


def test_a_walker_that_avoids_obstacles_is_also_scored_where_it_bumps():
    scores = {"slip": [walks(0.01, probability=0.0)], "bump": walks(0.03)}
    assert [name for name, _ in kinds_of_walks(scores)] == ["no slip", "bumps, no slip"]


def test_scores_of_images_and_of_before_have_no_such_errors():
    assert found_in_rooms({"slip": [{"landmarks": {"within_by_step": [1.0]}}]}) == ""


def test_of_few_steps_at_least_the_last_counts():
    assert [late(steps) for steps in (1, 10, 1000)] == [1, 3, 300]
