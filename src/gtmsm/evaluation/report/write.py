"""report.html: one self-contained page that shows what a model can and cannot do."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from gtmsm.evaluation.columns import columns_of, rows, shown
from gtmsm.evaluation.gallery import Gallery, ImageGallery, RecordedGallery, RoomsGallery
from gtmsm.evaluation.report import image_walk, page, recorded, rooms
from gtmsm.evaluation.report.sections import landmarks
from gtmsm.files import write_atomically

PAGES: dict[type[Gallery], Any] = {ImageGallery: image_walk, RoomsGallery: rooms, RecordedGallery: recorded}
"""The module for each kind of world, with functions `page_sections` and `reading`."""

READING = (
    "<b>PSNR pooled</b> is the PSNR of the mean squared error, so the worst frames weigh most. <b>PSNR per "
    "frame</b> is the mean of each frame's PSNR; an exact copy (<i>exact</i> in the table) counts as 100 dB, "
    "which favours the controls that copy.",
    "<b>VAE ceiling less imagined</b> at revisited places is what remembering costs. <b>Memory at true poses less "
    "imagined</b> is what finding the way costs: near zero, the poses are right.",
    "<b>SSIM</b> uses a uniform 7×7 window, since frames may be as small as 8×8; do not compare it with "
    "values from the usual 11×11 Gaussian.",
)


def write_report(
    path: Path,
    scores: Mapping[str, Any],
    gallery: Gallery,
    title: str,
    about: Mapping[str, str],
    verdict: str = "",
) -> None:
    """Write the report; an older one at `path` is replaced only when this one is complete.

    `verdict` says how reliable the result of the search for the motion is; empty if there was none or it is unknown.
    """
    world = PAGES[type(gallery)]
    sections = (
        *world.page_sections(scores, gallery),
        *landmarks(scores),
        _table(scores),
        page.points("How to read this", (*world.reading(scores), *READING)),
        page.points("The search for the motion", [f"{escape(verdict[:1].upper() + verdict[1:])}."]) if verdict else "",
        page.facts("Protocol", scores.get("protocol") or {}),
        page.facts("About this run", about) if about else "",
    )
    lead = f"{gallery.tau} steps memorised, {gallery.future} imagined from the actions alone."
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.whole_page(title, lead, sections))


def _table(scores: Mapping[str, Any]) -> str:
    """The table of the model's scores and its controls'."""
    columns = columns_of(scores)
    units = (f"<small>{column.unit}</small>" if column.unit in ("dB", "1/255") else "" for column in columns)
    head = [f"{escape(column.label)}{unit}" for column, unit in zip(columns, units, strict=True)]
    lines = (
        (
            f"{escape(row.label)}<small>{escape(row.about)}</small>",
            [shown(values.get(column.key), column) for column in columns],
        )
        for _, row, values in rows(scores)
    )
    return f"<section><h2>Against the controls</h2>{page.table(head, lines, main=0)}</section>"
