"""Lines and columns of the table, from results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from gtmsm.evaluation.columns import CONTROLS
from gtmsm.evaluation.metrics import late_steps
from gtmsm.reproduce.results import Result
from gtmsm.reproduce.rows import ROWS, Row

FIRST = 16
"""Predicted steps that most models can do."""
NOTHING = "nothing"
CONTROL = "control"
"""What a control is given is said elsewhere: docs/protocol.md."""


@dataclass(frozen=True)
class Line:
    """All seeds of a row on one set, or a control."""

    name: str
    given: str
    """Privileges, in words."""
    scores: tuple[Mapping[str, Any], ...]
    """Of each seed."""
    bold: bool = False

    @property
    def label(self) -> str:
        """In a table: bold what the table is about, controls in italics."""
        return f"**{self.name}**" if self.bold else f"*{self.name}*" if self.given == CONTROL else self.name

    def over_seeds(self, value: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
        """A score of every seed that has it."""
        return [found for scores in self.scores if (found := value(scores)) is not None]


def mean_over(steps: slice) -> Callable[[Mapping[str, Any]], float | None]:
    """The mean over some predicted steps of the PSNR at each."""

    def value(scores: Mapping[str, Any]) -> float | None:
        curve = [step for step in scores["psnr_by_step"][steps] if step is not None]
        return mean(curve) if curve else None

    return value


def key(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    """A score by its name."""
    return lambda scores: scores.get(name)


@dataclass(frozen=True)
class Field:
    """A column."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    digits: int = 2
    factor: float = 1.0
    unit: str = ""

    def cell(self, line: Line) -> str:
        """The mean over seeds, half the range where they differ, and how many there are where some lack the score."""
        values = [self.factor * value for value in line.over_seeds(self.value)]
        if not values:
            return "–"
        half = round((max(values) - min(values)) / 2, self.digits)
        spread = f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.{self.digits}f}" if half else ""
        some = line.given != CONTROL and len(values) < len(line.scores)
        seeds = f" ({len(values)} of {len(line.scores)})" if some else ""
        return f"{mean(values):.{self.digits}f}{spread}{self.unit}{seeds}"


def fields_of(lines: Sequence[Line], horizon: int) -> list[Field]:
    """The columns in which some line has something."""
    late = late_steps(horizon)
    fields = [
        Field(f"steps 1 to {min(FIRST, horizon)}", mean_over(slice(0, FIRST))),
        Field(f"steps {(late.start or 0) + 1} to {horizon}", mean_over(late)),
        Field("pooled", key("psnr_pooled")),
        Field("per frame", key("psnr_frames")),
        Field("revisited", key("psnr_revisited")),
        Field("unseen", key("psnr_unseen")),
        Field("SSIM", key("ssim"), 3),
        Field("FLIP", key("flip"), 3),
        Field("retrieved", key("retrieval_revisited"), 1, 100, "%"),
        Field("R² of positions", key("pose_r2"), 4),
        Field("heading off", key("heading_error"), 2, 1, "°"),
        Field("position off", key("position_error_relative"), 1, 100, "%"),
    ]
    return [field for field in fields if any(line.over_seeds(field.value) for line in lines)]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def marks_of(lines: Sequence[Line]) -> dict[str, str]:
    """A letter for each kind of privileges: in words they would make rows very tall."""
    told = dict.fromkeys(line.given for line in lines if line.given not in (CONTROL, NOTHING))
    return dict(zip(told, "abcdefgh", strict=False))


def sets_of(results: Sequence[Result], world: str) -> list[str]:
    """Sets on which rows of a world were scored, in the order in which they were."""
    found = (name for r in results if ROWS[r.row].world == world for name in r.facts["scores"])
    return list(dict.fromkeys(found))


def lines_of(results: Sequence[Result], world: str, name: str) -> list[Line]:
    """GTM-SM and its extensions, then its rivals, then the controls."""
    rows = [row for row in ROWS.values() if row.world == world and not row.is_ablation]
    lines: list[Line] = []
    for row in rows:
        mine = [r for r in results if r.row == row.name and name in r.facts["scores"]]
        if mine:
            given = _given(row, mine[0], results)
            scores = tuple(r.facts["scores"][name] for r in mine)
            lines.append(Line(row.title, given, scores, bold=not row.rival))
    ours = [r.facts["controls"][name] for r in results if r.row == world and name in r.facts.get("controls", {})]
    for control in dict.fromkeys(control for controls in ours for control in controls):
        label = CONTROLS[control].label if control in CONTROLS else control.replace("_", " ")
        lines.append(Line(label, CONTROL, tuple(scores[control] for scores in ours if control in scores)))
    return lines


def _given(row: Row, result: Result, results: Sequence[Result]) -> str:
    """The privileges of a row; what it is built on passes its own on."""
    own = "; ".join(result.facts["privileges"]) or NOTHING
    lent = [r.facts["privileges"] for r in results if r.row == row.needs and r.facts["privileges"]]
    return f"{own}, which was given: {'; '.join(lent[0])}" if lent else own
