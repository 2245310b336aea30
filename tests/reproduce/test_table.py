"""The table: pages and plots that say what the results say."""

import json
from pathlib import Path

import pytest
from made_results import STEPS, put, scored

from gtmsm.errors import InputError
from gtmsm.evaluation.sets import named_set
from gtmsm.reproduce import plots
from gtmsm.reproduce.pages import write_pages
from gtmsm.reproduce.results import read_results, result_path
from gtmsm.reproduce.table import lines_of


def table(out: Path) -> str:
    return write_pages(out, read_results(out), "`gtmsm reproduce`")[0].read_text()


def test_the_table_says_who_is_ahead_by_more_than_the_bands_and_who_is_not(tmp_path: Path):
    for seed in (0, 1):
        controls = {"image-walk/builtin": {"mean_frame": scored(20.6), "best_copy": scored(50.0)}}
        put(tmp_path, "image-walk", seed, 20.0 + seed, controls=controls)
        put(tmp_path, "image-walk/query", seed, 26.0 + seed)
        put(tmp_path, "image-walk/gru", seed, 12.0)
        put(tmp_path, "image-walk/rssm", seed, 19.9)
        put(tmp_path, "image-walk/context-poses", seed, 30.0, privileges=["true poses"])
    text = table(tmp_path)
    assert "ahead of gru (+8.50 dB)" in text
    assert "level with *mean frame* (-0.10 dB)" in text and "best copy* (" not in text
    assert "level with rssm (+0.60 dB)" in text
    assert "behind context-poses (-9.50 dB)" in text
    assert "behind **GTM-SM, query prior** (-6.00 dB)" in text and "## Ablations" not in text
    assert "| **GTM-SM** | 20.50\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.50 |" in text and "| gru | 12.00 |" in text
    assert "- a: true poses" in text and text.count("| a |") == 1
    assert (tmp_path / "image-walk-horizon.png").stat().st_size > 10_000


def test_of_long_predictions_and_the_latest_return_a_sentence_says_who_is_behind_us(tmp_path: Path):
    names = ("image-walk/loop", "image-walk/return-1000", "image-walk/return-300")
    for row, psnr in {"large": 20.0, "large/gru": 12.0, "large/grid-map": 19.9, "large/context-poses": 30.0}.items():
        put(tmp_path, row, 0, psnr, scores={name: scored(psnr, set=name) for name in names})
    verdict = (
        "ahead of gru (+8.00 dB); not ahead of grid-map (+0.10 dB), because the bands overlap; behind context-poses"
    )
    told = [line for line in table(tmp_path).splitlines() if line.startswith("- on ")]
    assert told == [f"- on `image-walk/return-1000`: {verdict} (-10.00 dB)."]
    for row, horizon in {"image-walk": 200, "image-walk/gru": 200}.items():
        put(tmp_path, row, 0, 20.0, scores={"image-walk/builtin": scored(20.0, horizon=horizon)})
    assert "- on `image-walk/builtin`: not ahead of gru (+0.00 dB), because" in table(tmp_path)
    put(tmp_path, "image-walk", 0, 20.0, scores={"image-walk/builtin": scored(20.0, horizon=199)})
    assert "- on `image-walk/builtin`" not in table(tmp_path)


def test_an_extension_without_gtm_sm_itself_is_not_called_by_its_name(tmp_path: Path):
    put(tmp_path, "image-walk/query", 0, 26.0)
    put(tmp_path, "image-walk/gru", 0, 12.0)
    assert "GTM-SM is ahead" not in table(tmp_path) and "**GTM-SM, query prior**" in table(tmp_path)


def test_one_clip_decides_nothing(tmp_path: Path):
    for row, psnr in {"image-walk": 26.0, "image-walk/gru": 12.0}.items():
        lone = scored(psnr, clips=1, psnr_late_by_clip=[psnr])
        put(tmp_path, row, 0, psnr, scores={"image-walk/builtin": lone})
    assert "level with gru (+14.00 dB)" in table(tmp_path)


def test_trainings_above_the_mean_frame_are_counted_beside_those_that_converged(tmp_path: Path):
    controls = {"image-walk/builtin": {"mean_frame": scored(15.0)}}
    for seed, (psnr, converged) in enumerate([(15.1, True), (16.0, True), (14.0, False)]):  # twice the error is 0.2
        put(tmp_path, "image-walk", seed, psnr, controls=controls if seed == 0 else {}, converged=converged)
        put(tmp_path, "image-walk/gru", seed, 12.0)
    put(tmp_path, "rotate", 0, 20.0)
    cells = {
        line.split(" | ")[0]: line.split(" | ")[-2:] for line in table(tmp_path).splitlines() if " | 0.001 | " in line
    }
    assert cells == {"| **GTM-SM**": ["–", "– |"], "| gru": ["–", "0 of 3 |"]}
    (tmp_path / "rotate.seed0.json").unlink()
    assert " | 2 of 3 | 1 of 3 |" in table(tmp_path)


@pytest.mark.parametrize(
    ("clips", "sha256", "verdict", "rule"),
    [  # by half a dB on each clip; now by much, now not at all; other clips
        ([18.0, 20.0, 22.0, 24.0], "0" * 64, "ahead of gru (+0.50 dB)", "over clips of their difference, since"),
        ([24.0, 22.0, 20.0, 18.0], "0" * 64, "level with gru (+0.50 dB)", "over clips of their difference, since"),
        ([18.0, 20.0, 22.0, 24.0], "1" * 64, "level with gru (+0.50 dB)", "over clips; otherwise"),
    ],
)
def test_rows_scored_on_the_same_clips_are_compared_clip_by_clip(
    tmp_path: Path, clips: list[float], sha256: str, verdict: str, rule: str
):
    band = {"mean": [21.0] * STEPS, "error": [1.0] * STEPS}
    ours = scored(21.5, psnr_band=band, psnr_late_by_clip=[18.5, 20.5, 22.5, 24.5])
    put(tmp_path, "image-walk", 0, 21.5, scores={"image-walk/builtin": ours})
    theirs = scored(21.0, psnr_band=band, psnr_late_by_clip=clips, sha256=sha256)
    put(tmp_path, "image-walk/gru", 0, 21.0, scores={"image-walk/builtin": theirs})
    assert verdict in table(tmp_path) and rule in table(tmp_path)
    put(tmp_path, "image-walk/rssm", 0, 19.0)  # keeps no clips
    if sha256 == "0" * 64:
        assert "where both results keep the same clips" in table(tmp_path)


def test_the_table_says_whether_its_clips_are_the_listed_ones_and_the_same_for_all_rows(tmp_path: Path):
    listed = named_set("image-walk/builtin", quick=True).listed
    assert listed

    def put_on(row: str, sha256: str) -> str:
        put(tmp_path, row, 0, 20.0, scores={"image-walk/builtin": scored(20.0, sha256=sha256)})
        return table(tmp_path)

    assert f"`{listed.sha256[:12]}…`, as listed" in put_on("image-walk", listed.sha256)
    assert "rows were scored on different clips" in put_on("image-walk/gru", "1" * 64)
    assert "**not as listed**" in put_on("image-walk", "1" * 64)


def test_who_is_built_on_a_row_has_its_privileges(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0, privileges=["true displacements"])
    put(tmp_path, "image-walk/grid-map", 0, 20.0, privileges=["its motion"])
    put(tmp_path, "image-walk/gru", 0, 20.0)
    given = {line.name: line.given for line in lines_of(read_results(tmp_path), "image-walk", "image-walk/builtin")}
    assert given["grid-map"] == "its motion, which was given: true displacements" and given["gru"] == "nothing"


def test_ablations_are_shown_with_their_learning_rates(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0, learning_rate=3e-3)
    put(tmp_path, "image-walk/k-1", 0, 15.0)
    text = table(tmp_path).partition("## Ablations")[2]
    assert "| 0.003 | 1 |" in text and "| 0.001 | 1 |" in text and "compare rows of one rate" in text
    put(tmp_path, "image-walk", 0, 20.0)
    assert "compare rows of one rate" not in table(tmp_path)


def test_a_score_that_some_seeds_lack_says_of_how_many_it_is(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0)
    put(tmp_path, "image-walk", 1, 20.0, scores={"image-walk/builtin": scored(20.0, flip=0.25)})
    assert "| 0.250 (1 of 2) |" in table(tmp_path)


def test_the_same_results_make_the_same_table(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0)
    put(tmp_path, "image-walk/k-1", 0, 15.0)
    assert table(tmp_path) == table(tmp_path)
    assert "K = 1 entry read" in table(tmp_path)
    assert "GTM-SM is" not in table(tmp_path)  # there is no rival


def test_an_ablation_alone_makes_a_table_of_ablations(tmp_path: Path):
    put(tmp_path, "image-walk/k-1", 0, 15.0)
    text = table(tmp_path)
    assert "| K = 1 entry read | 15.00 |" in text and "## image-walk" not in text


def test_a_file_that_is_no_result_is_named(tmp_path: Path):
    (tmp_path / "image-walk.seed0.json").write_text(json.dumps({"row": "image-walk"}))
    with pytest.raises(InputError, match="image-walk.seed0.json is no result"):
        read_results(tmp_path)


@pytest.mark.parametrize("name", ["table", "table-h200"])
def test_a_kept_table_is_what_its_results_say(name: str, tmp_path: Path):
    kept = Path(__file__).parents[2] / "docs" / name
    text = (kept / "table.md").read_text()
    made_by = text.split("Made by ")[1].split(" from the JSON")[0]
    for path in kept.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert write_pages(tmp_path, read_results(tmp_path), made_by)[0].read_text() == text


@pytest.mark.parametrize(("seeds", "bands"), [(1, 1), (2, 3)])
def test_curves_have_bands_over_seeds_and_that_of_gtm_sm_one_over_clips(tmp_path: Path, seeds: int, bands: int):
    for seed in range(seeds):
        put(tmp_path, "image-walk", seed, 24.0 + seed)
        put(tmp_path, "image-walk/gru", seed, 14.0 + seed)
    lines = lines_of(read_results(tmp_path), "image-walk", "image-walk/builtin")
    (axes,) = plots._horizon(lines, "image-walk/builtin").axes
    assert len(axes.collections) == bands
    over_clips = axes.collections[-min(2, seeds)].get_paths()[0].vertices[:, 1]  # the standard error is 0.1 dB
    middle = 24.0 + (seeds - 1) / 2
    assert (over_clips.min(), over_clips.max()) == pytest.approx((middle - 0.2, middle + 0.2))


def test_a_rival_has_the_same_colour_whoever_else_is_there(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0)
    put(tmp_path, "image-walk/ssm", 0, 15.0)
    alone = plots._styles(lines_of(read_results(tmp_path), "image-walk", "image-walk/builtin"))["ssm"]
    put(tmp_path, "image-walk/gru", 0, 15.0)
    assert plots._styles(lines_of(read_results(tmp_path), "image-walk", "image-walk/builtin"))["ssm"] == alone


def test_a_result_of_a_row_that_is_gone_is_named(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 20.0)
    path = result_path(tmp_path, "image-walk", 0)
    path.write_text(path.read_text().replace('"row": "image-walk"', '"row": "image-walk/gone"'))
    with pytest.raises(InputError, match='row "image-walk/gone", which this version does not have'):
        read_results(tmp_path)
