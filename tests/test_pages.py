"""Pages for people: links lead somewhere, Python runs as it stands there, commands exist with their flags. Examples in
docstrings, from which the reference is made, give what they say.

A block that is not to be run says so, and why, in a line before it: `<!-- shown only: REASON -->`.
"""

import doctest
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import gtmsm
from gtmsm import cli, experiments, flags
from gtmsm.errors import InputError
from gtmsm.presets import PRESETS
from gtmsm.verbs import recordings, reproduce, training, walks

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(p for p in ROOT.glob("src/**/*.py") if re.search(r"^ *>>> (?!.*\+SKIP)", p.read_text(), re.M))
"""Modules with examples in docstrings that can be run."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("weights/*/CARD.md")])
SOURCE = "https://github.com/gtmsm/gtmsm/blob/main/"
FENCE = re.compile(r"(?:^<!-- shown only: (?P<why>.+?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    kind: str
    text: str
    shown_only: bool


def blocks(page: Path) -> list[Block]:
    return [Block(found["kind"], found["text"], bool(found["why"])) for found in FENCE.finditer(page.read_text())]


def blocks_of_commands(page: Path) -> list[str]:
    return [block.text for block in blocks(page) if block.kind == "sh" and not block.shown_only]


def python_of(page: Path) -> str:
    return "\n".join(block.text for block in blocks(page) if block.kind == "python" and not block.shown_only)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Of all headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", text).lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path):
    prose = re.sub(r"`[^`\n]*`", "``", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        here = page.parent
        if target.startswith(SOURCE):
            here, target = ROOT, target.removeprefix(SOURCE)
        if "://" in target:
            continue
        address, _, anchor = target.partition("#")
        found = (here / address) if address else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_of_the_documentation_has_a_place_on_the_site():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

    def leaves(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                yield from leaves(value) if isinstance(value, list) else [value]

    placed = list(leaves(nav))
    assert len(placed) == len(set(placed))
    name_on_site = script("build").name_on_site
    assert {name_on_site(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")} <= set(placed)


def script(name: str) -> Any:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec and spec.loader
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def test_the_results_are_what_the_json_files_say():
    assert script("results").page(ROOT / "docs") == (ROOT / "docs" / "results.md").read_text(), "run make results"


def test_the_table_of_the_readme_is_what_the_json_files_say():
    written = (ROOT / "README.md").read_text()
    assert script("results").readme(ROOT / "docs", written) == written, "run make results"
    assert written.count("\n| ") == 13


def test_tables_of_the_readme_and_of_measurements_fit_on_a_phone():
    measured = (ROOT / "docs" / "results.md").read_text().partition("\n## Rivals")[0]
    for text, most in ((ROOT / "README.md").read_text(), 4), (measured, 6):
        assert max(line.count("|") - 1 for line in text.splitlines() if line.startswith("|--")) <= most


def test_every_measured_figure_is_on_the_page_that_it_was_copied_from():
    results = script("results")
    for facts in results.read_measured(ROOT / "docs" / "measured"):
        if "archive" not in facts:
            continue  # a command wrote the file
        page = (ROOT / "docs" / facts["archive"].split("#")[0]).read_text()
        for row in facts["rows"]:
            for value, (_, _, digits) in zip(row["values"], facts["columns"], strict=True):
                figures = value if isinstance(value, list) else [value] if isinstance(value, float | int) else []
                missing = [one for one in figures if results.number(one, digits) not in page]
                assert not missing, (facts["section"], row["name"], missing)


def test_a_measurement_without_its_commit_is_refused(tmp_path: Path):
    kept = next((ROOT / "docs" / "measured").glob("*.json")).read_text()
    (tmp_path / "one.json").write_text(kept.replace('"commit"', '"commits"'))
    with pytest.raises(InputError, match=r"lacks \['commit'\]"):
        script("results").read_measured(tmp_path)


def test_a_path_is_wrong_from_the_first_step_that_is_more_than_half_a_cell_off():
    first_wrong, true = script("figures").first_wrong, np.zeros((6, 2))
    path = true + np.array([[0.4, 0], [0, 1], [0, 0], [0, 0], [1, 0], [0, 0]])
    assert [first_wrong(path, true), first_wrong(path, true, after=2)] == [2, 5]


def test_all_figures_of_the_paper_are_in_the_gallery():
    made = {path.name for path in (ROOT / "docs").glob("paper-*.png")}
    shown = re.findall(r"\]\((paper-[^)]+\.png)\)", (ROOT / "docs" / "gallery.md").read_text())
    assert made == set(shown) == set(script("figures").FIGURES)


def test_the_reference_describes_all_public_names_and_commands():
    build = script("build")
    python, commands = build.python_reference(), build.command_reference()
    assert all(f"\n## {name}\n" in python for name in gtmsm.__all__)
    assert "### WorldModel.load\n" in python and WORDS_OF_LOAD in python
    assert all(f"\n## gtmsm {verb}\n" in commands for verb in cli.VERBS)
    assert (
        "| `--picture` |  | Any picture file, for runs on images; default: a held-out image of the run. |" in commands
    )
    assert build.spaced("So:\n- one\n- two\n|a|\n") == "So:\n\n- one\n- two\n\n|a|\n"


def test_what_a_built_page_shows_or_links_to_must_be_there(tmp_path: Path):
    complaints = script("build").complaints
    (tmp_path / "there.png").touch()
    page = '<img src="there.png"><video src="film.mp4" poster="first.png"></video><a href="index.html#top">.</a>'
    (tmp_path / "index.html").write_text(f'{page}<h1 id="top"><img src="https://example.org/far.png"></h1>')
    assert list(complaints(tmp_path)) == [
        'index.html loads from elsewhere: <img src="https://example.org/far.png">',
        "index.html shows film.mp4, which is not there",
        "index.html shows first.png, which is not there",
    ]


def test_names_and_flags_in_a_sentence_of_the_site_are_not_broken():
    whole = script("build").with_whole_names("<code>gtmsm walk-strong --updates 2 docs/a-b.md</code> walk-strong")
    assert whole == (
        '<code>gtmsm <span class="whole">walk-strong</span> <span class="whole">--updates</span> 2 '
        'docs/<span class="whole">a-b.md</span></code> walk-strong'
    )


WORDS_OF_LOAD = "For use, not for training: its weights have no gradients."

WALKED = """
import gymnasium
from gtmsm import Explorer, WorldModel
model = WorldModel.load({name!r}){walls}
env = gymnasium.make("gtmsm/ImageWalk-v0")
frame = picture = env.reset(seed=1)[0]
explorer = Explorer(model)
explorer.step(frame)
walk = [(env.step(action)[0], action) for action in (0, 0, 2, 2, 1, 1, 3, 3) * 4]
for frame, action in walk:
    explorer.step(frame, action)
explorer.save("walk.safetensors")
"""
BEFORE = {
    "docs/explorer.md": WALKED.format(name="obstacles-celeba", walls=""),
    "docs/planning.md": WALKED.format(name="obstacles-celeba", walls=""),
    "docs/atlas.md": WALKED.format(name="obstacles-celeba", walls=".without_walls()"),
}
"""What a page takes for granted: somebody has walked."""
TOY = {"range(60)": "range(24)", "updates=20": "updates=2, batch=2, evaluation__clips=2", "num_envs=256": "num_envs=4"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=named)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = python_of(page)
    for large, small in TOY.items():
        text = text.replace(large, small)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        exec(BEFORE.get(named(page), "") + text, {})


def commands(text: str) -> Iterator[list[str]]:
    """Of a block of shell, with something for its variables."""
    text = re.sub(r"\\\n\s*", " ", text)
    for pattern, value in {
        r'"?\$\([^)]*\)"?': "x",
        r"\$s\b": "1",
        r"\$p\b": "walk",
        r"\$again\b|\bFLAGS\b": "",
    }.items():
        text = re.sub(pattern, value, text)
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set(";&|"):
                yield command
                command = []
            elif command or word not in ("do", "time", "then"):
                command.append(word)


class ParsedError(Exception):
    """A command was understood; its work does not begin."""


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Reads the words of a command up to where its work would begin."""
    parse = flags.parse

    def only_parse(*given: Any, **more: Any) -> None:
        parse(*given, **more)
        raise ParsedError

    for module in (flags, recordings, reproduce, training, walks):
        monkeypatch.setattr(module, "parse", only_parse)
    monkeypatch.setattr(experiments, "proposed", lambda *_: (PRESETS["own"][1], ()))

    def understand(words: list[str]) -> None:
        asks = "--help" in words or words in ([], ["--version"])
        with pytest.raises(SystemExit) if asks else pytest.raises(ParsedError):
            cli._run_verb(words)
            raise SystemExit

    return understand


TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of_commands(page)], ids=named)
def test_the_commands_of_a_page_exist_with_their_flags(page: Path, understood: Callable[[list[str]], None]):
    seen: set[str] = set()
    for text in blocks_of_commands(page):
        for words in commands(text):
            if not words or (key := re.sub(r"\d+", "0", " ".join(words))) in seen:
                continue
            seen.add(key)
            if (
                at := next((i for i, word in enumerate(words) if word in ("gtmsm", ".venv/bin/gtmsm")), None)
            ) is not None:
                understood(words[at + 1 :])
            elif words[0] == "make":
                assert words[1] in TARGETS, words
            for word in words:
                assert not re.match(r"(benchmarks|examples)/.*\.py$", word) or (ROOT / word).exists(), word


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_in_a_sentence_name_verbs_and_presets_that_exist(page: Path):
    prose = FENCE.sub("", page.read_text())
    assert set(re.findall(r"`gtmsm ([a-z]+)\b", prose)) <= set(cli.VERBS)
    assert set(re.findall(r"`gtmsm train\s+([a-z][a-z0-9-]*)", prose)) <= set(PRESETS)


LEAVE = {
    "docs/your-environment.md": "mazes mazes.png runs/mazes/report.html mazes.mp4",
    "README.md": "walk.gif mazes runs/own-1/report.html",
    "docs/tutorial.md": "mine.gif walk.gif around.gif runs/walk-strong-evaluated/report.html runs/rooms/report.html",
    "docs/landmarks.md": "walk.npz where.png",
    "docs/planning.md": "plan.mp4 room.mp4",
    "docs/commands.md": "walk.npz place.db runs/obstacles-celeba-evaluated/scores.json",
    "docs/recordings.md": "walks sheet.png runs/own-1/report.html",
    "weights/image-walk/CARD.md": "imagined.gif",
    "weights/image-walk-celeba/CARD.md": "imagined.gif",
    "weights/obstacles-celeba/CARD.md": "plan.mp4",
    "weights/obstacles-free/CARD.md": "plan.mp4",
    "weights/rotate/CARD.md": "rotate.mp4",
    "weights/walk-strong/CARD.md": "walk.gif",
}
"""What the commands of a page leave behind."""
ONLY_PARSED = {
    "CONTRIBUTING.md": "runs the tests and benchmarks themselves",
    "docs/gallery.md": "minutes, and it would overwrite the figures that are kept",
    "docs/library.md": "installs the package, which `make wheel` does",
    "docs/many-gpus.md": "needs a cluster",
    "docs/notebook.md": "a benchmark, whose figures the page has",
    "docs/older-measurements.md": "trainings of minutes to hours on a GPU, whose figures the page has",
    "docs/page.md": "a server, which page/test_server.py starts",
    "docs/performance.md": "minutes, and it times this machine; bench/test_bench.py runs small ones",
    "docs/planning.md: cd benchmarks": "trains for hours, with engines that are not among the packages that tests have",
    "docs/planning.md: python benchmarks/known_tasks.py memory-maze": "plays for hours, with weights that do not ship",
    "docs/protocol.md": "evaluation/test_no_leak.py calls the same function",
    "docs/results.md": "trainings of minutes to hours on a GPU, whose figures the page has",
    "docs/rivals.md": "trainings of hours on a GPU; reproduce/ and rivals/ run small ones",
}
"""Pages whose commands are only parsed, or the beginning of a block that is, and why."""
NOT_RUN = {
    r"make |\.": "not a command of gtmsm",
    r"gtmsm (demo|play|reproduce|bench)\b": "minutes, or a server: other tests run them, and `make wheel` the demo",
    r"gtmsm train (?!own)": "for a GPU, or minutes; training/ and cli/ run small ones",
    r"python |PYTHONPATH": "benchmarks, whose figures the page has",
    r".*\b(theirs\.h5|cat\.jpg|view\.png|runs/image-walk-1|runs/\*)": "with files that somebody has",
    r"gtmsm (record MiniGrid\S+ --out rooms|train own --data rooms)$": "the tutorial's",
    r"gtmsm export rrd": "rerun is not among the packages that tests have; test_rrd.py reads what it writes",
}
"""Beginnings of commands that are not run, and why."""
FEWER = {
    r"record gtmsm/Doom|record MiniGrid": "--clips 6 --steps 40 --workers 1",
    r"train": "--updates 2 --batch 2 --evaluation.clips 2 --device cpu",
    r"evaluate walk-strong": "--clips 1 --tau 16 --horizon 4",
    r"evaluate obstacles-celeba": "--clips 1",
    r"evaluate": "--clips 2 --device cpu",
    r"imagine walk-strong --seed": "--steps 10",
    r"plan walk-strong": "--tau 40 --steps 8",
}
"""Flags that a command has as well; the last of two counts."""
BEGUN = {
    "docs/tutorial.md": "train image-walk-small --no-prospect --no-evaluate",
    "docs/recordings.md": "record MiniGrid-FourRooms-v0 --out walks",
}
"""In place of the demo, whose run the tutorial walks in, and of recordings that somebody has."""


@pytest.mark.slow
@pytest.mark.parametrize("page", LEAVE)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("minigrid")
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    shell = "\n".join(text for text in blocks_of_commands(ROOT / page) if not parsed_only(page, text))
    lines = [BEGUN[page]] if page in BEGUN else []
    lines += [line.removeprefix("gtmsm ") for line in as_run(shell)]
    for line in lines:
        more = next((flags for start, flags in FEWER.items() if re.match(start, line)), "")
        line = re.sub(r'"\$\(([^)]+)\)"', lambda given: subprocess.getoutput(given[1]), line)
        with pytest.raises(SystemExit, match="^0$"):
            cli.main([*shlex.split(line, comments=True), *more.split()])
    for made in LEAVE[page].split():
        assert (tmp_path / made).exists(), made


def test_all_commands_of_pages_are_run_or_it_is_said_why_not():
    unused = dict(ONLY_PARSED)
    for page in PAGES:
        for text in blocks_of_commands(page):
            why = parsed_only(named(page), text)
            assert named(page) in LEAVE or why, f"{named(page)}: run it (LEAVE), or say why not (ONLY_PARSED): {text}"
            unused.pop(why, None)
    assert not unused


def parsed_only(page: str, text: str) -> str | None:
    """The key of ONLY_PARSED that a block of a page has."""
    return next((key for key in ONLY_PARSED if f"{page}: {text}".startswith(key)), None)


def as_run(shell: str) -> Iterator[str]:
    """Commands of gtmsm that can be run here, one a line."""
    for line in shell.splitlines():
        line = line.removeprefix(".venv/bin/").partition(" #")[0].rstrip()
        if line and line[0] != "#" and not any(re.match(start, line) for start in NOT_RUN):
            yield line


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_docstrings_give_what_they_say(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    if path.stem in ("doom", "memory_maze"):
        pytest.importorskip({"doom": "vizdoom"}.get(path.stem, path.stem))
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
