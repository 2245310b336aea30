"""The scores in a terminal."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from gtmsm.evaluation.table import (
    COLUMNS,
    CONTROLS,
    Column,
    columns_of,
    comparison_table,
    headline,
    rows,
    scores_table,
    shown,
)

SCORES = {
    "psnr_pooled": 21.333, "psnr_revisited": 25.5, "psnr_unseen": 14.0, "ssim": 0.8, "retrieval_revisited": 0.9876,
    "controls": {name: {"psnr_pooled": 10.0 + i, "retrieval_revisited": None} for i, name in enumerate(CONTROLS)},
}  # fmt: skip


IMAGE_WALK = SCORES | {"pose_r2": 0.9987, "revisited_fraction": 0.75, "converged": True}
COLOURS = {
    "floor_colour_error": 12.34,
    "wall_colour_error": 15.0,
    "psnr_seen_rooms": 24.0,
    "psnr_seen_rooms_late": 23.0,
}
ROOMS = {
    "psnr_pooled": 23.4, "psnr_revisited": 25.0, "psnr_unseen": 22.0, "ssim": 0.7, "revisited_fraction": 0.5,
    "heading_error": 0.81, "heading_error_by_step": [0.1] * 78, "position_error_relative": 0.0112,
    "controls": {
        "vae_ceiling": {"psnr_pooled": 27.0, "psnr_revisited": 28.0}, "true_pose_memory": {"psnr_pooled": 23.5},
        "copy_nearest_true_pose": {"psnr_pooled": 21.5},
    },
}  # fmt: skip


def printed(scores: dict, width: int = 100) -> str:
    return text_of(scores_table(scores), width)


def text_of(table: Table, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_model_comes_first_and_every_control_after_it():
    text = printed(SCORES)
    places = [text.index(f" {label} ") for label in ["imagined", *(row.label for row in CONTROLS.values())]]
    assert places == sorted(places)


def test_scores_are_rounded_and_shares_are_percent():
    line = next(line for line in printed(SCORES).splitlines() if " imagined " in line)
    assert line.split() == ["imagined", "21.33", "25.50", "14.00", "0.800", "98.8%"]


def test_a_score_without_meaning_is_a_dash():
    line = next(line for line in printed(SCORES).splitlines() if "last frame" in line)
    assert line.split()[-1] == "–"


def test_the_table_fits_a_terminal_of_100_columns():
    scores = SCORES | {"sampled": SCORES}
    assert max(map(len, printed(scores, width=300).splitlines())) <= 100


def test_a_pipe_gets_no_colour_codes():
    assert "\x1b" not in printed(SCORES)


def test_samples_get_a_row_only_where_there_are_some():
    assert "sampled" not in printed(SCORES)
    assert "imagined, sampled" in printed(SCORES | {"sampled": {"psnr_pooled": 20.0}})


def test_a_control_nobody_described_is_shown_all_the_same():
    scores = {"controls": {"my_own[red]": {"psnr_pooled": 12.0}}}
    assert "my own[red]" in printed(scores)
    assert [name for name, _, _ in rows(scores)] == ["imagined", "my_own[red]"]


@pytest.mark.parametrize(("value", "text"), [(100.0, "exact"), (99.994, "99.99"), (None, "–"), (float("nan"), "–")])
def test_an_exact_copy_is_called_exact_rather_than_100_db(value: float | None, text: str):
    assert shown(value, COLUMNS[0]) == text


def test_degrees_are_said_to_be_degrees():
    assert shown(0.8, Column("heading_error", "heading off", "°", 1)) == "0.8°"


def test_columns_come_with_what_is_in_them():
    keys = {name: {column.key for column in columns_of(scores)} for name, scores in
            {"images": SCORES, "room": ROOMS, "rooms": ROOMS | COLOURS}.items()}  # fmt: skip
    assert "retrieval_revisited" in keys["images"]
    assert keys["room"] == {column.key for column in COLUMNS}
    assert keys["rooms"] == keys["room"] | COLOURS.keys()


def test_a_column_that_only_a_control_fills_is_shown():
    scores = {"controls": {"vae_ceiling": {"floor_colour_error": 3.0}}}
    assert "floor_colour_error" in {column.key for column in columns_of(scores)}


def test_the_table_of_several_rooms_fits_a_terminal_of_100_columns():
    controls = {name: COLOURS | {"psnr_revisited": 20.0} for name in CONTROLS}
    lines = printed(ROOMS | COLOURS | {"controls": controls, "sampled": COLOURS}).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(" copy nearest, predicted " in line for line in lines) == 1  # in one piece


def test_in_rooms_the_headline_says_how_well_the_way_was_found_and_what_that_is_worth():
    assert headline(ROOMS) == (
        "heading 0.8° off after 78 steps, position 1.1% of the room's width; "
        "23.4 dB, 0.1 below the memory at true poses, 1.9 above copying the nearest frame"
    )


def test_a_headline_leaves_out_what_is_not_known():
    assert headline({"heading_error": 2.0, "psnr_pooled": 20.0}) == "heading 2.0° off; 20.0 dB"


def test_the_headline_of_an_agent_that_stood_still_says_nothing_of_its_position():
    assert "position" not in headline(ROOMS | {"position_error_relative": 1e-7})


def test_over_images_the_headline_speaks_of_retrieval():
    assert headline(IMAGE_WALK).startswith("right place retrieved at 98.76% of revisited steps, R² of position 0.9987")


def test_runs_of_all_worlds_stand_in_one_comparison():
    text = text_of(comparison_table({"images": IMAGE_WALK, "rooms": ROOMS}), width=120)
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["images"] == ["21.33", "25.50", "14.00", "98.8%", "–", "–", "0.9987", "–"]
    assert lines["rooms"] == ["23.40", "25.00", "22.00", "–", "0.81°", "1.12%", "–", "28.00"]
    assert "1 of 1 converged" in text


def test_convergence_is_not_spoken_of_where_it_is_not_defined():
    assert "converged" not in text_of(comparison_table({"a": ROOMS}))
