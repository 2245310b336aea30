"""docs/architecture.md follows one update and one `gtmsm imagine` through the files: the code takes the same way."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

import gtmsm
from gtmsm.kernels.operator import OPERATORS

SOURCE = Path(gtmsm.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()


class Stop(NamedTuple):
    file: str
    names: list[str]
    operators: list[str]


def stops(heading: str) -> list[Stop]:
    """Of the numbered list below a heading: a file, what is entered there, and the operators that are called."""
    (text,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^#|^[^\d\s])", PAGE, re.M | re.S)
    found = []
    for stop in re.split(r"^\d+\. ", text, flags=re.M)[1:]:
        file, rest = re.match(r"`([\w/]+\.py)`, (.*)", stop, re.S).groups()  # type: ignore[union-attr]
        entered, _, said = rest.partition(":")
        names = re.findall(r"`([\w.]+)`", entered)
        owner = names[0].partition(".")[0] + "." if "." in names[0] else ""
        names = [name if "." in name or not owner else owner + name for name in names]
        operators = re.findall(r"Operators?[^:]*:\s+((?:`\w+`(?:,\s+)?)+)", said)
        found.append(Stop(file, names, re.findall(r"\w+", " ".join(operators))))
    return found


def entered(walk: Callable[[], object]) -> list[tuple[str, str]]:
    """Functions of gtmsm in the order in which they are entered first, with their files."""
    order: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            order.setdefault((str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname))

    sys.settrace(note)  # calls of Python functions only: it asks for nothing inside of them
    try:
        walk()
    finally:
        sys.settrace(None)
    return list(order)


def imagined(run: Path, tmp_path: Path, command: Callable[..., object]) -> Callable[[], object]:
    return lambda: command("imagine", run, "--steps", 4, "--device", "cpu", "--out", tmp_path / "walk.gif")


def updated(flags: list[str], tmp_path: Path, command: Callable[..., object]) -> Callable[[], object]:
    words = ("--no-evaluate", "--updates", 1, "--warm-up", 0, "--grow", "--no-prospect", "--run", tmp_path / "run")
    return lambda: command("train", "image-walk-small", *flags, *words)


@pytest.mark.parametrize("heading", ["One update", "One `gtmsm imagine`"])
def test_the_code_makes_these_stops_in_this_order(
    heading: str, toy_run: Path, toy_flags: list[str], tmp_path: Path, gtmsm: Callable[..., object]
):
    way = stops(heading)
    assert 8 < len(way) <= 12
    assert len({stop.file for stop in way}) == len(way), "a file is visited twice"
    work = updated(toy_flags, tmp_path, gtmsm) if heading == "One update" else imagined(toy_run, tmp_path, gtmsm)
    order = entered(work)
    for stop in way:
        for name in stop.names:
            assert (stop.file, name) in order, f"{stop.file} {name} is never entered"
        assert set(stop.operators) <= OPERATORS.keys(), stop
    firsts = [order.index((stop.file, stop.names[0])) for stop in way]
    assert firsts == sorted(firsts), [stop.file for stop in way]
