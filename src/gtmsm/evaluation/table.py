"""The scores against their controls, in the terminal; and what each row and column means, for the report too.

Worlds have different scores: a column is shown where there is something in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
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
    Column("psnr_unhindered", "PSNR unhindered", "dB", 2),
    Column("psnr_seen_rooms", "PSNR rooms seen", "dB", 2),
    Column("psnr_seen_rooms_late", "PSNR rooms seen, late", "dB", 2),
    Column("floor_colour_error", "floor colour", "1/255", 1),
    Column("wall_colour_error", "wall colour", "1/255", 1),
)
"""Retrieval where places are cells; unhindered where steps can fail; colours, and rooms that were seen, where there are
several rooms."""

OF_THE_MODEL = (
    Column("heading_error", "heading off", "°", 2),
    Column("position_error_relative", "position off", "%", 2),
    Column("pose_r2", "R²", "", 4),
    Column("position_within_half_cell_memorised", "right cell, memorised", "%", 1),
    Column("position_within_half_cell_predicted", "right cell, predicted", "%", 1),
)
"""Of the model itself, not of its controls."""

LEFT_TO_THE_REPORT = {"psnr_frames", "retrieval_revisited_last16"}
"""Columns that a terminal of 80 characters has no room for."""
LEFT_OUT_FOR_COLOURS = {"ssim"}
"""Columns that give way in a terminal to those of several rooms."""

STANDS_STILL = 5e-4
"""Nobody who moved is that sure of where it is, in widths of a room: whoever is stood still."""


@dataclass(frozen=True)
class Comparison:
    """By which columns runs of one kind of world are compared (few enough for 80 characters), and their ceiling."""

    columns: tuple[str, ...]
    ceiling: Column


OVER_IMAGES = Comparison(
    ("psnr_revisited", "psnr_unseen", "retrieval_revisited", "retrieval_revisited_last16", "pose_r2"),
    Column("psnr_revisited", "VAE ceiling, revisited", "dB", 2),
)
AMONG_OBSTACLES = Comparison(
    (
        "psnr_revisited", "psnr_unhindered", "retrieval_revisited", "position_within_half_cell_memorised",
        "position_within_half_cell_predicted",
    ),
    OVER_IMAGES.ceiling,
)  # fmt: skip
"""Where steps can fail, or models recognise places: is the agent in the right cell?"""
IN_A_ROOM = Comparison(
    ("psnr_pooled", "psnr_revisited", "psnr_unseen", "heading_error", "position_error_relative"),
    Column("psnr_pooled", "VAE ceiling, pooled", "dB", 2),
)
"""Also by all frames, since few of them can be known exactly."""
IN_SEVERAL_ROOMS = Comparison(
    (
        "psnr_pooled", "psnr_unseen", "heading_error", "position_error_relative", "floor_colour_error",
        "wall_colour_error",
    ),
    IN_A_ROOM.ceiling,
)  # fmt: skip
"""Where any run has colours: there is no room for them and for revisited poses."""


def columns_of(scores: Mapping[str, Any]) -> list[Column]:
    """The columns of every world, then those in which any row has something to show."""
    values = [each for _, _, each in rows(scores)]
    return [*COLUMNS, *(column for column in COLUMNS_OF_SOME if any(_has(each, column.key) for each in values))]


def has_heading(scores: Mapping[str, Any]) -> bool:
    """Whether these are scores of an agent that looks somewhere, in rooms."""
    return _has(scores, "heading_error")


def has_colours(scores: Mapping[str, Any]) -> bool:
    """Whether these are scores among several rooms, which are told apart by their colours."""
    return any(_has(each, "floor_colour_error") for _, _, each in rows(scores))


def has_cells(scores: Mapping[str, Any]) -> bool:
    """Whether it was scored how often the agent was in the right cell: where steps can fail, or with landmarks."""
    return _has(scores, "position_within_half_cell_memorised")


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
    left_out = LEFT_TO_THE_REPORT | (LEFT_OUT_FOR_COLOURS if has_colours(scores) else set())
    columns = [column for column in columns_of(scores) if column.key not in left_out]
    table = _table("", columns, _caption(scores, columns))
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
        f"{_cells_found(scores) if has_cells(scores) else ''}"
    )


def gap(scores: Mapping[str, Any], control: str, key: str = "psnr_pooled") -> float | None:
    """How many dB the model is above a control, over all frames unless told; None where either is missing."""
    mine, theirs = scores.get(key), _of_control(scores, control, key)
    return None if mine is None or theirs is None else mine - theirs


def comparison_table(runs: Mapping[str, Mapping[str, Any]]) -> Group:
    """Several runs, a row each, in a table for each kind of world: they have few scores in common."""
    over_images = {name: scores for name, scores in runs.items() if not has_heading(scores)}
    in_rooms = {name: scores for name, scores in runs.items() if has_heading(scores)}
    of_rooms = IN_SEVERAL_ROOMS if any(map(has_colours, in_rooms.values())) else IN_A_ROOM
    of_images = AMONG_OBSTACLES if any(map(has_cells, over_images.values())) else OVER_IMAGES
    kinds = ((over_images, of_images), (in_rooms, of_rooms))
    tables = [_compared(alike, comparison) for alike, comparison in kinds if alike]
    return Group(*tables[:1], *(part for table in tables[1:] for part in ("", table)))


def _compared(runs: Mapping[str, Mapping[str, Any]], comparison: Comparison) -> Table:
    """Runs of one kind of world, and how many of them converged where that is defined."""
    known = {column.key: column for column in (*COLUMNS, *COLUMNS_OF_SOME, *OF_THE_MODEL)}
    columns, ceiling = [known[key] for key in comparison.columns], comparison.ceiling
    table = _table("run", [*columns, ceiling], _how_many_converged(runs))
    for name, scores in runs.items():
        cells = [shown(scores.get(column.key), column) for column in columns]
        table.add_row(_RunName(name), *cells, shown(_of_control(scores, "vae_ceiling", ceiling.key), ceiling))
    return table


@dataclass(frozen=True)
class _RunName:
    """A path that loses its first folders where it is too long; what tells runs apart is at its end."""

    path: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(self.shortened(1)), len(self.path))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.shortened(options.max_width), overflow="fold")

    def shortened(self, width: int) -> str:
        """As many of its last folders as fit, but at least the last.

        >>> _RunName("runs/may/walk/rooms").shortened(14)
        '…/walk/rooms'
        """
        folders = PurePath(self.path).parts
        endings = ("…/" + "/".join(folders[start:]) for start in range(1, len(folders)))
        fitting = (ending for ending in (self.path, *endings) if len(ending) <= width)
        return next(fitting, folders[-1] if folders else self.path)


def _table(names: str, columns: Sequence[Column], caption: str | None) -> Table:
    """A name and numbers in each row, as close together as can be read: a terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, caption=caption)
    table.add_column(names, overflow="fold")
    for column in columns:
        table.add_column(_narrow(column.label), justify="right", no_wrap=True)
    return table


def _of_control(scores: Mapping[str, Any], control: str, key: str) -> float | None:
    """A score of a control; None where it is missing."""
    return ((scores.get("controls") or {}).get(control) or {}).get(key)


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
    if any(column.key == "psnr_unhindered" for column in columns):
        parts.append("unhindered: revisited, before a step failed")
    if has_heading(scores):
        parts.append("unseen: far from every memorised pose")
    if any(column.unit == "1/255" for column in columns):
        parts.append(
            "rooms seen: while memorising; late: after step 400; colours: mean error in rooms entered again, of 255"
        )
    return "; ".join(parts)


def _cells_found(scores: Mapping[str, Any]) -> str:
    """How often the position was within half a cell, and what actions alone come to."""
    parts = []
    for phase, when in (("memorised", "while memorising"), ("predicted", "while predicting, until a step failed")):
        mine, theirs = (scores.get(f"{prefix}position_within_half_cell_{phase}") for prefix in ("", "dead_reckoning_"))
        if mine is not None:
            by_actions = "" if theirs is None else f" (by actions alone {100 * theirs:.1f}%)"
            parts.append(f"{100 * mine:.1f}% {when}{by_actions}")
    return f"; in the right cell at {', '.join(parts)}" if parts else ""


def _only_turns(scores: Mapping[str, Any]) -> bool:
    """Whether the agent stood still all the time."""
    return (scores.get("position_error_relative") or 0.0) < STANDS_STILL


def _way_found(scores: Mapping[str, Any]) -> str:
    """How far off the poses are at the end."""
    steps = len(scores.get("heading_error_by_step") or ())
    after = f" after {steps} steps" if steps else ""
    heading = f"heading {scores['heading_error']:.1f}° off{after}"
    if _only_turns(scores):
        return heading
    return f"{heading}, position {100 * scores['position_error_relative']:.1f}% of the room's width"


def _quality(scores: Mapping[str, Any]) -> str:
    """PSNR, and how far it is from what would bound it."""
    parts = [f"{scores['psnr_pooled']:.1f} dB"]
    to_memory = gap(scores, "true_pose_memory")
    if to_memory is not None:
        parts.append(f"{_above_or_below(to_memory)} the memory at true poses")
    # A heading comes back exactly, and its frame with it: only frames that were never seen are a contest.
    key, where = ("psnr_unseen", " at unseen headings") if _only_turns(scores) else ("psnr_pooled", "")
    if gap(scores, COPY, key) is None:
        key, where = "psnr_pooled", ""
    to_copy = gap(scores, COPY, key)
    if to_copy is not None:
        is_exact = (_of_control(scores, COPY, key) or 0.0) >= PSNR_CAP
        told = "copying is exact" if is_exact else f"{_above_or_below(to_copy)} copying the nearest frame"
        parts.append(told + where)
    return ", ".join(parts)


def _above_or_below(distance: float) -> str:
    """A distance in dB, in words."""
    return f"{abs(distance):.1f} {'above' if distance >= 0 else 'below'}"


def _how_many_converged(runs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Of the runs that can be said to converge: what that means is defined for walks over images."""
    judged = [bool(scores["converged"]) for scores in runs.values() if _has(scores, "converged")]
    if not judged:
        return None
    bars = f"retrieval at least {CONVERGED['retrieval_revisited']}, R² {CONVERGED['pose_r2']}"
    return f"{sum(judged)} of {len(judged)} converged ({bars})"
