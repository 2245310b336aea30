"""Sections of a report on walks over images."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gtmsm.evaluation.columns import KNOWN_STEPS, Column, gap, has
from gtmsm.evaluation.gallery import ImageGallery
from gtmsm.evaluation.report import image_walk_plots, page, sections
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.table import known_steps

CLIPS_IN_VIDEO, SIDE, FPS = 4, 128, 8

WHERE_STEPS_FAIL = (
    (
        Column(KNOWN_STEPS.key, "PSNR until the first obstacle", "dB", 2),
        "or slip, at revisited places: what comes after it cannot be known",
    ),
    (
        Column("position_within_half_cell_memorised", "Right cell, memorised", "%", 1),
        "position within half a cell while memorising",
    ),
    (
        Column("position_within_half_cell_predicted", "Right cell, predicted", "%", 1),
        "until the first step that failed",
    ),
)
"""Headline scores with notes, for worlds where steps can fail and for models with landmarks."""

HEADLINES = (
    (Column("psnr_revisited", "PSNR at revisited places", "dB", 2), "where memory can know the answer"),
    (Column("psnr_unseen", "PSNR at unseen places", "dB", 2), "where it cannot"),
    (Column("retrieval_revisited", "Right place retrieved", "%", 1), "at revisited places, over the whole horizon"),
    (Column("pose_r2", "R² of position", "", 4), "inferred positions against true ones"),
    (Column("psnr_pooled", "PSNR, all frames", "dB", 2), "of the mean error"),
    (Column("ssim", "SSIM", "", 3), "mean over frames, 7×7 windows"),
)

READING = (
    "<b>Revisited and unseen</b> have scores of their own. At a place never memorised nobody can know the answer; "
    "a mean over both says more about the walk than about the model.",
    "<b>Retrieval</b> counts a step as right only if the entry nearest in pose was recorded at exactly the present "
    "true place. Controls that are told the true place retrieve it by construction, so they have no such score.",
)


def reading(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on how to read the scores."""
    return READING


def page_sections(scores: Mapping[str, Any], gallery: ImageGallery) -> tuple[str, ...]:
    """All sections, from the headline scores to the learned motion."""
    leading = [(column, note) for column, note in WHERE_STEPS_FAIL if has(scores, column.key)]
    others = HEADLINES
    if has(scores, KNOWN_STEPS.key):
        others = ((HEADLINES[0][0], "those after an obstacle, which cannot be known, included"), *HEADLINES[1:])
    cards = [page.score_card(scores, column, note) for column, note in (*leading, *others)]
    with ThreadPoolExecutor(1) as other:  # the film is encoded in parallel with plotting
        film = other.submit(sections.film, gallery, CLIPS_IN_VIDEO, SIDE, FPS, "")
        plots = (
            _places(gallery),
            _paths(gallery),
            sections.frames(gallery, "at places never memorised, where no memory can know what is there"),
            sections.horizon(
                scores,
                "Below: how often the memory entry read was recorded at the present true place, among steps at "
                "revisited places. A drifting pose shows as a line that falls; lines that stay level are memory at "
                "work.",
            ),
            _motion(gallery),
        )
    return page.headlines(cards, _verdict(scores), across=3), film.result(), *plots


def _verdict(scores: Mapping[str, Any]) -> str:
    """The model's distance from the VAE ceiling at revisited places, and the fraction of these, in words."""
    known = sections.known_fraction(scores, "at a place that was memorised")
    if has(scores, KNOWN_STEPS.key):
        return f"{known_steps(scores)}. {known}"
    distance = gap(scores, "vae_ceiling", "psnr_revisited")
    if distance is None:
        return known
    side = "above" if distance > 0 else "below"
    return f"At revisited places the model is {abs(distance):.2f} dB {side} the ceiling of its own decoder. {known}"


def _places(gallery: ImageGallery) -> str:
    """Section with true and inferred positions."""
    space = (
        "True displacements were learned from, so that the inferred space is in cells from the start, upright, to "
        "scale. Dashed: the true walls, where they are."
        if gallery.metric
        else "The inferred space is learned from frames and actions: turned, stretched and mirrored is as good as "
        "upright, but a grid must stay a grid. Dashed: the true walls, mapped by the affine fit."
    )
    return page.section(
        "Where it was, and where it thinks it was",
        svg(image_walk_plots.positions(gallery, 0), "positions"),
        "A dot is a position visited, coloured by the true place, so one colour is one place in every panel. "
        f"The yellow square is the view and the blue squares the position at the end of the phase. {space}",
    )


def _paths(gallery: ImageGallery) -> str:
    """Section with the true path of a walk, the inferred one and dead reckoning; empty if these cannot differ."""
    if gallery.way is None:
        return ""
    clip = image_walk_plots.worth_showing(gallery, gallery.way)
    return page.section(
        "When steps fail",
        svg(image_walk_plots.paths(gallery, gallery.way, clip), "paths"),
        "The example that actions alone lead farthest astray. Hatched cells are solid, and nobody sees them. <b>Dead "
        "reckoning</b> adds up the actions and the walls that were learned; <b>believed</b> is where the model thinks "
        "it is: while memorising it may correct itself by what it recognises, while imagining it sees nothing. Lines "
        "on the map are drawn a little beside each other.",
    )


def _motion(gallery: ImageGallery) -> str:
    """Section with the learned displacements and walls."""
    mapped = "" if gallery.metric else " mapped by the affine fit"
    parts = [f"<h3>Displacement of each action</h3>{svg(image_walk_plots.displacements(gallery), 'displacements')}"]
    if gallery.wall_values.size:
        heat = svg(image_walk_plots.walls(gallery), "walls")
        parts.append(f"<h3>Walls: σ<sub>d</sub> where a move would end</h3>{heat}")
    return page.section(
        "What it learned about moving",
        page.halves(*parts),
        f"Displacements are rows of the learned M; dashed, the true moves{mapped}. σ<sub>d</sub> multiplies a move; "
        "white, the true walls. It should be near 1 inside and near 0 just outside; further out the agent never tried, "
        "so anything may stand there.",
    )
