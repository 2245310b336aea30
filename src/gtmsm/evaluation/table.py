"""The scores against their controls, in the terminal; and what each row and column means, for the report too.

Worlds have different scores: a column is shown where there is something in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from gtmsm.evaluation.metrics import CONVERGED, PSNR_CAP


@dataclass(frozen=True)
class Row:
    """A way to predict, and what it tells."""

    label: str
    about: str


@dataclass(frozen=True)
class Column:
    """A score: its key in scores.json, a short name, its unit and the digits worth showing."""

    key: str
    label: str
    unit: str
    digits: int


COPY = "copy_nearest_true_pose"

IMAGINED = Row("imagined", "The model: poses from the actions alone, codes from its memory, the mean of the prior.")
SAMPLED = Row(
    "imagined, sampled", "The same, with poses and codes drawn from their distributions instead of following the mean."
)

CONTROLS = {
    "vae_ceiling": Row(
        "VAE ceiling", "Encodes and decodes the true frame: the best this decoder can do, with the answer in hand."
    ),
    "true_pose_memory": Row(
        "memory at true poses", "The same memory and decoder, but told the true poses: what finding the way costs."
    ),
    COPY: Row(
        "copy nearest, true pose",
        "Shows the raw frame memorised nearest to the true pose: memory without a decoder.",
    ),
    "copy_nearest_predicted_pose": Row(
        "copy nearest, predicted", "Shows the raw frame memorised nearest to the predicted pose."
    ),
    "last_frame": Row("last frame", "Repeats the last memorised frame: a model that never moves."),
    "mean_frame": Row("mean frame", "Shows the mean of the memorised frames: the safest blur."),
    "random_retrieval": Row("random retrieval", "Decodes a memory entry drawn at random: memory without a map."),
}

COLUMNS = (
    Column("psnr_pooled", "PSNR pooled", "dB", 2),
    Column("psnr_frames", "PSNR per frame", "dB", 2),
    Column("psnr_revisited", "PSNR revisited", "dB", 2),
    Column("psnr_unseen", "PSNR unseen", "dB", 2),
    Column("ssim", "SSIM", "", 3),
)
"""What every world has."""

COLUMNS_OF_SOME = (
    Column("retrieval_revisited", "retrieval", "%", 1),
    Column("retrieval_revisited_last16", "retrieval, last 16", "%", 1),
    Column("psnr_seen_rooms", "PSNR rooms seen", "dB", 2),
    Column("psnr_seen_rooms_late", "PSNR rooms seen, late", "dB", 2),
    Column("floor_colour_error", "floor colour", "1/255", 1),
    Column("wall_colour_error", "wall colour", "1/255", 1),
)
"""Retrieval where places are cells; colours, and rooms that were seen, where there are several rooms."""

OF_THE_MODEL = (
    Column("heading_error", "heading off", "°", 2),
    Column("position_error_relative", "position off", "%", 2),
    Column("pose_r2", "R²", "", 4),
)
"""Of the model itself, not of its controls."""

LEFT_TO_THE_REPORT = {"psnr_frames", "retrieval_revisited_last16"}
"""Columns that a terminal has no room for."""

IN_COMPARISONS = {
    "psnr_revisited",
    "psnr_unseen",
    "retrieval_revisited",
    "retrieval_revisited_last16",
    "floor_colour_error",
    "wall_colour_error",
    *(column.key for column in OF_THE_MODEL),
}
"""Columns by which runs are compared; in rooms also by all frames, since few of them can be known exactly."""


def columns_of(scores: Mapping[str, Any]) -> list[Column]:
    """The columns of every world, then those in which any row has something to show."""
    values = [each for _, _, each in rows(scores)]
    return [*COLUMNS, *(column for column in COLUMNS_OF_SOME if any(_has(each, column.key) for each in values))]


def has_heading(scores: Mapping[str, Any]) -> bool:
    """Whether these are scores of an agent that looks somewhere, in rooms."""
    return _has(scores, "heading_error")


def rows(scores: Mapping[str, Any]) -> Iterator[tuple[str, Row, Mapping[str, Any]]]:
    """The model first, then the controls in the order of CONTROLS, then any that are not known here."""
    yield "imagined", IMAGINED, scores
    if scores.get("sampled"):
        yield "sampled", SAMPLED, scores["sampled"]
    controls = scores.get("controls") or {}
    for name in [*(n for n in CONTROLS if n in controls), *(n for n in controls if n not in CONTROLS)]:
        if controls[name]:
            yield name, CONTROLS.get(name, Row(name.replace("_", " "), "")), controls[name]


def shown(value: float | None, column: Column) -> str:
    """A score as text: fractions in percent where the unit says so, a dash where it has no meaning.

    >>> shown(0.5, Column("retrieval_revisited", "retrieval", "%", 1))
    '50.0%'
    """
    if value is None or value != value:
        return "–"
    if column.unit == "dB" and value >= PSNR_CAP:
        return "exact"
    number = f"{100 * value if column.unit == '%' else value:.{column.digits}f}"
    return f"{number}{column.unit}" if column.unit in ("%", "°") else number


def scores_table(scores: Mapping[str, Any]) -> Table:
    """The scores of a model above those of its controls."""
    columns = [column for column in columns_of(scores) if column.key not in LEFT_TO_THE_REPORT]
    table = Table(box=box.SIMPLE_HEAD, caption=_caption(scores, columns))
    table.add_column("")
    for column in columns:
        table.add_column(_narrow(column.label), justify="right", no_wrap=True)
    for name, row, values in rows(scores):
        cells = [shown(values.get(column.key), column) for column in columns]
        table.add_row(
            Text(row.label), *cells, style="bold" if name == "imagined" else None, end_section=name == "imagined"
        )
    return table


def headline(scores: Mapping[str, Any]) -> str:
    """What the table comes to, in a line."""
    if has_heading(scores):
        return f"{_way_found(scores)}; {_quality(scores)}"
    retrieval, r2 = scores["retrieval_revisited"], scores["pose_r2"]
    found = "–" if retrieval is None else f"{100 * retrieval:.2f}%"
    return (
        f"right place retrieved at {found} of revisited steps, R² of position {r2:.4f}, "
        f"{100 * scores['revisited_fraction']:.0f}% of the predicted steps were at memorised places"
    )


def gap(scores: Mapping[str, Any], control: str) -> float | None:
    """How many dB the model is above a control, over all frames; None where either is missing."""
    mine = scores.get("psnr_pooled")
    theirs = ((scores.get("controls") or {}).get(control) or {}).get("psnr_pooled")
    return None if mine is None or theirs is None else mine - theirs


def comparison_table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Several runs of any worlds, a row each, and how many of them converged where that is defined."""
    candidates = (*COLUMNS, *COLUMNS_OF_SOME, *OF_THE_MODEL)
    keys = IN_COMPARISONS | ({"psnr_pooled"} if any(map(has_heading, runs.values())) else set())
    columns = [
        column
        for column in candidates
        if column.key in keys and any(_has(scores, column.key) for scores in runs.values())
    ]
    table = Table(box=box.SIMPLE_HEAD, caption=_how_many_converged(runs))
    table.add_column("run", overflow="fold", min_width=12)
    for label in [*(column.label for column in columns), "VAE ceiling"]:
        table.add_column(_narrow(label), justify="right", no_wrap=True)
    for name, scores in runs.items():
        cells = [shown(scores.get(column.key), column) for column in columns]
        table.add_row(Text(name), *cells, shown(scores["controls"]["vae_ceiling"].get("psnr_revisited"), COLUMNS[0]))
    return table


def _has(scores: Mapping[str, Any], key: str) -> bool:
    """Whether there is such a score, and it says something."""
    return scores.get(key) is not None


def _narrow(label: str) -> str:
    """A heading with its words one below the other."""
    return label.replace(" ", "\n")


def _caption(scores: Mapping[str, Any], columns: Sequence[Column]) -> str:
    """What the numbers of the table are."""
    parts = ["PSNR in dB, of the mean error"]
    if any(column.key == "retrieval_revisited" for column in columns):
        parts.append("retrieval at revisited places")
    if has_heading(scores):
        parts.append("unseen: far from every memorised pose")
    if any(column.unit == "1/255" for column in columns):
        parts.append("rooms seen: while memorising; late: after step 400; colours: mean error there, of 255")
    return "; ".join(parts)


def _way_found(scores: Mapping[str, Any]) -> str:
    """How far off the poses are at the end."""
    steps = len(scores.get("heading_error_by_step") or ())
    after = f" after {steps} steps" if steps else ""
    heading = f"heading {scores['heading_error']:.1f}° off{after}"
    position = scores.get("position_error_relative") or 0.0
    # Nobody who moved is that sure of where it is: this one stood still.
    return heading if position < 5e-4 else f"{heading}, position {100 * position:.1f}% of the room's width"


def _quality(scores: Mapping[str, Any]) -> str:
    """PSNR, and how far it is from what would bound it."""
    parts = [f"{scores['psnr_pooled']:.1f} dB"]
    for control, name in (("true_pose_memory", "the memory at true poses"), (COPY, "copying the nearest frame")):
        distance = gap(scores, control)
        if distance is not None:
            parts.append(f"{abs(distance):.1f} {'above' if distance >= 0 else 'below'} {name}")
    return ", ".join(parts)


def _how_many_converged(runs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Of the runs that can be said to converge: what that means is defined for walks over images."""
    judged = [bool(scores["converged"]) for scores in runs.values() if _has(scores, "converged")]
    if not judged:
        return None
    bars = f"retrieval at least {CONVERGED['retrieval_revisited']}, R² {CONVERGED['pose_r2']}"
    return f"{sum(judged)} of {len(judged)} converged ({bars})"
