"""The answer as a figure: the picture asked for, what looks most like it, and where on the map it was seen."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke

from gtmsm.errors import InputError
from gtmsm.evaluation.report.figure_style import BLUE, GREY, ORANGE, STYLE, new_figure
from gtmsm.files import replacing
from gtmsm.find.ground import Ground
from gtmsm.find.words import DOUBTFUL, pose_in_words, worth_telling
from gtmsm.model.whereabouts import Whereabouts

DARK = "#16191d"
SIGMAS = 2.0
SMALLEST = 0.018
"""Half-axis of the smallest ellipse, in widths of the map: it must be seen."""
ARROW = 0.07
"""Length of an arrow that shows a heading, in widths of the map."""
ARROWS = 40
"""Arrows along a path, at most."""
WIDE, TALL = 7.8, 5.4
"""Inches."""
DPI = 160


@mpl.rc_context(STYLE)
def draw_answer(
    path: Path,
    ground: Ground,
    where: Whereabouts,
    picture: UInt8[np.ndarray, "height width 3"],
    name: str,
    memorised: UInt8[np.ndarray, "time height width 3"],
) -> None:
    """Write the figure as a PNG."""
    lost, entry = float(where.unknown[0]) > DOUBTFUL, int(where.entry[0, 0])
    figure = new_figure(TALL, WIDE)
    figure.get_layout_engine().set(wspace=0.05, hspace=0.04)
    panels = figure.subplot_mosaic([["asked", "place"], ["like", "place"]], width_ratios=(1, 2.15))
    _view(panels["asked"], picture, f"asked for: {name}")
    _view(panels["like"], memorised[entry], f"looks most like step {entry + 1} of {len(memorised)}")
    place = panels["place"]
    _draw_ground(place, ground)
    for i in reversed(worth_telling(where)):  # the most likely one on top
        _draw_place(place, ground, where, i, GREY if lost else BLUE)
    at = ground.chart.pixel(ground.path[entry])
    place.plot(*at, "s", ms=6, mfc="none", mec=ORANGE, mew=1.8, zorder=4)
    place.set_title(ground.title)
    figure.suptitle(_verdict(where, lost), x=0.01, ha="left", fontsize=12, fontweight="bold")
    place.legend(
        handles=_legend(lost, ground.arrows, entry),
        loc="upper left", bbox_to_anchor=(0, -0.01), ncols=2, frameon=False, borderaxespad=0, handlelength=1.8,
    )  # fmt: skip
    figure.supxlabel(ground.caption, x=0.01, ha="left", fontsize=8, linespacing=1.4)
    try:
        with replacing(path) as draft:
            figure.savefig(draft, format="png", dpi=DPI, facecolor="white")
    except OSError as problem:
        raise InputError(f"could not write {path}: {problem.strerror or problem}") from problem


def _verdict(where: Whereabouts, lost: bool) -> str:
    """The answer in a line."""
    unknown = f"unknown {where.unknown[0]:.2f}"
    return f"never seen ({unknown})" if lost else f"seen at {pose_in_words(where.pose[0, 0].tolist())}; {unknown}"


def _view(axes: Axes, picture: UInt8[np.ndarray, "height width 3"], title: str) -> None:
    """A frame, its pixels as squares."""
    axes.imshow(picture)
    axes.set_title(title)
    axes.set(xticks=[], yticks=[], anchor="NW")
    axes.spines[:].set_visible(False)


def _draw_ground(axes: Axes, ground: Ground) -> None:
    """The map, and the memorised path faintly on it."""
    tall, wide = ground.chart.picture.shape[:2]
    axes.imshow(ground.chart.picture, extent=(0, wide, tall, 0), zorder=0)
    axes.set(xlim=(0, wide), ylim=(tall, 0), xticks=[], yticks=[], anchor="NW")
    axes.spines[:].set_visible(False)
    way = ground.chart.pixel(ground.path)
    axes.plot(*way.T, color="white", lw=2.6, alpha=0.45, zorder=1)
    axes.plot(*way.T, color=DARK, lw=1, alpha=0.6, zorder=1)
    if ground.arrows:
        some = slice(None, None, -(-len(way) // ARROWS))
        ahead = 0.5 * ARROW * wide * ground.looks(ground.path[some])
        axes.quiver(
            *way[some].T,
            *ahead.T,
            angles="xy",
            scale_units="xy",
            scale=1,
            color=DARK,
            alpha=0.45,
            width=0.004,
            zorder=1,
        )
    axes.plot(*way[0], "o", ms=6, mfc="white", mec=DARK, mew=1.4, zorder=3)


def _draw_place(axes: Axes, ground: Ground, where: Whereabouts, i: int, colour: str) -> None:
    """An ellipse of two standard deviations, its probability beside it, and which way the agent looked."""
    wide, faint = ground.chart.picture.shape[1], 0.35 + 0.65 * float(where.weight[0, i])
    pose = where.pose[0, i : i + 1].double().cpu().numpy()
    x, y = ground.pixel(pose)[0]
    half, angle = _half_axes(ground.stretch * float(where.variance[0, i, 0].sqrt()))
    half = np.maximum(SIGMAS * half, SMALLEST * wide)
    shape = {"xy": (x, y), "width": 2 * half[0], "height": 2 * half[1], "angle": angle}
    axes.add_patch(Ellipse(**shape, fill=False, edgecolor="white", lw=4, alpha=0.8 * faint, zorder=5))
    axes.add_patch(Ellipse(**shape, facecolor=(*mpl.colors.to_rgb(colour), 0.15), edgecolor=colour, lw=2, zorder=5))
    axes.plot(x, y, "+", color=colour, ms=9, mew=2, zorder=6)
    rim = [withStroke(linewidth=3, foreground="white")]
    if pose.shape[1] == 3:
        ahead = ARROW * wide * ground.looks(ground.fit(pose))[0]
        axes.annotate(
            "", (x + ahead[0], y + ahead[1]), (x, y), zorder=6,
            arrowprops={
                "arrowstyle": "-|>", "color": colour, "lw": 2.2, "shrinkA": 0, "shrinkB": 0, "path_effects": rim,
            },
        )  # fmt: skip
    above = -1 if y - half[1] > 0.06 * wide else 1
    axes.text(
        x, y + above * (half[1] + 0.012 * wide), f"{where.weight[0, i]:.2f}", color=colour, fontsize=11,
        fontweight="bold", ha="center", va="bottom" if above < 0 else "top", path_effects=rim, zorder=7, clip_on=False,
    )  # fmt: skip


def _half_axes(stretch: Float[np.ndarray, "2 2"]) -> tuple[Float[np.ndarray, "2"], float]:
    """Of the ellipse that a circle becomes: its half-axes, and the angle of the first in degrees."""
    turned, half, _ = np.linalg.svd(stretch)
    return half, float(np.degrees(np.arctan2(turned[1, 0], turned[0, 0])))


def _legend(lost: bool, own: bool, entry: int) -> list[Line2D]:
    """What is what."""
    found = "where it would be, if it was seen" if lost else "where it was seen (2σ), with its probability"
    colour, like = GREY if lost else BLUE, f"step {entry + 1}, which looks most like it"
    return [
        Line2D([], [], color=DARK, alpha=0.6, lw=1.2, label="memorised path" + (" and gaze" if own else "")),
        Line2D([], [], ls="", marker="o", ms=6, mfc="white", mec=DARK, mew=1.4, label="after the first step"),
        Line2D([], [], ls="", marker="o", ms=9, mfc=(*mpl.colors.to_rgb(colour), 0.15), mec=colour, mew=2, label=found),
        Line2D(
            [],
            [],
            ls="",
            marker="s",
            ms=6,
            mfc="none",
            mec=ORANGE,
            mew=1.8,
            label=like,
        ),
    ]
