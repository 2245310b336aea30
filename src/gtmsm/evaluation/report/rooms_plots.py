"""Figures of a report on agents with a heading, in rooms. Red is the true pose, blue the inferred one."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.evaluation.report.figure_style import BLUE, INK, RED, STYLE, WIDTH, new_figure, two_columns
from gtmsm.evaluation.report.map_film import bounds_of, extent_of
from gtmsm.evaluation.report.plots import bare, pixels, time_axes
from gtmsm.worlds.floor_map import FloorMap

Headings: TypeAlias = Float[np.ndarray, "time"]
Walk: TypeAlias = Float[np.ndarray, "time D"]
SHOWN_TURNING, SHOWN_WALKING = 38, 297
"""Steps shown in the paper's fig:labyrinth, a and b."""
DARK = "#16191d"
"""Colour of dots on a map, which is bright on dark pages, too."""


def stands_still(gallery: RoomsGallery) -> bool:
    """Whether the agents of all clips only turn on the spot."""
    return bool(np.ptp(gallery.true_pose[..., :2], axis=1).max() < 1e-3)


def shown_step(gallery: RoomsGallery) -> int:
    """The step that the paper shows, counted from 1, if it is among the predicted ones; else the last."""
    wanted = SHOWN_TURNING if stands_still(gallery) else SHOWN_WALKING
    last = gallery.tau + gallery.future
    return wanted if gallery.tau < wanted <= last else last


@mpl.rc_context(STYLE)
def turning(gallery: RoomsGallery, clip: int) -> Figure:
    """The paper's fig:labyrinth (a): the map, memorised and present orientations, and the present views."""
    step = shown_step(gallery)
    figure = new_figure(5.0)
    (place, dial), views = figure.subplots(2, 2)
    _draw_map(place, gallery.maps[clip], "the place")
    _present(place, gallery.true_pose[clip, step - 1], RED, "-", 0.5)
    _dial(dial, gallery, clip, step)
    _draw_views(list(views), gallery, clip, step)
    return figure


@mpl.rc_context(STYLE)
def walking(gallery: RoomsGallery, clip: int, step: int | None = None) -> Figure:
    """The paper's fig:labyrinth (b): memorised places, the path since then, and the pose and views at a step.

    Without `step` it is the `shown_step`.
    """
    step, tau = shown_step(gallery) if step is None else step, gallery.tau
    true, inferred = gallery.true_pose[clip], gallery.inferred_pose[clip]
    west, east, south, north = bounds_of(gallery.maps[clip])
    tall = min(5.0, WIDTH * (north - south) / (east - west))
    figure = new_figure(tall + 3.2)
    panels = figure.subplot_mosaic([["place", "place"], ["true", "imagined"]], height_ratios=(tall, 2.3))
    place = panels["place"]
    _draw_map(place, gallery.maps[clip], f"steps 1–{tau} memorised, {tau + 1}–{step} imagined")
    place.scatter(
        *true[:tau, :2].T, s=9, color=DARK, edgecolors="white", linewidths=0.3, zorder=2, label="memorised places"
    )
    _path(place, true[tau:step], RED, "-", "true way since then")
    _path(place, inferred[tau:step], BLUE, (0, (3, 1.5)), "inferred way")
    _present(place, true[step - 1], RED, "-", 0.6)
    _present(place, inferred[step - 1], BLUE, "--", 0.6)
    _draw_views([panels["true"], panels["imagined"]], gallery, clip, step)
    figure.legend(*place.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def over_time(gallery: RoomsGallery, clip: int) -> Figure:
    """True and inferred heading and position over time."""
    poses = gallery.true_pose[clip], gallery.inferred_pose[clip]
    return pose_curves(*poses, gallery.tau, stands_still(gallery))


@mpl.rc_context(STYLE)
def pose_curves(true: Walk, inferred: Walk, tau: int, still: bool) -> Figure:
    """True and inferred coordinates over time; with `still` only the heading, if there is one."""
    true, inferred = true.copy(), inferred.copy()
    rows = [(0, "x", 1.0), (1, "y", 1.0)]
    if true.shape[1] == 3:
        rows.append((2, "heading (degrees)", 180 / math.pi))
        true[:, 2], inferred[:, 2] = unwrapped(true[:, 2], inferred[:, 2])
    if still:
        rows = rows[2:] or rows
    figure = new_figure(0.6 + 1.7 * len(rows))
    axes = list(figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0])
    steps = np.arange(1, len(true) + 1)
    for panel, (part, name, scale) in zip(axes, rows, strict=True):
        panel.plot(steps, scale * true[:, part], color=RED, lw=1.8, label="true")
        panel.plot(steps, scale * inferred[:, part], color=BLUE, lw=1.8, ls=(0, (3, 1.5)), label="inferred")
        panel.set_ylabel(name)
    time_axes(axes, tau, len(steps))
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2, handlelength=1.8)
    return figure


@mpl.rc_context(STYLE)
def errors(scores: Mapping[str, Any], tau: int) -> Figure:
    """Mean errors of heading and position over clips, at every step."""
    curves = (
        ("heading_error_by_step", 1, "heading off (degrees)"),
        ("position_error_relative_by_step", 100, "position off (% of width)"),
    )
    present = [(scores[key], unit, name) for key, unit, name in curves if scores.get(key)]
    figure = new_figure(2.2 * len(present))
    axes = figure.subplots(len(present), 1, squeeze=False)[:, 0]
    for panel, (curve, unit, name) in zip(axes, present, strict=True):
        values = unit * np.array(curve, dtype=float)
        panel.plot(np.arange(1, len(values) + 1), values, color=BLUE, lw=1.8)
        panel.set_ylabel(name)
        panel.set_ylim(0, max(1e-3, 1.12 * np.nanmax(values)))
        time_axes([panel], tau, len(values))
    return figure


@mpl.rc_context(STYLE)
def maps(gallery: RoomsGallery) -> Figure:
    """The map of each clip with the whole true path."""
    count = min(4, len(gallery.maps))
    figure, panels = two_columns(count)
    for clip, axes in enumerate(panels):
        tau, true = gallery.tau, gallery.true_pose[clip]
        _draw_map(axes, gallery.maps[clip], f"clip {clip + 1}")
        _path(axes, true[:tau], DARK, "-", "memorised")
        _path(axes, true[tau - 1 :], RED, "-", "to predict")
        _present(axes, true[-1], RED, "-", 0.5)
    return figure


def _draw_map(axes: Axes, floor: FloorMap, title: str) -> None:
    """Draw a map, in units of the world."""
    axes.imshow(floor.pixels(), extent=extent_of(floor), zorder=0)
    bare(axes, title)
    west, east, south, north = bounds_of(floor)
    rim = 0.02 * (east - west)
    axes.set(xlim=(west - rim, east + rim), ylim=(south - rim, north + rim))
    axes.set_aspect("equal")


def _path(axes: Axes, poses: Float[np.ndarray, "time 3"], colour: str, dash: object, label: str) -> None:
    """Draw a path with a bright outline, visible on floors of any colour."""
    axes.plot(*poses[:, :2].T, color="white", lw=3, alpha=0.55)
    axes.plot(*poses[:, :2].T, color=colour, lw=1.7, ls=dash, label=label)


def _present(axes: Axes, pose: Float[np.ndarray, "3"], colour: str, dash: str, reach: float) -> None:
    """Draw a circle at the agent and a line along its heading."""
    x, y, heading = pose
    ahead = (x + reach * math.cos(heading), y + reach * math.sin(heading))
    axes.plot([x, ahead[0]], [y, ahead[1]], color="white", lw=3.6, alpha=0.7, zorder=4)
    axes.plot([x, ahead[0]], [y, ahead[1]], dash, color=colour, lw=2.2, zorder=4)
    axes.plot(x, y, "o", ms=7, mfc="white", mec=colour, mew=2, zorder=5)


def _dial(axes: Axes, gallery: RoomsGallery, clip: int, step: int) -> None:
    """Draw memorised orientations on a circle, the true one as a line and the inferred one dashed."""
    memorised = gallery.true_pose[clip, : gallery.tau, 2]
    true, inferred = (poses[clip, step - 1, 2] for poses in (gallery.true_pose, gallery.inferred_pose))
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK, lw=0.8, alpha=0.35))
    axes.plot(np.cos(memorised), np.sin(memorised), "o", color=INK, ms=3.6)
    axes.plot([0, 0.93 * math.cos(true)], [0, 0.93 * math.sin(true)], color=RED, lw=2.4)
    axes.plot([0, 0.93 * math.cos(inferred)], [0, 0.93 * math.sin(inferred)], "--", color=BLUE, lw=2.4)
    for height, angle, colour, name in ((-1.28, true, RED, "true α"), (-1.55, inferred, BLUE, "inferred")):
        axes.text(0, height, f"{name} {math.degrees(angle) % 360:.1f}°", color=colour, ha="center", va="center")
    bare(axes, f"orientation, step {step}")
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.7, 1.15))
    axes.set_aspect("equal")


def _draw_views(panels: Sequence[Axes], gallery: RoomsGallery, clip: int, step: int) -> None:
    """Draw the true and the imagined frame of a step."""
    at = step - gallery.tau - 1
    for axes, frames, name in zip(panels, (gallery.truth, gallery.imagined), ("true", "imagined"), strict=True):
        # Enlarged, so that pixels stay square although the page smooths pictures of maps.
        axes.imshow(pixels(frames[clip, at]).repeat(8, 0).repeat(8, 1))
        bare(axes, f"{name} view, step {step}")


def unwrapped(true: Headings, inferred: Headings) -> tuple[Headings, Headings]:
    """Headings without jumps at full turns; inferred ones are shifted by full turns to begin near the true ones."""
    true, inferred = np.unwrap(true), np.unwrap(inferred)
    return true, inferred + 2 * math.pi * np.round((true[0] - inferred[0]) / (2 * math.pi))
