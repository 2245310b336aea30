"""What a report says of walks over images, and of no other world."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import UInt8

from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.report import image_walk_plots, page, path_plots, plots
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.table import Column
from gtmsm.evaluation.video import comparison

CLIPS_IN_VIDEO = 4
CLIPS_IN_STRIPS = 3
FPS = 8

OFTEN_RIGHT = (
    (
        Column("position_within_half_cell_memorised", "Right cell, memorised", "%", 1),
        "position within half a cell while memorising",
    ),
    (
        Column("position_within_half_cell_predicted", "Right cell, predicted", "%", 1),
        "until the first step that failed, which nobody can know",
    ),
    (Column("psnr_unhindered", "PSNR, unhindered", "dB", 2), "at revisited places, until a step failed"),
)
"""Where steps can fail, or the model recognises places."""

HEADLINES = (
    (Column("psnr_revisited", "PSNR at revisited places", "dB", 2), "where memory can know the answer"),
    (Column("psnr_unseen", "PSNR at unseen places", "dB", 2), "where it cannot"),
    (Column("retrieval_revisited", "Right place retrieved", "%", 1), "at revisited places, over the whole horizon"),
    (Column("pose_r2", "R² of position", "", 4), "inferred positions against true ones"),
    (Column("psnr_pooled", "PSNR, all frames", "dB", 2), "of the mean error"),
    (Column("ssim", "SSIM", "", 3), "mean over frames, 7×7 windows"),
)

READING = (
    "<b>Revisited and unseen</b> are scored apart. At a place never memorised nobody can know the answer; "
    "a mean over both says more about the walk than about the model.",
    "<b>Retrieval</b> counts a step as right only if the entry nearest in pose was recorded at exactly the present "
    "true place.",
)


IN_ANY_SPACE = (
    "The inferred space is learned from frames and actions: turned, stretched and mirrored is as good as upright, but "
    "a grid must stay a grid. Dashed: the true walls, mapped by the affine fit."
)
IN_CELLS = (
    "True displacements were learned from, so that the inferred space is in cells from the start, upright, to scale. "
    "Dashed: the true walls, where they are."
)


def sections(scores: Mapping[str, Any], gallery: Gallery) -> tuple[str, ...]:
    """From the headlines to what was learned about moving."""
    present = [(column, note) for column, note in OFTEN_RIGHT if scores.get(column.key) is not None]
    cards = [page.score_card(scores, column, note) for column, note in (*HEADLINES, *present)]
    with ThreadPoolExecutor(1) as aside:
        # Another program makes a film of the frames, while plots are drawn here.
        film = aside.submit(page.film, _frames_of_film(gallery), FPS)
        plotted = _places(gallery), _paths(gallery), _frames(gallery), _over_time(scores), _motion(gallery)
    return page.headlines(cards, _verdict(scores), across=3), _film(film.result()), *plotted


def _verdict(scores: Mapping[str, Any]) -> str:
    """The model against its ceiling and the share of places it could know, in words."""
    parts = []
    ceiling = ((scores.get("controls") or {}).get("vae_ceiling") or {}).get("psnr_revisited")
    mine, share = scores.get("psnr_revisited"), scores.get("revisited_fraction")
    if ceiling is not None and mine is not None:
        gap = ceiling - mine
        side = "below" if gap >= 0 else "above"
        parts.append(f"At revisited places the model is {abs(gap):.2f} dB {side} the ceiling of its own decoder.")
    if share is not None:
        parts.append(f"{100 * share:.0f}% of the predicted steps are at a place that was memorised.")
    return " ".join(parts)


def _frames_of_film(gallery: Gallery) -> UInt8[np.ndarray, "time height width 3"]:
    """Truth, imagination and error, step after step."""
    some = slice(CLIPS_IN_VIDEO)
    scale = max(1, round(128 / gallery.truth.shape[-1]))
    return comparison(gallery.truth[some], gallery.imagined[some], gallery.seen[some], gallery.tau, scale)


def _film(moving: str) -> str:
    """The same, moving."""
    return page.section(
        "Truth and imagination",
        moving,
        "The model sees no frame here, only the actions. The error is the mean absolute difference over colours: "
        "black is none, white is a half or more. Below each clip, whether the place of this step was memorised.",
    )


def _places(gallery: Gallery) -> str:
    """True beside inferred positions."""
    return page.section(
        "Where it was, and where it thinks it was",
        svg(image_walk_plots.positions(gallery, 0), "positions"),
        "A dot is a position visited, coloured by the true place, so one colour is one place in every panel. "
        "The yellow square is the view and the blue squares the position at the end of the phase. "
        f"{IN_CELLS if gallery.metric else IN_ANY_SPACE}",
    )


def _paths(gallery: Gallery) -> str:
    """One walk as it was, as believed, and by its actions alone, where these may differ."""
    if gallery.way is None:
        return ""
    clip = path_plots.worth_showing(gallery, gallery.way)
    return page.section(
        "When steps fail",
        svg(path_plots.paths(gallery, gallery.way, clip), "paths"),
        "The example that actions alone lead farthest astray. Hatched cells are solid, and nobody sees them. <b>Dead "
        "reckoning</b> adds up the actions and the walls that were learned; <b>believed</b> is where the model thinks "
        "it is: while memorising it may correct itself by what it recognises, while imagining it sees nothing. Lines "
        "on the map are drawn a little apart.",
    )


def _frames(gallery: Gallery) -> str:
    """True above imagined frames, early and late."""
    clips = range(min(CLIPS_IN_STRIPS, len(gallery.truth)))
    figures = "".join(svg(image_walk_plots.strips(gallery, clip), f"strips {clip + 1}") for clip in clips)
    return page.section(
        "Frame by frame",
        figures,
        'Steps of the clip are above the frames; <b class="unseen">red</b> steps are at places never memorised, '
        "where no memory can know what is there.",
    )


def _over_time(scores: Mapping[str, Any]) -> str:
    """Scores at each predicted step."""
    return page.section(
        "Over the horizon",
        svg(plots.horizon(scores), "horizon"),
        "Above: PSNR of the error pooled over clips, all places together. Below: how often the memory entry read "
        "was recorded at the present true place, among steps at revisited places. A drifting pose shows as a line "
        "that falls; lines that stay level are memory at work.",
    )


def _motion(gallery: Gallery) -> str:
    """What the motion model has learned."""
    mapped = "" if gallery.metric else " mapped by the affine fit"
    arrows = svg(image_walk_plots.displacements(gallery), "displacements")
    halves = f"<div><h3>Displacement of each action</h3>{arrows}</div>"
    if gallery.wall_values.size:
        heat = svg(image_walk_plots.walls(gallery), "walls")
        halves += f"<div><h3>Walls: σ<sub>d</sub> where a move would end</h3>{heat}</div>"
    return page.section(
        "What it learned about moving",
        f'<div class="halves">{halves}</div>',
        f"Left: rows of the learned M; dashed, the true moves{mapped}. Right: σ<sub>d</sub>, by which "
        "a move is multiplied; white, the true walls. It should be near 1 inside and near 0 just outside; "
        "further out the agent never tried, so anything may stand there.",
    )
