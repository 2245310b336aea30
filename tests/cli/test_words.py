"""Help, words that mean nothing, and how a command ends."""

import re
import signal
import subprocess
import sys
from dataclasses import fields

import pytest
from commands import TRAIN

from gtmsm import cli
from gtmsm.presets import PRESETS

# ---- help


def test_help_lists_the_verbs(gtmsm):
    code, out, _ = gtmsm("--help")
    assert code == 0
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in cli.VERBS)


def test_no_words_at_all_are_a_call_for_help(gtmsm):
    assert gtmsm() == gtmsm("--help")


def test_the_version_is_told(gtmsm):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", gtmsm("--version").out)


def test_train_without_a_preset_lists_them(gtmsm):
    assert all(preset in gtmsm("train").out for preset in PRESETS)


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        ("demo", cli.DemoFlags),
        ("evaluate", cli.EvaluateFlags),
        ("imagine", cli.ImagineFlags),
        ("record", cli.RecordFlags),
        ("localise", cli.LocaliseFlags),
        ("bench", cli.BenchFlags),
    ],
)
def test_the_help_of_a_verb_lists_each_flag_with_its_default(gtmsm, verb: str, kind: type):
    code, out, _ = gtmsm(verb, "--help")
    assert code == 0
    text = " ".join(out.replace("│", " ").split())
    positional = {
        "demo": {"name"}, "record": {"run", "out"}, "localise": {"run", "clip", "picture"}, "bench": {"names"},
    }.get(verb, {"run"})  # fmt: skip
    for field in (field for field in fields(kind) if field.name not in positional):
        assert re.search(rf"--{field.name}\b.*?\(default: |--{field.name}\b.*?default:", text), field.name


def test_the_help_of_localise_names_what_to_give(gtmsm):
    assert "usage: gtmsm localise [-h] RUN CLIP PICTURE" in gtmsm("localise", "--help").out.replace("[OPTIONS] ", "")
    assert "RUN OUT.npz" in gtmsm("record", "--help").out


def test_the_help_of_compare_says_what_to_give(gtmsm):
    assert "Run folders" in gtmsm("compare", "--help").out


def test_the_help_of_train_lists_each_flag_with_its_default(gtmsm):
    code, out, _ = gtmsm(*TRAIN, "--help")
    text = " ".join(out.replace("│", " ").split())
    assert code == 0
    for flag, default in [
        ("--images", "builtin"), ("--seed", "0"), ("--updates", "1500"), ("--batch", "32"), ("--tau", "256"),
        ("--grow", "400 300 200"), ("--prospect.candidates", "256"), ("--world.size", "32"),
        ("--model.recall.neighbours", "5"), ("--evaluation.clips", "100"), ("--device", "auto"), ("--devices", "1"),
        ("--walker.mean-repeats", "3.0"), ("--model.vae.coder", "dense"),
    ]:  # fmt: skip
        assert re.search(rf"{flag} [^(]*(\([^)]*\)[^(]*)*?\(default: {default}\)", text), flag


# ---- words that mean nothing


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["trian"], 'unknown verb "trian"; did you mean "train"?'),
        (["xyz"], 'unknown verb "xyz"; choose from demo, train, evaluate, imagine, record, localise, compare, bench'),
        (["train", "image-walk-smal"], 'unknown preset "image-walk-smal"; did you mean "image-walk-small"?'),
        (
            ["train", "rooms"],
            "rooms trains nothing; it tests a walk in several rooms: gtmsm evaluate RUN --places rooms",
        ),
        (["train", "lab"], 'unknown preset "lab"; choose from image-walk, image-walk-small'),
        ([*TRAIN, "--batchh", "3"], 'unknown flag "--batchh"; did you mean --batch?'),
        (
            [*TRAIN, "--neighbors", "3"],
            'unknown flag "--neighbors"; did you mean --prospect.neighbours or --model.recall.neighbours?',
        ),
        ([*TRAIN, "--no-tau"], 'unknown flag "--no-tau"; did you mean --tau?'),
        (["demo", "--sede", "3"], 'unknown flag "--sede"; did you mean --seed?'),
        (["evaluate", "x", "--zzz"], 'unknown flag "--zzz"; gtmsm evaluate --help lists them'),
        (["evaluate"], "Missing from gtmsm evaluate"),
        (["imagine"], "Missing from gtmsm imagine"),
        (["record", "x"], "Missing from gtmsm record"),
        (["localise", "x", "y"], "Missing from gtmsm localise"),
        (["localize"], 'unknown verb "localize"; did you mean "localise"?'),
        (["compare"], "compare needs at least one run folder"),
        (["evaluate", "a", "b"], "Unrecognized options: b"),
        ([*TRAIN, "--learning-rate", "fast"], "--learning-rate: could not convert string to float: 'fast'"),
        ([*TRAIN, "--updates", "1.5"], "--updates: invalid literal for int"),
        ([*TRAIN, "--model.vae.coder", "cube"], "'cube' for argument '--model.vae.coder'. Expected one of"),
        ([*TRAIN, "--grow", "a"], "--grow"),
        ([*TRAIN, "--updates"], "--updates"),
        (["evaluate", "x", "--clips", "few"], "Error parsing --clips: no type matching INT"),
        (["evaluate", "x", "--device", "gpu"], "'gpu' for argument '--device'"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_a_suggestion(refused, words: list[str], complaint: str):
    assert complaint in refused(*words)


def test_what_a_part_refuses_is_told_in_its_own_words_alone(refused):
    told = refused("train", "rotate", "--model.recall.delta", "0")
    assert told == "delta is 0.0; an exact revisit would divide by it: it must be above 0"


# ---- other ends


def test_a_file_that_cannot_be_read_is_one_line(refused, monkeypatch: pytest.MonkeyPatch):
    def fail(words: list[str]) -> int:
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr(cli, "_compare", fail)
    assert refused("compare") == "[Errno 5] Input/output error: 'disk'"


def test_an_interrupted_verb_ends_with_130(gtmsm, ctrl_c: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "_compare", lambda words: signal.raise_signal(signal.SIGINT))
    assert gtmsm("compare") == (130, "", "gtmsm: interrupted\n")


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "_compare", lambda words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["compare"])


def test_in_a_real_process_too_a_mistake_is_one_line_and_a_closed_pipe_is_none():
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m gtmsm.cli"
    done = subprocess.run(
        f"{command} --help | true; {command} trian", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == 'gtmsm: unknown verb "trian"; did you mean "train"?\n'
