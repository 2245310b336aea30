"""The verbs where there are rooms."""

import json
from pathlib import Path

import pytest
from commands import files_below

ROOMS_FLAGS = (
    "--world.textures procedural --world.objects 0 --world.train-places 3 --world.test-places 2 --world.antialias 1 "
    "--pool.clips 4 --pool.steps 60 --model.vae.width 16 --model.vae.code-size 8 --model.recall.width 16 --batch 2 "
    "--horizon 4 --warm-up 2 --warm-up-tau 4 --updates 4 --prospect.angles 16 --prospect.clips 2 --prospect.tau 33 "
    "--prospect.horizon 20 --log-every 2 --watch-every 100 --save-every 2 --evaluation.horizon 12 --evaluation.clips 1 "
    "--device cpu"
)


@pytest.mark.slow
def test_an_agent_that_turns_is_trained_resumed_scored_and_reported(gtmsm, refused, tmp_path: Path):
    run, train = tmp_path / "run", ("train", "rotate")
    code, out, err = gtmsm(*train, *ROOMS_FLAGS.split(), "--run", run, "--no-evaluate")
    assert (code, err) == (0, "")
    assert "training rotate on 3 places (room with procedural textures; 64 for validation, 2 for the test)" in out
    resumed = ("--run", run, "--resume", "--device", "cpu")
    assert "only --updates may be given anew" in refused(*train, *resumed, "--pool.clips", 5)
    code, out, _ = gtmsm(*train, *resumed, "--updates", 6)
    assert code == 0
    assert "6 updates behind it" in out
    assert "Heading" in out or "heading" in out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "prospect" in line] == [2]
    scores = json.loads((run / "scores.json").read_text())
    assert scores["protocol"]["trained_on"].startswith("3 places of room with procedural textures, textures' sha256 ")
    assert len(scores["heading_error_by_step"]) == 33 + 12
    assert (run / "report.html").read_text().startswith("<!doctype html>")

    words = ("evaluate", run, "--device", "cpu", "--clips", 1, "--out", tmp_path / "rooms")
    assert gtmsm(*words, "--places", "rooms", "--horizon", 8).code == 0
    elsewhere = json.loads((tmp_path / "rooms" / "scores.json").read_text())
    assert "rooms with procedural textures" in elsewhere["protocol"]["scored_on"]
    assert "psnr_reentered_rooms" in elsewhere
    assert gtmsm("compare", run, tmp_path / "rooms").code == 0

    # What was learned in two goes is what is learned at once.
    at_once = ("--run", tmp_path / "once", "--updates", 6, "--no-evaluate")
    assert gtmsm(*train, *ROOMS_FLAGS.split(), *at_once).code == 0
    once, two = ((folder / "weights.safetensors").read_bytes() for folder in (tmp_path / "once", run))
    assert once == two


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--pool.steps 36", "pool.steps is 36, shorter than tau + horizon = 37"),
        ("--pool.steps 50", "pool.steps is 50, shorter than the 53 steps that prospecting looks at"),
        ("--evaluation.metric-poses", "only the displacement loss teaches poses in the world's units"),
        ("--displacement 5", "only the displacement loss teaches poses in the world's units"),
        ("--world.field-of-view 90", "model.recall.field_of_view is 80.0 but the world's is 90.0"),
        ("--model.motion.kind walled", "kind is walled; an agent in rooms has a heading"),
        ("--model.recall.prior rays --model.recall.width 64", "prior rays needs spatial codes but coder is conv"),
        ("--model.vae.coder spatial", "code_size is 8; a spatial code of 8x8 patches needs a multiple of 64"),
        ("--foresight -1", "foresight is -1.0; give 0 or more"),
        ("--warm-up-tau 40", "warm_up_tau is 40, longer than tau = 33"),
        ("--images builtin", 'unknown flag "--images"'),
    ],
)
def test_settings_of_rooms_that_make_no_sense_are_refused_before_anything_is_written(
    refused, tmp_path: Path, flags: str, complaint: str
):
    assert complaint in refused("train", "rotate", *ROOMS_FLAGS.split(), "--run", tmp_path / "run", *flags.split())
    assert not files_below(tmp_path)


def test_a_model_of_images_is_not_scored_in_rooms(refused, toy_run: Path, tmp_path: Path):
    told = refused("evaluate", toy_run, "--places", "rooms", "--out", tmp_path / "out")
    assert told == "this run walks over images, and no rooms can be walked with it; leave out --places"
    assert not files_below(tmp_path)
