"""The figure of one walk over an image: as it was, as believed, and as the actions alone would have it."""

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from gtmsm.evaluation.gallery import Gallery, WayFound
from gtmsm.evaluation.report.figure_style import BLUE, GREY, INK, RED, STYLE, new_figure

ON_THE_MAP = 48
"""Steps drawn on the map, the last that were memorised: more would cover each other."""
ASIDE = 0.07
"""Cells by which lines are drawn apart, so that none hides another."""


@mpl.rc_context(STYLE)
def paths(gallery: Gallery, way: WayFound, clip: int) -> Figure:
    """Obstacles and the last memorised steps on the map; rows and columns over time beside it."""
    tau, true = gallery.tau, gallery.true_pose[clip]
    lines = (
        ("dead reckoning", way.reckoned[clip], GREY, "-", 1.3),
        ("true", true, RED, "-", 1.8),
        ("believed", way.believed[clip], BLUE, (0, (3, 1.5)), 1.8),
    )
    figure = new_figure(3.6)
    figure.get_layout_engine().set(wspace=0.05)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.7))
    place = figure.add_subplot(grid[:, 0])
    first = max(0, tau - ON_THE_MAP)
    _draw_cells(place, way.solid[clip], f"steps {first + 1}–{tau}, memorised")
    for i, (_, path, colour, dash, width) in enumerate(lines):
        row, column = path[first:tau].T + ASIDE * (i - 1)
        place.plot(column, row, ls=dash, color=colour, lw=width)
        place.plot(column[-1:], row[-1:], "o", color=colour, ms=6)
    over_time = [figure.add_subplot(grid[i, 1]) for i in range(2)]
    steps = np.arange(1, len(true) + 1)
    for part, (axes, name) in enumerate(zip(over_time, ("row", "column"), strict=True)):
        for label, path, colour, dash, width in lines:
            axes.plot(steps, path[:, part], ls=dash, color=colour, lw=width, label=label)
        axes.axvline(tau + 0.5, color=INK, lw=0.8, ls=":", alpha=0.7)
        axes.set(ylabel=name, xlim=(1, len(true)))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    over_time[0].tick_params(labelbottom=False)
    over_time[0].set_title(f"memorised until step {tau}, imagined after it")
    over_time[1].set_xlabel("step")
    handles, labels = over_time[0].get_legend_handles_labels()
    figure.legend(
        [handles[i] for i in (1, 2, 0)],
        [labels[i] for i in (1, 2, 0)],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return figure


def worth_showing(gallery: Gallery, way: WayFound) -> int:
    """The clip that actions alone lead farthest astray while it is memorised."""
    off: Float[np.ndarray, "clips tau"] = np.linalg.norm(way.reckoned - gallery.true_pose, axis=-1)[:, : gallery.tau]
    return int(off.mean(1).argmax())


def _draw_cells(axes: Axes, solid: Bool[np.ndarray, "cells cells"], title: str) -> None:
    """The grid, row 0 at the top, solid cells hatched."""
    side = len(solid)
    for row, column in np.argwhere(solid):
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=INK, alpha=0.16, linewidth=0)
        axes.add_patch(box)
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", alpha=0.35, linewidth=0))
    axes.add_patch(Rectangle((-0.5, -0.5), side, side, fill=False, edgecolor=INK, lw=1.2))
    axes.set(xlim=(-1.2, side + 0.2), ylim=(side + 0.2, -1.2), xlabel="column", ylabel="row", title=title)
    axes.set_aspect("equal")
