"""Sections of a report on agents with a heading, in rooms."""

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from gtmsm.evaluation.columns import COPY, Column, gap, has
from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.evaluation.report import page, rooms_plots, sections
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.report.map_film import film_map, tensor_of
from gtmsm.evaluation.report.page import Card
from gtmsm.evaluation.report.rooms_plots import shown_step, stands_still

CLIPS_IN_VIDEO, SIDE, FPS = 2, 192, 12

IN_SEVERAL_ROOMS = (
    (Column("psnr_seen_rooms", "PSNR in rooms seen", "dB", 2), "while memorising"),
    (Column("psnr_seen_rooms_late", "PSNR there, late", "dB", 2), "after step 400"),
    (Column("floor_colour_error", "Floor colour off", "1/255", 1), "in rooms entered again"),
    (Column("wall_colour_error", "Wall colour off", "1/255", 1), "in rooms entered again"),
)

HOW_TO_READ = (
    "<b>Revisited</b> means within 0.25 wall heights and 8° of a memorised pose. Elsewhere the view has to be put "
    "together from others: some of it was seen from another side, some of it never.",
    "<b>Pixels seen before</b> are those whose surface was in sight of some memorised frame, from anywhere: what a "
    "memory can know. The world's own geometry tells them, at every eighth step.",
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


def reading(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on how to read the scores that there are."""
    return HOW_TO_READ + (HOW_TO_READ_SEVERAL_ROOMS if has(scores, "floor_colour_error") else ())


def page_sections(scores: Mapping[str, Any], gallery: RoomsGallery) -> tuple[str, ...]:
    """All sections, from the headline scores to the maps of the example clips."""
    known = sections.known_fraction(scores, "near a memorised pose")
    return (
        page.headlines(list(_cards(scores, gallery)), known, across=4),
        _film(gallery),
        _pose(gallery),
        _poses_over_time(gallery),
        sections.frames(gallery, "near no memorised pose"),
        _errors(scores, gallery),
        sections.horizon(scores, "A drifting pose shows as a growing distance to the memory at true poses."),
        _motion(gallery),
        _maps(gallery),
    )


def _cards(scores: Mapping[str, Any], gallery: RoomsGallery) -> Iterator[Card]:
    """The headline numbers."""
    last, still = f"mean at step {gallery.tau + gallery.future}", stands_still(gallery)

    def card(key: str, label: str, unit: str, digits: int, note: str) -> Card:
        return page.score_card(scores, Column(key, label, unit, digits), note)

    yield card("psnr_pooled", "PSNR, all frames", "dB", 2, "of the mean error")
    yield card("psnr_unseen", "PSNR at new poses", "dB", 2, "never seen while memorising")
    yield card("heading_error", "Heading off", "°", 1, last)
    if still:
        yield Card("Position off", "–", "", "the agent stands still")
    else:
        yield card("position_error_relative", "Position off", "%", 1, f"of the room's width; {last}")
    yield gap_card(scores, "true_pose_memory", "Against true poses", "to the same memory told the true poses")
    if still:
        # An agent that turns on the spot sees equal frames again, so that copying is exact: only new views can tell.
        yield gap_card(scores, COPY, "Against copying", "the nearest frame, at new poses", "psnr_unseen")
    else:
        yield gap_card(scores, COPY, "Against copying", "to the frame memorised nearest to the true pose")
    yield card("psnr_revisited", "PSNR at known poses", "dB", 2, "near a memorised one")
    yield card("ssim", "SSIM", "", 3, "mean over frames, 7×7 windows")
    if has(scores, "psnr_seen_pixels"):
        known = f"surfaces in sight while memorising: {100 * scores['seen_pixels']:.1f}%"
        yield card("psnr_seen_pixels", "PSNR, pixels seen before", "dB", 2, known)
        yield card("psnr_unseen_pixels", "PSNR, pixels never seen", "dB", 2, "surfaces that nothing memorised shows")
    for column, note in IN_SEVERAL_ROOMS:
        if has(scores, column.key):
            yield page.score_card(scores, column, note)


def gap_card(scores: Mapping[str, Any], control: str, name: str, note: str, key: str = "psnr_pooled") -> Card:
    """A card with the signed difference in dB between the model and a control."""
    distance = gap(scores, control, key)
    if distance is None:
        return Card(name, "–", "", note)
    number = f"{distance:+.2f}" if abs(distance) >= 0.005 else "0.00"
    return Card(name, number.replace("-", "−"), "dB", note)


def _film(gallery: RoomsGallery) -> str:
    """Film with the map, true frames, imagined frames and errors."""
    side = max(1, SIDE // gallery.truth.shape[-1]) * gallery.truth.shape[-1]
    maps = [
        film_map(floor, tensor_of(true), gallery.tau, side, tensor_of(inferred))
        for floor, true, inferred in zip(gallery.maps, gallery.true_pose, gallery.inferred_pose, strict=True)
    ][:CLIPS_IN_VIDEO]
    about = (
        "On the map, white dots are memorised places, the large red arrow is the true pose and the small blue one "
        "where the model thinks it is. "
    )
    return sections.film(gallery, CLIPS_IN_VIDEO, SIDE, FPS, about, maps)


def _pose(gallery: RoomsGallery) -> str:
    """Section with the paper's panels: memorised and present poses at one step, and the views there."""
    if stands_still(gallery):
        figure = svg(rooms_plots.turning(gallery, 0), "orientation")
        caption = "Points are orientations memorised. Red: the true one; dashed blue: the inferred one."
    else:
        figure = svg(rooms_plots.walking(gallery, 0), "walk")
        caption = (
            "Dark dots are places memorised. The lines are the way since then, the circles and the lines from them "
            "the pose now: red the true ones, dashed blue as the model infers them from actions alone."
        )
    heading = f"Where it is at step {shown_step(gallery)}, and where it thinks it is"
    return page.section(heading, f'<div class="smooth">{figure}</div>', caption)


def _poses_over_time(gallery: RoomsGallery) -> str:
    """Section with heading and position of a clip over time."""
    where = "Heading" if stands_still(gallery) else "Position in wall heights, and heading"
    return page.section(
        "The way it went, and the way it thinks it went",
        svg(rooms_plots.over_time(gallery, 0), "poses over time"),
        f"{where}, of the same clip. Headings are not wrapped: a full turn is 360°. While memorising, too, poses "
        "come from the actions alone; frames never correct them.",
    )


def _errors(scores: Mapping[str, Any], gallery: RoomsGallery) -> str:
    """Section with the errors of poses at every step."""
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


def _motion(gallery: RoomsGallery) -> str:
    """Section with true and learned displacements of an agent at rest, by action."""
    moves = zip(gallery.action_names, gallery.true_displacement, gallery.displacement, strict=True)
    table = page.table(
        ["ahead", "learned", "to the left", "learned", "turn to the left", "learned"],
        [(escape(name), _cells(true, learned)) for name, true, learned in moves],
    )
    unused = " Actions that its walks never use are never learned." if stands_still(gallery) else ""
    return page.section(
        "What it learned about moving",
        table,
        "What one step of each action does to an agent at rest, in wall heights and degrees, and what the model "
        f"believes it does.{unused}",
    )


def _cells(true: np.ndarray, learned: np.ndarray) -> list[str]:
    """True and learned values of the displacement ahead, to the left, and of the turn."""
    cells = []
    for part, pair in enumerate(zip(true.tolist(), learned.tolist(), strict=True)):
        for value in pair:
            text = f"{math.degrees(value):.1f}°" if part == 2 else f"{value:.3f}"
            # no minus sign before 0
            cells.append((text if text.strip("-0.°") else text.removeprefix("-")).replace("-", "−"))
    return cells


def _maps(gallery: RoomsGallery) -> str:
    """Section with the maps of the clips."""
    way = "Dark: the way that was memorised; red: the way to predict, which ends at the circle."
    if stands_still(gallery):
        way = "The agents stand at the red circle and turn."
    return page.section(
        "The places",
        f'<div class="smooth">{svg(rooms_plots.maps(gallery), "maps")}</div>',
        f"The places of the example clips from above, north up, none of them learned from. {way}",
    )
