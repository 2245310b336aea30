"""The guide "Your environment in ten minutes", at toy size: its commands and its Python run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from gtmsm import cli

GUIDE = Path(__file__).parents[1] / "docs" / "your-environment.md"
TOY = {
    "record": "--clips 6 --steps 40 --workers 1",
    "train": "--updates 2 --batch 2 --evaluation.clips 2 --device cpu",
    "evaluate": "--clips 2 --device cpu",
}
"""Flags that a command of the guide has as well; the last of two counts."""


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.S))


@pytest.mark.slow
def test_the_commands_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line, comments=True) for line in blocks("sh").splitlines() if line]
    assert [words[1] for words in lines] == ["record", "data", "data", "train", "evaluate", "imagine"]
    for _, verb, *words in lines:
        with pytest.raises(SystemExit, match="^0$"):
            cli.main([verb, *words, *TOY.get(verb, "").split()])
    for made in ("mazes", "mazes.png", "runs/mazes/report.html", "mazes.mp4"):
        assert (tmp_path / made).exists()


@pytest.mark.slow
def test_the_python_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    toy = blocks("python").replace("range(60)", "range(24)")
    exec(toy.replace("updates=20", "updates=2, batch=2, evaluation__clips=2"), known)
    assert (tmp_path / "runs/rooms/report.html").exists()
