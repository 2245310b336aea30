"""The scores in a terminal."""

import io

import pytest
from rich.console import Console

from gtmsm.evaluation.table import COLUMNS, CONTROLS, rows, scores_table, shown

SCORES = {
    "psnr_pooled": 21.333, "psnr_revisited": 25.5, "psnr_unseen": 14.0, "ssim": 0.8, "retrieval_revisited": 0.9876,
    "controls": {name: {"psnr_pooled": 10.0 + i, "retrieval_revisited": None} for i, name in enumerate(CONTROLS)},
}  # fmt: skip


def printed(scores: dict, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(scores_table(scores))
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
