"""The scores in a terminal."""

import io

import pytest
from rich.console import Console, RenderableType

from gtmsm.evaluation.columns import COLUMNS, CONTROLS, Column, columns_of, rows, shown
from gtmsm.evaluation.table import comparison_table, headline, scores_table

SCORES = {
    "psnr_pooled": 21.333, "psnr_revisited": 25.5, "psnr_unseen": 14.0, "ssim": 0.8, "retrieval_revisited": 0.9876,
    "retrieval_revisited_last16": 0.95,
    "controls": {name: {"psnr_pooled": 10.0 + i, "retrieval_revisited": None} for i, name in enumerate(CONTROLS)},
}  # fmt: skip


IMAGE_WALK = SCORES | {"pose_r2": 0.9987, "revisited_fraction": 0.75, "converged": False}
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


SEVERAL_ROOMS = ROOMS | COLOURS | {
    "controls": {name: COLOURS | {"psnr_pooled": 21.0, "psnr_revisited": 100.0} for name in CONTROLS},
    "sampled": COLOURS,
}  # fmt: skip


def printed(scores: dict, width: int = 100) -> str:
    return text_of(scores_table(scores), width)


def text_of(table: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_model_comes_first_and_every_control_after_it():
    text = printed(SCORES)
    places = [text.index(f"\n{label} ") for label in ["imagined", *(row.label for row in CONTROLS.values())]]
    assert places == sorted(places)


def test_scores_are_rounded_and_shares_are_percent():
    line = next(line for line in printed(SCORES).splitlines() if line.startswith("imagined "))
    assert line.split() == ["imagined", "21.33", "25.50", "14.00", "0.800", "98.8%"]


def test_a_score_without_meaning_is_a_dash():
    line = next(line for line in printed(SCORES).splitlines() if "last frame" in line)
    assert line.split()[-1] == "–"


@pytest.mark.parametrize("scores", [SCORES | {"sampled": SCORES}, ROOMS, SEVERAL_ROOMS])
def test_a_terminal_of_80_columns_shows_every_name_and_number_in_one_piece(scores: dict):
    narrow, wide = (printed(scores, width).splitlines() for width in (80, 300))
    assert max(map(len, narrow)) <= 80
    caption = next(i for i, line in enumerate(wide) if "PSNR in dB" in line)
    assert [line.split() for line in narrow[:caption]] == [line.split() for line in wide[:caption]]


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


def test_among_several_rooms_a_terminal_shows_colours_in_place_of_ssim():
    text = printed(SEVERAL_ROOMS)
    assert "floor" in text and "SSIM" not in text
    assert "SSIM" in printed(ROOMS)


def test_in_rooms_the_headline_says_how_well_the_way_was_found_and_what_that_is_worth():
    assert headline(ROOMS) == (
        "heading 0.8° off after 78 steps, position 1.1% of the room's width; "
        "23.4 dB, 0.1 below the memory at true poses, 1.9 above copying the nearest frame"
    )


def test_a_headline_leaves_out_what_is_not_known():
    assert headline({"heading_error": 2.0, "psnr_pooled": 20.0}) == "heading 2.0° off; 20.0 dB"


def test_the_headline_of_an_agent_that_stood_still_says_nothing_of_its_position():
    assert "position" not in headline(ROOMS | {"position_error_relative": 1e-7})


def test_the_headline_of_an_agent_that_walks_by_exact_actions_says_how_little_its_position_is_off():
    assert "position 0.0%" in headline(ROOMS | {"position_error_relative": 4e-4, "revisited_fraction": 1e-3})


def turning(copy: dict, **scores: float | None) -> dict:
    """Scores of an agent that only turns, and of copying there."""
    return ROOMS | {"position_error_relative": 0.0, "controls": {"copy_nearest_true_pose": copy}} | scores


def test_an_agent_that_only_turns_is_held_against_copying_at_headings_it_has_not_seen():
    scores = turning({"psnr_pooled": 40.0, "psnr_unseen": 19.5}, psnr_unseen=22.0)
    assert headline(scores).endswith("23.4 dB, 2.5 above copying the nearest frame at unseen headings")


def test_where_every_heading_was_seen_copying_is_exact():
    scores = turning({"psnr_pooled": 100.0, "psnr_unseen": None}, psnr_unseen=None)
    assert headline(scores).endswith("23.4 dB, copying is exact")


def test_an_agent_that_walks_is_held_against_copying_at_all_poses():
    controls = {"copy_nearest_true_pose": {"psnr_pooled": 21.5, "psnr_unseen": 10.0}}
    assert headline(ROOMS | {"controls": controls}).endswith("1.9 above copying the nearest frame")


def test_over_images_the_headline_speaks_of_retrieval():
    assert headline(IMAGE_WALK).startswith("right place retrieved at 98.76% of revisited steps, R² of position 0.9987")


def compared(runs: dict[str, dict], width: int = 80) -> dict[str, list[str]]:
    """The numbers of each line by its name."""
    lines = text_of(comparison_table(runs), width).splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines if line.strip()}


def test_every_kind_of_world_has_a_table_of_its_own():
    lines = compared({"images": IMAGE_WALK, "rooms": ROOMS})
    assert lines["images"] == ["25.50", "14.00", "98.8%", "95.0%", "0.9987", "–"]
    assert lines["rooms"] == ["23.40", "25.00", "22.00", "0.81°", "1.12%", "27.00"]


def test_several_rooms_are_compared_by_their_colours():
    lines = compared({"room": ROOMS, "rooms": SEVERAL_ROOMS})
    assert lines["rooms"] == ["23.40", "22.00", "0.81°", "1.12%", "12.3", "15.0", "21.00"]
    assert lines["room"] == ["23.40", "22.00", "0.81°", "1.12%", "–", "–", "27.00"]


def test_the_ceiling_says_of_which_frames_it_is():
    assert "pooled" in text_of(comparison_table({"a": ROOMS})).split("ceiling,")[1]
    assert "revisited" in text_of(comparison_table({"a": IMAGE_WALK})).split("ceiling,")[1]


def test_long_names_of_runs_lose_their_first_folders_and_no_number_is_cut():
    runs = {f"experiments/of-all-of-last-may/{kind}/walk-7": scores for kind, scores in
            {"images": IMAGE_WALK, "room": ROOMS, "rooms": SEVERAL_ROOMS}.items()}  # fmt: skip
    narrow, wide = compared(runs), compared(runs, width=200)
    for kind in ("images", "room", "rooms"):
        assert narrow[f"…/{kind}/walk-7"] == wide[f"experiments/of-all-of-last-may/{kind}/walk-7"]
    assert max(map(len, text_of(comparison_table(runs), 80).splitlines())) <= 80


def test_a_name_too_long_for_its_column_goes_on_in_the_next_line():
    name = "a-run-that-somebody-gave-a-long-name"
    lines = text_of(comparison_table({f"runs/{name}": SEVERAL_ROOMS}), 80).splitlines()
    assert name in "".join(line.split()[0] for line in lines if line.strip())
    assert any("23.40" in line for line in lines)


def test_a_blank_line_parts_the_tables():
    text = text_of(comparison_table({"images": IMAGE_WALK, "rooms": ROOMS}))
    assert sum(not line.strip() for line in text.splitlines()) == 1


def test_runs_that_converged_are_counted():
    text = text_of(comparison_table({"images": IMAGE_WALK | {"retrieval_revisited": 0.995}, "rooms": ROOMS}))
    assert "1 of 1 converged" in text
    assert "0 of 1 converged" in text_of(comparison_table({"images": IMAGE_WALK}))


def test_every_seed_is_shown_and_those_that_failed_are_counted():
    good, bad = ({"retrieval_revisited": found, "psnr_revisited": 20 + found} for found in (0.995, 0.25))
    runs = {f"seed-{seed}": IMAGE_WALK | (bad if seed == 1 else good) for seed in range(3)}
    shown = compared(runs)
    assert [shown[run][0] for run in runs] == ["21.00", "20.25", "21.00"]
    assert "2 of 3 converged" in text_of(comparison_table(runs))


def test_among_obstacles_runs_converge_by_steps_that_can_be_known():
    known = CELLS | {"retrieval_unhindered": 0.995, "pose_r2_unhindered": 0.999}
    text = " ".join(text_of(comparison_table({"new": known, "of version 0.1": CELLS})).split())
    assert "1 of 1 converged (retrieval at least 0.99 and R² at least 0.99, at steps that can be known)" in text


def test_convergence_is_not_spoken_of_where_it_is_not_defined():
    assert "converged" not in text_of(comparison_table({"a": ROOMS}))


CELLS = IMAGE_WALK | {
    "psnr_unhindered": 24.0, "position_within_half_cell_memorised": 0.975, "position_within_half_cell_predicted": 0.9,
    "dead_reckoning_position_within_half_cell_memorised": 0.3,
    "controls": {name: {"psnr_pooled": 10.0, "psnr_unhindered": 20.0} for name in CONTROLS},
}  # fmt: skip


def test_where_steps_can_fail_the_line_says_how_often_the_cell_was_right():
    assert headline(CELLS).endswith(
        "; in the right cell at 97.5% while memorising (by actions alone 30.0%), "
        "90.0% while predicting, until a step failed"
    )
    assert headline(CELLS).startswith(
        "24.00 dB at revisited places until the first obstacle or slip, 4.00 above the VAE ceiling; "
    )
    assert "right cell" not in headline(IMAGE_WALK) and "obstacle" not in headline(IMAGE_WALK)


def test_the_line_says_how_many_steps_of_the_most_slippery_walk_were_believed_right_beside_the_control():
    def walks(probability, mine, theirs):
        ways = {"closing_loops": mine, "equal_frames": theirs}
        return {"probability": probability} | {
            way: {"within": share, "within_by_step": [share] * 1000} for way, share in ways.items()
        }

    scores = CELLS | {"landmarks": {"slip": [walks(0.0, 1.0, 1.0), walks(0.1, 0.89, 0.679)]}}
    assert headline(scores).endswith(
        "; of 1,000 steps of which 10% slip believed there at 89.0% with loops closed on the way "
        "(equal frames and true moves 67.9%)"
    )
    rooms = {"slip": [{"probability": 0.1, "closing_loops": {"within": 0.5, "within_by_step": [0.5]}}]}
    assert "slip " not in headline(CELLS | {"landmarks": rooms}).split("first obstacle or slip")[1]


def test_steps_that_can_be_known_lead_in_80_characters():
    lines = printed(CELLS | {"sampled": CELLS}, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("imagined ")).split()[1] == "24.00"


def test_runs_among_obstacles_are_compared_by_their_cells():
    text = text_of(comparison_table({"runs/mine": CELLS, "runs/other": IMAGE_WALK}), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert next(line for line in text.splitlines() if line.startswith("runs/mine")).split()[4:6] == ["97.5%", "90.0%"]
