"""`gtmsm evaluate` and `compare`."""

import json
import re
import shutil
from pathlib import Path

import pytest
from commands import files_below
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gtmsm.evaluation.score import only_numbers
from gtmsm.evaluation.table import comparison_table, headline, scores_table
from gtmsm.run import read_scores

# ---- evaluate


def test_evaluate_writes_where_it_is_told_shows_all_controls_and_tells_a_pipe_how_far_it_is(
    gtmsm, toy_run: Path, tmp_path: Path
):
    code, out, err = gtmsm("evaluate", toy_run, "--clips", 2, "--horizon", 5, "--out", tmp_path / "a" / "b")
    assert code == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"scores.json", "report.html"}
    protocol = json.loads((tmp_path / "a" / "b" / "scores.json").read_text())["protocol"]
    assert (protocol["clips"], protocol["horizon"], protocol["tau"]) == (2, 5, 16)
    assert f"report: {tmp_path / 'a' / 'b' / 'report.html'}" in out
    assert err.splitlines()[0] == "scoring clips: 0% done"
    assert "scoring" not in out
    assert all(label in out for label in ("imagined", "VAE ceiling", "memory at true poses", "random retrieval"))


def test_scores_of_other_walks_are_kept_under_another_name(gtmsm, copied: Path):
    full = (copied / "scores.json").read_bytes()
    assert f"are now in {copied / 'scores-1.json'}" in gtmsm("evaluate", copied, "--clips", 2)[1]
    assert (copied / "scores-1.json").read_bytes() == full
    few = (copied / "scores.json").read_bytes()
    assert "are now in" not in gtmsm("evaluate", copied, "--clips", 2)[1]  # the same again
    assert f"are now in {copied / 'scores-2.json'}" in gtmsm("evaluate", copied)[1]
    assert [(copied / f"scores{n}.json").read_bytes() for n in ("-1", "-2", "")] == [full, few, full]


def test_walks_may_slip_that_did_not_in_training(gtmsm, toy_run: Path, tmp_path: Path):
    found = {}
    for slip in (0, 1):
        out = tmp_path / str(slip)
        assert gtmsm("evaluate", toy_run, "--clips", 4, "--horizon", 5, "--slip", slip, "--out", out)[0] == 0
        found[slip] = json.loads((out / "scores.json").read_text())
        assert found[slip]["protocol"]["slip"] == slip
    assert found[0]["revisited_fraction"] != found[1]["revisited_fraction"]  # the same actions led elsewhere


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--tau 0", "tau is 0; give at least 1 step to memorise"),
        ("--tau 4", "the model reads 5 neighbours but tau is 4; memorise at least 5 steps"),
        ("--horizon 0", "horizon is 0"),
        ("--clips -1", "clips is -1"),
        ("--seed -1", "seed is -1"),
        ("--slip 2", "slip is 2.0; give a probability from 0 to 1"),
        ("--images /no/such", 'images "/no/such": no such file or folder'),
        ("--frames frames.png", "cannot write frames as frames.png; end its name with .npz"),
        ("--frames /dev/null/frames.npz", "cannot write into /dev/null: /dev/null is not a folder"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_written(
    refused, toy_run: Path, tmp_path: Path, flags: str, complaint: str
):
    assert complaint in refused("evaluate", toy_run, *flags.split(), "--out", tmp_path / "out")
    assert not files_below(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_not_scored(refused, copied: Path, value: float):
    with safe_open(copied / "weights.safetensors", "pt") as content:
        about = content.metadata()
    weights = load_file(copied / "weights.safetensors")
    weights["vae.decoder.0.weight"].view(-1)[7] = value
    save_file(weights, copied / "weights.safetensors", about)
    before = files_below(copied)
    assert "vae.decoder.0.weight holds NaN or infinity" in refused("evaluate", copied, "--clips", 2)
    assert files_below(copied) == before


def test_scores_of_any_numbers_are_valid_json(copied: Path):
    scores = only_numbers(
        json.loads((copied / "scores.json").read_text()) | {"psnr_unseen": -float("inf"), "pose_r2": float("nan")}
    )
    (copied / "scores.json").write_text(json.dumps(scores, allow_nan=False))
    read = read_scores(copied)
    assert read["pose_r2"] is None
    assert "R² of position –" in headline(read)
    scores_table(read), comparison_table({"run": read})


def test_scores_of_older_versions_may_hold_nan(copied: Path):
    scores = json.loads((copied / "scores.json").read_text()) | {"psnr_unseen": float("nan")}
    (copied / "scores.json").write_text(json.dumps(scores))
    assert read_scores(copied)["psnr_unseen"] is None


def test_evaluate_refuses_what_is_no_run(refused, tmp_path: Path):
    assert f"{tmp_path} is not a run folder" in refused("evaluate", tmp_path)
    assert "is not a run folder" in refused("evaluate", tmp_path / "none")


@pytest.mark.parametrize("below", ["", "below"])
def test_evaluate_does_not_write_into_a_file(refused, toy_run: Path, tmp_path: Path, below: str):
    (tmp_path / "file").write_text("mine")
    assert "file is not a folder" in refused("evaluate", toy_run, "--out", tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "mine"


def test_images_that_vanished_since_training_are_asked_for(refused, copied: Path):
    config = copied / "config.yaml"
    config.write_text(re.sub("images: /.*toy.npz", "images: /gone/toy.npz", config.read_text()))
    before = files_below(copied)
    for verb in ("evaluate", "imagine"):
        assert 'not at "/gone/toy.npz"; give it, or other images, with --images' in refused(verb, copied)
    assert files_below(copied) == before


def test_shipped_weights_are_scored_elsewhere_and_stay_as_they_are(
    gtmsm, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shipped = tmp_path / "weights" / "toy"
    shipped.mkdir(parents=True)
    for name in ("config.yaml", "weights.safetensors"):
        shutil.copy(toy_run / name, shipped)
    monkeypatch.chdir(tmp_path)
    before = files_below(shipped)
    code, out, _ = gtmsm("evaluate", "weights/toy", "--clips", 1, "--horizon", 3)
    assert code == 0
    assert "weights/toy was not trained here and stays as it is; scores go to runs/toy-evaluated" in out
    assert {path.name for path in (tmp_path / "runs" / "toy-evaluated").iterdir()} == {"scores.json", "report.html"}
    assert files_below(shipped) == before


def test_a_run_that_was_trained_here_is_scored_in_its_own_folder(gtmsm, copied: Path):
    (copied / "scores.json").unlink()
    assert f"report: {copied / 'report.html'}" in gtmsm("evaluate", copied, "--clips", 1, "--horizon", 3).out
    assert (copied / "scores.json").is_file()


# ---- compare


def test_compare_sets_runs_side_by_side(gtmsm, toy_run: Path, copied: Path):
    scores = json.loads((copied / "scores.json").read_text())
    good = {"retrieval_revisited": 0.995, "pose_r2": 0.9987}
    (copied / "scores.json").write_text(json.dumps(scores | good))
    code, out, _ = gtmsm("compare", toy_run, copied)
    assert code == 0
    assert "1 of 2 converged" in out
    assert f"{scores['pose_r2']:.4f}" in out
    assert "0.9987" in out


def test_compare_says_if_runs_were_scored_on_different_walks(gtmsm, toy_run: Path, copied: Path):
    assert "different walks" not in gtmsm("compare", toy_run, copied).out
    scores = json.loads((copied / "scores.json").read_text())
    scores["protocol"]["clips"] += 1
    (copied / "scores.json").write_text(json.dumps(scores))
    told = " ".join(gtmsm("compare", toy_run, copied).out.split())
    assert "scored on different walks: " in told and f": {scores['protocol']['clips']} walks of 16 + " in told


def test_compare_leaves_out_what_has_no_scores_and_says_so(gtmsm, refused, toy_run: Path, tmp_path: Path):
    code, out, _ = gtmsm("compare", toy_run, tmp_path, tmp_path / "nothing")
    assert code == 0
    told = " ".join(out.split())
    assert f"left out: {tmp_path} has no scores.json" in told
    assert f"left out: {tmp_path / 'nothing'} is no folder" in told
    assert f"{tmp_path} has no scores.json" in refused("compare", tmp_path)


def test_compare_refuses_damaged_scores(refused, copied: Path):
    (copied / "scores.json").write_text('{"psnr_poo')
    assert "is not valid JSON (Unterminated string" in refused("compare", copied)
