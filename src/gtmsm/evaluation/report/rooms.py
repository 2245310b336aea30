"""What a report says of agents with a heading, in rooms, and of no other world."""

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.evaluation.report import page, plots, rooms_plots
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.report.map_film import film_map, tensor_of
from gtmsm.evaluation.report.page import Card
from gtmsm.evaluation.report.rooms_plots import shown_step, stands_still
from gtmsm.evaluation.table import COPY, Column, gap
from gtmsm.evaluation.video import comparison

CLIPS_IN_VIDEO = 2
CLIPS_IN_STRIPS = 3
FPS = 12
VIEW = 192
"""Side of a view in the film, in pixels, or a little less."""

IN_SEVERAL_ROOMS = (
    (Column("psnr_seen_rooms", "PSNR in rooms seen", "dB", 2), "while memorising"),
    (Column("psnr_seen_rooms_late", "PSNR there, late", "dB", 2), "after step 400"),
    (Column("floor_colour_error", "Floor colour off", "1/255", 1), "in rooms entered again"),
    (Column("wall_colour_error", "Wall colour off", "1/255", 1), "in rooms entered again"),
)

HOW_TO_READ = (
    "<b>Revisited</b> means within 0.25 wall heights and 8° of a memorised pose. Elsewhere the view has to be put "
    "together from others: some of it was seen from another side, some of it never.",
    "<b>Above copying the nearest frame</b> is what the decoder adds to memory: that control knows the true pose and "
    "shows the raw frame that was memorised nearest to it.",
    "<b>Heading and position</b> are compared with the truth from the true start on (see <i>poses</i> under Protocol). "
    "The width of a room is the side of a square of its area.",
)

HOW_TO_READ_SEVERAL_ROOMS = (
    "<b>Rooms seen</b> are those the agent was in while memorising; <b>late</b> is after step 400. <b>Floor and wall "
    "colour</b> are mean absolute differences, of 255, between the mean colours of the lower part of the true and of "
    "the predicted frame, and of their middle, in rooms seen that were left and entered again: does it know which room "
    "it is in?",
)


def sections(scores: Mapping[str, Any], gallery: RoomsGallery) -> tuple[str, ...]:
    """From the headlines to the places of the example clips."""
    return (
        page.headlines(list(_cards(scores, gallery)), _verdict(scores), across=4),
        _film(gallery),
        _pose(gallery),
        _poses_over_time(gallery),
        _frames(gallery) if gallery.strips else "",
        _errors(scores, gallery),
        _over_time(scores),
        _motion(gallery),
        _maps(gallery),
    )


def reading(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """How to read the numbers that are there."""
    several = scores.get("floor_colour_error") is not None
    return HOW_TO_READ + (HOW_TO_READ_SEVERAL_ROOMS if several else ())


def _cards(scores: Mapping[str, Any], gallery: RoomsGallery) -> Iterator[Card]:
    """The numbers one would say aloud."""
    last = f"mean at step {gallery.tau + gallery.future}"
    yield page.score_card(scores, Column("psnr_pooled", "PSNR, all frames", "dB", 2), "of the mean error")
    yield page.score_card(scores, Column("psnr_unseen", "PSNR at new poses", "dB", 2), "never seen while memorising")
    yield page.score_card(scores, Column("heading_error", "Heading off", "°", 1), last)
    if stands_still(gallery):
        yield Card("Position off", "–", "", "the agent stands still")
    else:
        column = Column("position_error_relative", "Position off", "%", 1)
        yield page.score_card(scores, column, f"of the room's width; {last}")
    yield _gap_card(scores, "true_pose_memory", "Against true poses", "to the same memory told the true poses")
    if stands_still(gallery):
        # Who turns on the spot sees the same pixels again, and copying them is exact: only new views tell.
        yield _gap_card(scores, COPY, "Against copying", "the nearest frame, at new poses", "psnr_unseen")
    else:
        yield _gap_card(scores, COPY, "Against copying", "to the frame memorised nearest to the true pose")
    yield page.score_card(scores, Column("psnr_revisited", "PSNR at known poses", "dB", 2), "near a memorised one")
    yield page.score_card(scores, Column("ssim", "SSIM", "", 3), "mean over frames, 7×7 windows")
    for column, note in IN_SEVERAL_ROOMS:
        if scores.get(column.key) is not None:
            yield page.score_card(scores, column, note)


def _gap_card(scores: Mapping[str, Any], control: str, name: str, note: str, key: str = "psnr_pooled") -> Card:
    """How far the model is from a control, with its sign."""
    distance = gap(scores, control, key)
    if distance is None:
        return Card(name, "–", "", note)
    number = f"{distance:+.2f}" if abs(distance) >= 0.005 else "0.00"
    return Card(name, number.replace("-", "−"), "dB", note)


def _verdict(scores: Mapping[str, Any]) -> str:
    """How much of the future could be known, in words."""
    share = scores.get("revisited_fraction")
    return "" if share is None else f"{100 * share:.0f}% of the predicted steps are near a memorised pose."


def _film(gallery: RoomsGallery) -> str:
    """The map, truth, imagination and error, moving."""
    clips = range(min(CLIPS_IN_VIDEO, len(gallery.truth)))
    scale = max(1, VIEW // gallery.truth.shape[-1])
    side = scale * gallery.truth.shape[-1]
    maps = [
        film_map(
            gallery.maps[clip],
            tensor_of(gallery.true_pose[clip]),
            gallery.tau,
            side,
            tensor_of(gallery.inferred_pose[clip]),
        )
        for clip in clips
    ]
    some = slice(len(clips))
    frames = comparison(gallery.truth[some], gallery.imagined[some], gallery.seen[some], gallery.tau, scale, maps)
    return page.section(
        "Truth and imagination",
        page.film(frames, FPS),
        "The model sees no frame here, only the actions. On the map, white dots are memorised places, the large red "
        "arrow is the true pose and the small blue one where the model thinks it is. The error is the mean absolute "
        "difference over colours: black is none, white is a half or more.",
    )


def _pose(gallery: RoomsGallery) -> str:
    """The paper's panels: memorised and present poses at one step, and what is seen there."""
    step = shown_step(gallery)
    if stands_still(gallery):
        figure = svg(rooms_plots.turning(gallery, 0), "orientation")
        caption = "Points are orientations memorised. Red: the true one; dashed blue: the inferred one."
    else:
        figure = svg(rooms_plots.walking(gallery, 0), "walk")
        caption = (
            "Dark dots are places memorised. The lines are the way since then, the circles and the lines from them "
            "the pose now: red the true ones, dashed blue as the model infers them from actions alone."
        )
    heading = f"Where it is at step {step}, and where it thinks it is"
    return page.section(heading, f'<div class="smooth">{figure}</div>', caption)


def _poses_over_time(gallery: RoomsGallery) -> str:
    """Heading and position of a clip."""
    where = "Heading" if stands_still(gallery) else "Position in wall heights, and heading"
    return page.section(
        "The way it went, and the way it thinks it went",
        svg(rooms_plots.over_time(gallery, 0), "poses over time"),
        f"{where}, of the same clip. Headings are not wrapped: a full turn is 360°. While memorising, too, poses "
        "come from the actions alone; frames never correct them.",
    )


def _frames(gallery: RoomsGallery) -> str:
    """True above imagined frames."""
    clips = range(min(CLIPS_IN_STRIPS, len(gallery.truth)))
    figures = "".join(svg(rooms_plots.strips(gallery, clip), f"strips {clip + 1}") for clip in clips)
    return page.section(
        "Frame by frame",
        figures,
        'Steps of the clip are above the frames; at <b class="unseen">red</b> steps no memorised pose is near.',
    )


def _errors(scores: Mapping[str, Any], gallery: RoomsGallery) -> str:
    """How far off the poses are, step by step."""
    if not scores.get("heading_error_by_step"):
        return ""
    if stands_still(gallery):
        scores = {"heading_error_by_step": scores["heading_error_by_step"]}
    return page.section(
        "How far off the poses are",
        svg(rooms_plots.errors(scores, gallery.tau), "pose errors"),
        "Means over all clips, of absolute differences. Nothing corrects a pose, so small errors add up: "
        "what matters is how steeply the lines rise.",
    )


def _over_time(scores: Mapping[str, Any]) -> str:
    """PSNR at each predicted step."""
    return page.section(
        "Over the horizon",
        svg(plots.horizon(scores), "horizon"),
        "PSNR of the error pooled over clips, revisited and new poses together. A drifting pose shows as a growing "
        "distance to the memory at true poses.",
    )


def _motion(gallery: RoomsGallery) -> str:
    """What each action does to an agent at rest, true beside learned."""
    table = page.table(
        ["ahead", "learned", "to the left", "learned", "turn to the left", "learned"],
        [
            (escape(name), _cells(true, learned))
            for name, true, learned in zip(
                gallery.action_names, gallery.true_displacement, gallery.displacement, strict=True
            )
        ],
    )
    unused = " Actions that its walks never use are never learned." if stands_still(gallery) else ""
    return page.section(
        "What it learned about moving",
        table,
        "What one step of each action does to an agent at rest, in wall heights and degrees, and what the model "
        f"believes it does.{unused}",
    )


def _cells(true: np.ndarray, learned: np.ndarray) -> list[str]:
    """Ahead, left and turn: truth and belief of each."""
    cells = []
    for part, (t, b) in enumerate(zip(true.tolist(), learned.tolist(), strict=True)):
        for value in (t, b):
            text = f"{math.degrees(value):.1f}°" if part == 2 else f"{value:.3f}"
            cells.append(_without_empty_sign(text).replace("-", "−"))
    return cells


def _without_empty_sign(text: str) -> str:
    """Minus nothing is nothing."""
    return text.removeprefix("-") if not text.strip("-0.°") else text


def _maps(gallery: RoomsGallery) -> str:
    """The places of the clips, from above."""
    way = (
        "The agents stand at the red circle and turn."
        if stands_still(gallery)
        else "Dark: the way that was memorised; red: the way to predict, which ends at the circle."
    )
    return page.section(
        "The places",
        f'<div class="smooth">{svg(rooms_plots.maps(gallery), "maps")}</div>',
        f"The places of the example clips from above, north up, none of them learned from. {way}",
    )
