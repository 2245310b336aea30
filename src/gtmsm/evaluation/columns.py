"""Rows and columns of tables of scores, in the terminal and in the report.

Worlds have different scores: a column is shown only if some row has a value for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gtmsm.evaluation.metrics import PSNR_CAP


@dataclass(frozen=True)
class Row:
    """A way to predict: its label, and what it is."""

    label: str
    about: str


@dataclass(frozen=True)
class Column:
    """A score: its key in scores.json, a short label, its unit and the number of digits to show."""

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
    "best_copy": Row(
        "best copy", "Shows the raw memorised frame that is most like the true one: the answer in hand, no decoder."
    ),
    "copy_nearest_predicted_pose": Row(
        "copy nearest, predicted", "Shows the raw frame memorised nearest to the predicted pose."
    ),
    "last_frame": Row("last frame", "Repeats the last memorised frame: a model that never moves."),
    "mean_frame": Row("mean frame", "Shows the mean of the memorised frames: the safest blur."),
    "random_retrieval": Row("random retrieval", "Decodes a memory entry drawn at random: memory without a map."),
}

KNOWN_STEPS = Column("psnr_unhindered", "PSNR until obstacle", "dB", 2)
"""For worlds where steps can fail: PSNR at revisited places before the first failure; later steps cannot be known."""

COLUMNS = (
    Column("psnr_pooled", "PSNR pooled", "dB", 2),
    Column("psnr_frames", "PSNR per frame", "dB", 2),
    Column("psnr_revisited", "PSNR revisited", "dB", 2),
    Column("psnr_unseen", "PSNR unseen", "dB", 2),
    Column("ssim", "SSIM", "", 3),
)
"""Columns that every world has."""

COLUMNS_OF_SOME = (
    Column("retrieval_revisited", "retrieval", "%", 1),
    Column("retrieval_revisited_last16", "retrieval, last 16", "%", 1),
    Column("psnr_seen_rooms", "PSNR rooms seen", "dB", 2),
    Column("psnr_seen_rooms_late", "PSNR rooms seen, late", "dB", 2),
    Column("floor_colour_error", "floor colour", "1/255", 1),
    Column("wall_colour_error", "wall colour", "1/255", 1),
)
"""Columns of some worlds: retrieval if places are cells; colours and rooms seen if there are several rooms."""

OF_THE_MODEL = (
    Column("heading_error", "heading off", "°", 2),
    Column("position_error_relative", "position off", "%", 2),
    Column("pose_r2", "R²", "", 4),
    Column("position_within_half_cell_memorised", "right cell, memorised", "%", 1),
    Column("position_within_half_cell_predicted", "right cell, predicted", "%", 1),
)
"""Columns of the model itself, which its controls do not have."""

EVERY_COLUMN = {column.key: column for column in (KNOWN_STEPS, *COLUMNS, *COLUMNS_OF_SOME, *OF_THE_MODEL)}
NUMBERS = {*EVERY_COLUMN, "retrieval_unhindered", "pose_r2_unhindered"}
"""Keys of scores whose values must be single numbers, since tables show them or verdicts use them."""


def columns_of(scores: Mapping[str, Any]) -> list[Column]:
    """The columns to show: `KNOWN_STEPS` if steps can fail, then `COLUMNS`, then those of which any row has a value."""
    values = [each for _, _, each in rows(scores)]
    first = [KNOWN_STEPS] if has(scores, KNOWN_STEPS.key) else []
    return [*first, *COLUMNS, *(c for c in COLUMNS_OF_SOME if any(has(each, c.key) for each in values))]


def has_colours(scores: Mapping[str, Any]) -> bool:
    """Whether these are scores in several rooms, which differ by their colours."""
    return any(has(each, "floor_colour_error") for _, _, each in rows(scores))


def rows(scores: Mapping[str, Any]) -> Iterator[tuple[str, Row, Mapping[str, Any]]]:
    """Name, description and scores of each row: the model, its samples, controls in order of CONTROLS, then others."""
    yield "imagined", IMAGINED, scores
    if scores.get("sampled"):
        yield "sampled", SAMPLED, scores["sampled"]
    controls = scores.get("controls") or {}
    for name in [*(n for n in CONTROLS if n in controls), *(n for n in controls if n not in CONTROLS)]:
        if controls[name]:
            yield name, CONTROLS.get(name, Row(name.replace("_", " "), "")), controls[name]


def shown(value: float | None, column: Column) -> str:
    """A score as text: a fraction in percent if the unit is %, a dash if there is no value.

    >>> shown(0.5, Column("retrieval_revisited", "retrieval", "%", 1))
    '50.0%'
    """
    if value is None or value != value:
        return "–"
    if column.unit == "dB" and value >= PSNR_CAP:
        return "exact"
    number = f"{100 * value if column.unit == '%' else value:.{column.digits}f}"
    return f"{number}{column.unit}" if column.unit in ("%", "°") else number


def gap(scores: Mapping[str, Any], control: str, key: str = "psnr_pooled") -> float | None:
    """Difference in dB between the model and a control, by default over all frames; None if either is missing."""
    mine, theirs = scores.get(key), of_control(scores, control, key)
    return None if mine is None or theirs is None else mine - theirs


def of_control(scores: Mapping[str, Any], control: str, key: str) -> float | None:
    """A score of a control; None if it is missing."""
    return ((scores.get("controls") or {}).get(control) or {}).get(key)


def has(scores: Mapping[str, Any], key: str) -> bool:
    """Whether there is such a score, and it is not None."""
    return scores.get(key) is not None
