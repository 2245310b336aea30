"""The scores against their controls, in the terminal; and what each row and column means, for the report too."""

from collections.abc import Iterator, Mapping
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


IMAGINED = Row("imagined", "The model: poses from the actions alone, codes from its memory, the mean of the prior.")
SAMPLED = Row(
    "imagined, sampled", "The same, with poses and codes drawn from their distributions instead of following the mean."
)

CONTROLS = {
    "vae_ceiling": Row(
        "VAE ceiling", "Encodes and decodes the true frame: the best this decoder can do, with the answer in hand."
    ),
    "true_pose_memory": Row(
        "memory at true poses", "The same memory and decoder, but told the true positions: what the poses cost."
    ),
    "copy_nearest_true_pose": Row(
        "copy nearest, true pose",
        "Shows the raw frame memorised nearest to the true position: memory without a decoder.",
    ),
    "copy_nearest_predicted_pose": Row(
        "copy nearest, predicted", "Shows the raw frame memorised nearest to the predicted position."
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
    Column("retrieval_revisited", "retrieval", "%", 1),
    Column("retrieval_revisited_last16", "retrieval, last 16", "%", 1),
)

IN_TERMINAL = {"psnr_pooled", "psnr_revisited", "psnr_unseen", "ssim", "retrieval_revisited"}


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
    return f"{100 * value:.{column.digits}f}%" if column.unit == "%" else f"{value:.{column.digits}f}"


def scores_table(scores: Mapping[str, Any]) -> Table:
    """The scores of a model above those of its controls."""
    columns = [column for column in COLUMNS if column.key in IN_TERMINAL]
    table = Table(box=box.SIMPLE_HEAD, caption="PSNR in dB, of the mean error; retrieval at revisited places")
    table.add_column("")
    for column in columns:
        table.add_column(column.label.replace("PSNR ", "PSNR\n"), justify="right", no_wrap=True)
    for name, row, values in rows(scores):
        cells = [shown(values.get(column.key), column) for column in columns]
        table.add_row(
            Text(row.label), *cells, style="bold" if name == "imagined" else None, end_section=name == "imagined"
        )
    return table


def headline(scores: Mapping[str, Any]) -> str:
    """What the table comes to, in a line."""
    retrieval, r2 = scores["retrieval_revisited"], scores["pose_r2"]
    found = "–" if retrieval is None else f"{100 * retrieval:.2f}%"
    return (
        f"right place retrieved at {found} of revisited steps, R² of position {r2:.4f}, "
        f"{100 * scores['revisited_fraction']:.0f}% of the predicted steps were at memorised places"
    )


def comparison_table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Several runs, a row each, and how many of them converged."""
    keys = ("psnr_revisited", "psnr_unseen", "retrieval_revisited", "retrieval_revisited_last16")
    columns = [column for column in COLUMNS if column.key in keys]
    converged = sum(bool(scores.get("converged")) for scores in runs.values())
    bars = f"retrieval at least {CONVERGED['retrieval_revisited']}, R² {CONVERGED['pose_r2']}"
    table = Table(box=box.SIMPLE_HEAD, caption=f"{converged} of {len(runs)} converged ({bars})")
    table.add_column("run", overflow="fold", min_width=12)
    labels = [column.label.replace("PSNR ", "PSNR\n").replace(", ", ",\n") for column in columns]
    for label in [*labels, "VAE\nceiling", "R²"]:
        table.add_column(label, justify="right", no_wrap=True)
    ceiling, r2 = Column("psnr_revisited", "", "dB", 2), Column("pose_r2", "", "", 4)
    for name, scores in runs.items():
        cells = [shown(scores.get(column.key), column) for column in columns]
        best = shown(scores["controls"]["vae_ceiling"]["psnr_revisited"], ceiling)
        table.add_row(Text(name), *cells, best, shown(scores.get("pose_r2"), r2))
    return table
