"""The answer as a figure: the picture asked for, the memory entry most like it, and where on the map it was seen."""

from pathlib import Path
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke

from gtmsm.errors import InputError
from gtmsm.evaluation.report.figure_style import BLUE, GREY, ORANGE, STYLE, new_figure
from gtmsm.evaluation.report.plots import bare
from gtmsm.files import replacing
from gtmsm.find.ground import Ground
from gtmsm.find.words import DOUBTFUL, worth_telling
from gtmsm.model.localisation import PoseMixture

Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
Pictures: TypeAlias = UInt8[np.ndarray, "time height width 3"]
DARK = "#16191d"
ARROW = 0.07
"""Length of an arrow that shows a heading, in widths of the map."""


@mpl.rc_context(STYLE)
def draw_answer(
    path: Path, ground: Ground, where: PoseMixture, headline: str, picture: Picture, name: str, memorised: Pictures
) -> None:
    """Write the figure as a PNG."""
    lost, entry = float(where.unknown[0]) > DOUBTFUL, int(where.entry[0, 0])
    figure = new_figure(5.9, 7.4)
    figure.get_layout_engine().set(wspace=0.05, hspace=0.04)
    rows = [["asked", "place"], ["like", "place"], ["note", "note"]]
    panels = figure.subplot_mosaic(rows, width_ratios=(1, 2.15), height_ratios=(1, 1, 0.42))
    _view(panels["asked"], picture, "asked for", name)
    _view(panels["like"], memorised[entry], "most like it in memory", f"step {entry + 1} of {len(memorised)}")
    place = panels["place"]
    _draw_ground(place, ground)
    _draw_places(place, ground, where, GREY if lost else BLUE)
    at = ground.chart.pixel(ground.path[entry])
    place.plot(*at, "s", ms=6, mfc="none", mec=ORANGE, mew=1.8, zorder=4)
    figure.suptitle(headline, x=0.01, ha="left", fontsize=12, fontweight="bold")
    _explain(panels["note"], ground, lost, entry)
    try:
        with replacing(path) as draft:
            figure.savefig(draft, format="png", dpi=160, facecolor="white")
    except OSError as problem:
        raise InputError(f"could not write {path}: {problem.strerror or problem}") from problem


def _view(axes: Axes, picture: Picture, title: str, name: str) -> None:
    """Draw a frame, with its pixels as squares."""
    axes.imshow(picture)
    bare(axes, title)
    axes.set_xlabel(name if len(name) <= 36 else f"…{name[-35:]}", loc="left")


def _draw_ground(axes: Axes, ground: Ground) -> None:
    """Draw the map, and the memorised path faintly on it."""
    tall, wide = ground.chart.picture.shape[:2]
    axes.imshow(ground.chart.picture, extent=(0, wide, tall, 0), zorder=0)
    bare(axes, ground.title)
    axes.set(xlim=(0, wide), ylim=(tall, 0))
    way = ground.chart.pixel(ground.path)
    axes.plot(*way.T, color="white", lw=2.6, alpha=0.45, zorder=1)
    axes.plot(*way.T, color=DARK, lw=1, alpha=0.6, zorder=1)
    if ground.arrows:
        some = slice(None, None, -(-len(way) // 40))
        ahead = 0.5 * ARROW * wide * ground.looks(ground.path[some])
        units = {"angles": "xy", "scale_units": "xy", "scale": 1}
        axes.quiver(*way[some].T, *ahead.T, **units, color=DARK, alpha=0.45, width=0.005, zorder=1)
    axes.plot(*way[0], "o", ms=6, mfc="white", mec=DARK, mew=1.4, zorder=3)


def _draw_places(axes: Axes, ground: Ground, where: PoseMixture, colour: str) -> None:
    """Draw the most likely poses with their probabilities; the likeliest is drawn last, on top of the others."""
    shown = worth_telling(where)
    wide = ground.chart.picture.shape[1]
    for i in reversed(shown):
        _draw_place(axes, ground, where, i, colour)
    centres = ground.pixel(where.pose[0, shown].double().cpu().numpy())
    # Widen the view to what lies outside of the map.
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    (west, north), (east, south) = centres.min(0) - 0.04 * wide, centres.max(0) + 0.04 * wide
    axes.set(xlim=(min(left, west), max(right, east)), ylim=(max(bottom, south), min(top, north)))
    rim = [withStroke(linewidth=3, foreground="white")]
    label = {"textcoords": "offset points", "fontsize": 11, "fontweight": "bold", "path_effects": rim, "zorder": 8}
    for i, centre in zip(shown, centres, strict=True):
        beside = ((16, 14), (16, -22), (-44, 14))[i]
        axes.annotate(f"{where.weight[0, i]:.2f}", centre, beside, color=colour, **label)


def _draw_place(axes: Axes, ground: Ground, where: PoseMixture, i: int, colour: str) -> None:
    """Draw a pose as an ellipse of two standard deviations, and its heading as an arrow."""
    wide = ground.chart.picture.shape[1]
    pose = where.pose[0, i : i + 1].double().cpu().numpy()
    x, y = ground.pixel(pose)[0]
    # The half-axes of the ellipse that a circle becomes, large enough to be seen, and the angle of the first.
    turned, half, _ = np.linalg.svd(ground.stretch * float(where.variance[0, i, 0].sqrt()))
    half, angle = np.maximum(2.0 * half, 0.018 * wide), float(np.degrees(np.arctan2(turned[1, 0], turned[0, 0])))
    shape = {"xy": (x, y), "width": 2 * half[0], "height": 2 * half[1], "angle": angle, "fill": False, "zorder": 5}
    thick = 2.2 if i == 0 else 1.2
    axes.add_patch(Ellipse(**shape, edgecolor="white", lw=thick + 2, alpha=0.7))
    axes.add_patch(Ellipse(**shape, edgecolor=colour, lw=thick, ls="-" if i == 0 else "--"))
    axes.plot(x, y, "+", color="white", ms=11, mew=3.6, zorder=6)
    axes.plot(x, y, "+", color=colour, ms=9, mew=2, zorder=7)
    if pose.shape[1] == 3:
        ahead = ARROW * wide * ground.looks(ground.fit(pose))[0]
        rim = [withStroke(linewidth=thick + 2, foreground="white")]
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": thick, "shrinkA": 0, "shrinkB": 0, "path_effects": rim}
        axes.annotate("", (x + ahead[0], y + ahead[1]), (x, y), zorder=6, arrowprops=arrow)


def _explain(axes: Axes, ground: Ground, lost: bool, entry: int) -> None:
    """Draw the legend, and the caption of the map."""
    colour, like = GREY if lost else BLUE, f"step {entry + 1}, which looks most like it"
    found = "where it would be, if it was seen" if lost else "where it was seen (2σ), with its probability"
    dot = {"ls": "", "marker": "o", "ms": 6, "mfc": "white", "mec": DARK, "mew": 1.4}
    lines = [
        Line2D([], [], color=DARK, alpha=0.6, lw=1.2, label="memorised path" + (" and gaze" if ground.arrows else "")),
        Line2D([], [], **dot, label="after the first step"),
        Line2D([], [], **dot | {"ms": 9, "mfc": "none", "mec": colour, "mew": 2}, label=found),
        Line2D([], [], **dot | {"marker": "s", "mfc": "none", "mec": ORANGE, "mew": 1.8}, label=like),
    ]
    axes.set_axis_off()
    axes.legend(handles=lines, loc="upper left", ncols=2, frameon=False, borderaxespad=0, handlelength=1.8)
    axes.text(0, 0, ground.caption, fontsize=8, linespacing=1.4, va="bottom", transform=axes.transAxes)
