"""Help, words that mean nothing, and how a command ends."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from commands import TRAIN

import gtmsm_command
from gtmsm import cli
from gtmsm.flags import plain_console
from gtmsm.presets import PRESETS
from gtmsm.verbs import training, walks

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
        ("demo", training.DemoFlags),
        ("evaluate", training.EvaluateFlags),
        ("imagine", walks.ImagineFlags),
        ("record", walks.RecordFlags),
        ("localise", walks.LocaliseFlags),
        ("bench", training.BenchFlags),
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
        (
            ["xyz"],
            'unknown verb "xyz"; choose from demo, train, evaluate, weights, imagine, record, plan, export, localise',
        ),
        (["train", "image-walk-smal"], 'unknown preset "image-walk-smal"; did you mean "image-walk-small"?'),
        (
            ["train", "rooms"],
            "rooms trains nothing; it tests a walk in several rooms: gtmsm evaluate RUN --places rooms",
        ),
        (["train", "lab"], 'unknown preset "lab"; choose from image-walk, image-walk-small'),
        (["train", "--resume", "runs/a"], "gtmsm train PRESET --run RUN --resume"),
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

    monkeypatch.setattr(training, "compare", fail)
    assert refused("compare") == "disk: Input/output error"


def test_an_interrupted_verb_ends_with_130(gtmsm, ctrl_c: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "compare", lambda words: signal.raise_signal(signal.SIGINT))
    assert gtmsm("compare") == (130, "", "gtmsm: interrupted\n")


def in_a_process(tmp_path: Path, *words: str | bytes, **modules: str) -> subprocess.CompletedProcess[bytes]:
    """The command as it is installed, with modules of ours in place of others."""
    for name, text in modules.items():
        (tmp_path / name).with_suffix(".py").write_text(text)
    path = os.pathsep.join([str(tmp_path), str(Path(gtmsm_command.__file__).parents[1])])
    command = "import signal; [signal.signal(number, signal.SIG_DFL) for number in (1, 2, 15) if number != {}]; "
    command = command.format(os.environ.get("IGNORED", 0)) + "from gtmsm_command import main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(("number", "code"), [("SIGHUP", 129), ("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_importing_is_one_line(tmp_path: Path, number: str, code: int):
    module = f"import signal, time; signal.raise_signal(signal.{number}); time.sleep(60)"
    done = in_a_process(tmp_path, "evaluate", "run", gymnasium=module)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"gtmsm: interrupted\n")


def test_whoever_is_interrupted_leaves_nothing_half_written(tmp_path: Path):
    half = tmp_path / ".gtmsm-01234567.mp4"
    half.write_text("half")
    module = "import signal, sys, types, pathlib; sys.modules['gtmsm.files'] = files = types.ModuleType('files')\n"
    module += f"files.TEMPORARY = {{pathlib.Path({str(half)!r})}}; signal.raise_signal(signal.SIGINT)"
    assert in_a_process(tmp_path, "imagine", "run", gymnasium=module).returncode == 130
    assert not half.exists()


def test_a_signal_that_the_parent_ignores_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setenv("IGNORED", "2")
    try:
        done = in_a_process(tmp_path, gymnasium="import signal; signal.raise_signal(2); raise SystemExit(7)")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (7, b"")


def test_names_are_printed_as_they_are_whatever_bytes_they_hold(tmp_path: Path):
    name = b"caf\xe9[/]\n:smile:"
    (tmp_path / "gtmsm").mkdir()
    (tmp_path / "gtmsm" / "__init__.py").write_text("")
    words = "import sys\ndef main(): print(sys.argv[1]); print(sys.argv[1], file=sys.stderr)"
    done = in_a_process(tmp_path, name, **{"gtmsm/cli": words})
    assert (done.stdout, done.stderr) == (name + b"\n", name + b"\n")


@pytest.mark.parametrize("name", ["a[/]b", "[bold]red", "a:smile:b", "two  spaces", "two\nlines"])
def test_names_that_look_like_markup_are_printed_as_they_are(gtmsm, toy_run: Path, tmp_path: Path, name: str):
    folder = tmp_path / name
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(toy_run)
    clip = tmp_path / f"{name}.npz"
    assert gtmsm("record", folder, clip).out.rstrip().endswith(str(clip))
    assert gtmsm("compare", tmp_path / f"{name}?").err.startswith(f"gtmsm: {tmp_path / name}? is no folder")
    assert str(folder) in plain_console().render_str(str(folder)).plain


def test_work_goes_on_when_the_reader_of_its_words_has_gone():
    read, write = os.pipe()
    os.close(read)
    words = gtmsm_command._Steady(os.fdopen(write, "w"))
    for _ in range(3):
        print("hello", file=words, flush=True)
    words.close()


def test_words_that_find_no_space_are_no_success():
    words = gtmsm_command._Steady(os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"))
    with pytest.raises(OSError, match="No space left"):
        print("hello", file=words, flush=True)
    words.close()  # and that is said once


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "compare", lambda words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["compare"])


def test_in_a_real_process_too_a_mistake_is_one_line_and_a_closed_pipe_is_none():
    command = f"env -u PYTHONUNBUFFERED {sys.executable} -m gtmsm.cli"
    done = subprocess.run(
        f"{command} --help | true; {command} trian", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == 'gtmsm: unknown verb "trian"; did you mean "train"?\n'
