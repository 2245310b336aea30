"""Sections of a report on recorded episodes."""

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from gtmsm.evaluation.columns import COPY, KNOWN_STEPS, Column, gap, has
from gtmsm.evaluation.gallery import RecordedGallery
from gtmsm.evaluation.report import page, sections
from gtmsm.evaluation.report.figure_style import BLUE, INK, RED, STYLE, svg, two_columns
from gtmsm.evaluation.report.page import Card
from gtmsm.evaluation.report.rooms import gap_card
from gtmsm.evaluation.report.rooms_plots import errors, pose_curves

CLIPS_IN_VIDEO, SIDE, FPS = 4, 128, 10

WITH_POSES = (
    "<b>Revisited</b> means within half of a median step of a memorised position and, where headings are known, within "
    "8°. <b>Retrieval</b> is scored where poses come back exactly, as on a grid.",
    "<b>Heading and position</b> are compared with the truth from the start of each clip on (see <i>poses</i> under "
    "Protocol); the extent of a place is the larger side of the area that a clip covers, the median of all clips.",
)
WITHOUT_POSES = (
    "<b>Revisited</b> means that the very same frame was memorised, pixel by pixel; <b>retrieval</b>, that the entry "
    "nearest in pose shows it: two places that look the same count as one. Where no frame ever comes back exactly, "
    "neither has a score. Poses were not recorded, so nothing is said about them.",
)


def reading(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on how to read the scores that there are."""
    return WITH_POSES if has(scores, "position_error") else WITHOUT_POSES


def page_sections(scores: Mapping[str, Any], gallery: RecordedGallery) -> tuple[str, ...]:
    """All sections, from the headline scores to the learned motion."""
    where = "near a memorised pose" if gallery.has_poses else "views that were memorised exactly so"
    return (
        page.headlines(list(_cards(scores, gallery)), sections.known_fraction(scores, where), across=4),
        sections.film(gallery, CLIPS_IN_VIDEO, SIDE, FPS, ""),
        sections.frames(gallery, f"not {where}"),
        *_poses(scores, gallery),
        sections.horizon(scores, "A drifting pose shows as a curve that falls towards the mean frame."),
        _motion(gallery),
    )


def _cards(scores: Mapping[str, Any], gallery: RecordedGallery) -> Iterator[Card]:
    """The headline numbers that the scores have."""
    last = f"mean at step {gallery.tau + gallery.future}"
    named = (
        (KNOWN_STEPS, "at revisited places: what comes after a bump cannot be known"),
        (Column("psnr_pooled", "PSNR, all frames", "dB", 2), "of the mean error"),
        (Column("psnr_revisited", "PSNR, seen before", "dB", 2), "where memory can know the answer"),
        (Column("psnr_unseen", "PSNR, never seen", "dB", 2), "where it has to be put together"),
        (Column("retrieval_revisited", "Right place retrieved", "%", 1), "of steps that came back"),
        (Column("heading_error", "Heading off", "°", 1), last),
        (Column("position_error_relative", "Position off", "%", 1), f"of a place's extent; {last}"),
        (Column("position_error", "Position off", "", 3), f"in units of your poses; {last}"),
        (Column("pose_r2", "R² of position", "", 4), "inferred positions against true ones"),
    )
    yield from (page.score_card(scores, column, note) for column, note in named if has(scores, column.key))
    yield gap_card(scores, "mean_frame", "Against the mean frame", "the safest blur")
    yield gap_card(scores, "vae_ceiling", "Against the ceiling", "the true frame, coded and decoded")
    if gap(scores, COPY) is not None:
        yield gap_card(scores, COPY, "Against copying", "the frame memorised nearest to the true pose")
    yield page.score_card(scores, Column("ssim", "SSIM", "", 3), "mean over frames, 7×7 windows")


def _poses(scores: Mapping[str, Any], gallery: RecordedGallery) -> Iterator[str]:
    """Sections with paths, poses over time and errors; none if poses are unknown."""
    if not gallery.has_poses:
        return
    yield page.section(
        "Where it was, and where it thinks it was",
        svg(paths(gallery), "paths"),
        "Grey: the way that was memorised; red: the true way to predict, which ends at the dot; dashed blue: the way "
        "as the model infers it from actions alone, from the start of the clip on.",
    )
    yield page.section(
        "The way it went, and the way it thinks it went",
        svg(over_time(gallery), "poses over time"),
        "Of the first clip, in units of your poses. While memorising, too, poses come from the actions alone.",
    )
    if scores.get("position_error_relative_by_step"):
        yield page.section(
            "How far off the poses are",
            svg(errors(scores, gallery.tau), "pose errors"),
            "Means over all clips. Nothing corrects a pose, so small errors add up, and a bump that was not foreseen "
            "is never made good: what matters is how steeply the lines rise.",
        )


@mpl.rc_context(STYLE)
def paths(gallery: RecordedGallery) -> Figure:
    """True and inferred paths of the first four clips."""
    count, tau = min(4, len(gallery.true_pose)), gallery.tau
    figure, panels = two_columns(count)
    for clip, axes in enumerate(panels):
        true, inferred = gallery.true_pose[clip], gallery.inferred_pose[clip]
        axes.plot(*true[:tau, :2].T, color=INK, lw=1.2, alpha=0.45)
        axes.plot(*true[tau - 1 :, :2].T, color=RED, lw=1.7)
        axes.plot(*inferred[:, :2].T, color=BLUE, lw=1.5, ls=(0, (3, 1.5)))
        axes.plot(*true[-1, :2], "o", color=RED, ms=5)
        axes.set_title(f"clip {clip + 1}")
        axes.set_aspect("equal", adjustable="datalim")
    return figure


def over_time(gallery: RecordedGallery) -> Figure:
    """True and inferred coordinates of the first clip over time."""
    true = gallery.true_pose[0]
    still = bool(np.ptp(true[:, :2], axis=0).max() < 1e-6)
    return pose_curves(true, gallery.inferred_pose[0], gallery.tau, still)


def _motion(gallery: RecordedGallery) -> str:
    """Section with the learned displacement of each action and, if poses are known, the recorded one."""
    heading = gallery.displacement.shape[1] == 3
    names = ("ahead", "to the left", "turn to the left") if heading else ("first axis", "second axis")
    known = bool(np.isfinite(gallery.true_displacement).any())
    head = [part for name in names for part in ([f"{name}, recorded", "learned"] if known else [name])]
    moves = zip(gallery.action_names, gallery.true_displacement, gallery.displacement, strict=True)
    table = page.table(head, [(escape(name), _cells(true, learned, known)) for name, true, learned in moves])
    units = "in units of your poses" if gallery.has_poses else "in units of the model's own"
    turned = ", turns in degrees" if heading else ""
    of = "a 1 along each axis of the action" if gallery.continuous else "each action"
    recorded = " Recorded: the median of its steps in the test." if known else ""
    free = "" if gallery.has_poses else " Without poses, its scale, its directions and which way is left are free."
    return page.section(
        "What it learned about moving",
        table,
        f"What one step of {of} does to an agent at rest, {units}{turned}.{recorded}{free}",
    )


def _cells(true: np.ndarray, learned: np.ndarray, known: bool) -> list[str]:
    """Cells of a row: each coordinate as recorded, if `known`, and as learned."""
    cells = []
    for part, pair in enumerate(zip(true.tolist(), learned.tolist(), strict=True)):
        for value in pair if known else pair[1:]:
            text = f"{math.degrees(value):.1f}°" if part == 2 else f"{value:.3f}"
            text = text if text.strip("-0.°") else text.removeprefix("-")
            cells.append("–" if math.isnan(value) else text.replace("-", "−"))
    return cells
