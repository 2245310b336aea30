"""Lines and columns of the table, made from results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from gtmsm.evaluation.columns import CONTROLS
from gtmsm.evaluation.metrics import late_steps
from gtmsm.reproduce.results import Result
from gtmsm.reproduce.rows import ROWS, Row

FIRST = 16
"""Number of first predicted steps, at which most models do well."""
NOTHING = "nothing"
CONTROL = "control"
"""Stands for the privileges of a control, which docs/protocol.md describes."""


@dataclass(frozen=True)
class Line:
    """Scores of all seeds of a row, or of a control, on one set."""

    name: str
    given: str
    """Privileges, in words."""
    scores: tuple[Mapping[str, Any], ...]
    """Scores of each seed."""
    bold: bool = False

    @property
    def label(self) -> str:
        """Name in a table: GTM-SM and its extensions in bold, controls in italics."""
        return f"**{self.name}**" if self.bold else f"*{self.name}*" if self.given == CONTROL else self.name

    def over_seeds(self, value: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
        """A score of every seed that has it."""
        return [found for scores in self.scores if (found := value(scores)) is not None]


def mean_over(steps: slice) -> Callable[[Mapping[str, Any]], float | None]:
    """A function that averages the PSNR over some predicted steps."""

    def value(scores: Mapping[str, Any]) -> float | None:
        curve = [step for step in scores["psnr_by_step"][steps] if step is not None]
        return mean(curve) if curve else None

    return value


def key(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    """A function that returns the score of that name."""
    return lambda scores: scores.get(name)


@dataclass(frozen=True)
class Field:
    """A column of the table: how its values are computed and formatted."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    digits: int = 2
    factor: float = 1.0
    unit: str = ""

    def cell(self, line: Line) -> str:
        """The mean over seeds ± half their range; also the number of seeds if some lack the score."""
        values = [self.factor * value for value in line.over_seeds(self.value)]
        if not values:
            return "–"
        half = round((max(values) - min(values)) / 2, self.digits)
        spread = f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half:.{self.digits}f}" if half else ""
        some = line.given != CONTROL and len(values) < len(line.scores)
        seeds = f" ({len(values)} of {len(line.scores)})" if some else ""
        return f"{mean(values):.{self.digits}f}{spread}{self.unit}{seeds}"


def fields_of(lines: Sequence[Line], horizon: int) -> list[Field]:
    """The columns in which some line has a value."""
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
    """A table in Markdown; so are its cells."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def marks_of(lines: Sequence[Line]) -> dict[str, str]:
    """A letter for each kind of privileges, since the words would make rows very tall."""
    told = dict.fromkeys(line.given for line in lines if line.given not in (CONTROL, NOTHING))
    return dict(zip(told, "abcdefgh", strict=False))


def sets_of(results: Sequence[Result], world: str) -> list[str]:
    """Sets on which rows of a world were scored, in order of their first appearance."""
    found = (name for r in results if ROWS[r.row].world == world for name in r.facts["scores"])
    return list(dict.fromkeys(found))


def lines_of(results: Sequence[Result], world: str, name: str) -> list[Line]:
    """Lines of a world on one set: GTM-SM and its extensions, rivals, then controls."""
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
    """The privileges of a row in words, including those of the row whose weights it uses."""
    own = "; ".join(result.facts["privileges"]) or NOTHING
    lent = [r.facts["privileges"] for r in results if r.row == row.needs and r.facts["privileges"]]
    return f"{own}, which was given: {'; '.join(lent[0])}" if lent else own
