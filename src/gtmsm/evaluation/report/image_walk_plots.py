"""Figures of a report on walks over images."""

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import MaxNLocator

from gtmsm.evaluation.gallery import ImageGallery, WayFound
from gtmsm.evaluation.report.figure_style import ACTIONS, BLUE, GREY, INK, PLACES, RED, STYLE, new_figure
from gtmsm.evaluation.report.plots import bare, pixels, time_axes


@mpl.rc_context(STYLE)
def positions(gallery: ImageGallery, clip: int) -> Figure:
    """The paper's fig:image_nav, top: the world and the view, then true and inferred positions."""
    tau, true, inferred = gallery.tau, gallery.true_pose[clip], gallery.inferred_pose[clip]
    colour = _place_colours(true)
    figure = new_figure(4.9)
    figure.get_layout_engine().set(wspace=0.06, hspace=0.06)
    (world, truth), (past, future) = figure.subplots(2, 2)
    _world(world, gallery, clip)
    _visits(truth, true[:tau, ::-1], colour[:tau], f"true, steps 1–{tau}")
    truth.set(xlabel="column", ylabel="row")
    truth.invert_yaxis()  # rows count downwards, as in the picture
    _visits(past, _upright(gallery, inferred[:tau]), colour[:tau], f"inferred, steps 1–{tau}")
    _visits(future, _upright(gallery, inferred[tau:]), colour[tau:], f"inferred, {tau + 1}–{len(true)}")
    for axes in (past, future):
        walls = _ring(_upright(gallery, gallery.walls))
        axes.add_patch(Polygon(walls, fill=False, edgecolor=INK, lw=0.8, ls="--", alpha=0.5))
        _name_axes(axes, gallery, "")
    return figure


@mpl.rc_context(STYLE)
def paths(gallery: ImageGallery, way: WayFound, clip: int) -> Figure:
    """True path, inferred path and dead reckoning of a walk: the last memorised steps on the map, all over time."""
    tau, true = gallery.tau, gallery.true_pose[clip]
    lines = (
        ("dead reckoning", way.reckoned[clip], GREY, "-", 1.3),
        ("true", true, RED, "-", 1.8),
        ("believed", way.believed[clip], BLUE, (0, (3, 1.5)), 1.8),
    )
    figure = new_figure(6.6)
    place, *over_time = figure.subplots(3, 1, height_ratios=(2.4, 1, 1))
    first = max(0, tau - 48)  # more would cover each other
    _draw_cells(place, way.solid[clip], f"steps {first + 1}–{tau}, memorised")
    steps = np.arange(1, len(true) + 1)
    for i, (label, path, colour, dash, width) in enumerate(lines):
        row, column = path[first:tau].T + 0.07 * (i - 1)  # shifted, so that no path covers another
        place.plot(column, row, ls=dash, color=colour, lw=width, label=label)
        place.plot(column[-1:], row[-1:], "o", color=colour, ms=6)
        for part, axes in enumerate(over_time):
            axes.plot(steps, path[:, part], ls=dash, color=colour, lw=width)
    for axes, name in zip(over_time, ("row", "column"), strict=True):
        axes.set_ylabel(name)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    time_axes(over_time, tau, len(true))
    over_time[0].set_title(f"memorised until step {tau}, imagined after it")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def worth_showing(gallery: ImageGallery, way: WayFound) -> int:
    """Index of the clip whose dead reckoning has the largest error while memorising."""
    off: Float[np.ndarray, "clips tau"] = np.linalg.norm(way.reckoned - gallery.true_pose, axis=-1)[:, : gallery.tau]
    return int(off.mean(1).argmax())


@mpl.rc_context(STYLE)
def displacements(gallery: ImageGallery) -> Figure:
    """The learned M: an arrow per action, and the true move as a dashed line."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.grid()
    moves, true = (_upright(gallery, part) for part in (gallery.displacement, gallery.true_displacement))
    reach = 1.35 * max(np.abs(moves).max(), np.abs(true).max(), 1e-6)
    for i, (name, move, truth) in enumerate(zip(gallery.action_names, moves, true, strict=True)):
        colour = ACTIONS[i % len(ACTIONS)]
        length = np.hypot(*move)
        still = length < 0.08 * reach
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", move, (0, 0), arrowprops=arrow)
        axes.plot(*move, "o", color=colour, ms=5 if still else 0)
        axes.plot([0, truth[0]], [0, truth[1]], "--", color=INK, lw=1.2, alpha=0.75, zorder=5)
        # The name of an action without displacement is set between two arrows.
        beyond = _gap_direction(moves) if still else move / length
        axes.annotate(name, move + 0.13 * reach * beyond, ha="center", va="center", color=colour, weight="bold")
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    _name_axes(axes, gallery, " (learned units)")
    axes.set_aspect("equal", anchor="N")
    return figure


@mpl.rc_context(STYLE)
def walls(gallery: ImageGallery) -> Figure:
    """sigma_d over the inferred space, with the true walls drawn on it."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    xs, ys, values = gallery.wall_xs, gallery.wall_ys, gallery.wall_values
    if gallery.metric:
        xs, ys, values = ys, xs, values.T
    half_x, half_y = (np.ptp(axis) / max(1, len(axis) - 1) / 2 for axis in (xs, ys))
    extent = (xs.min() - half_x, xs.max() + half_x, ys.min() - half_y, ys.max() + half_y)
    values = values[np.argsort(ys)][:, np.argsort(xs)]
    heat = axes.imshow(values, origin="lower", extent=extent, vmin=0, vmax=1, cmap="cividis", aspect="equal")
    for width, colour in ((3.2, "black"), (1.6, "white")):  # visible on dark and on bright
        axes.add_patch(Polygon(_ring(_upright(gallery, gallery.walls)), fill=False, edgecolor=colour, lw=width))
    bar = figure.colorbar(heat, ax=axes, location="bottom", shrink=0.7, aspect=30)
    bar.set_label("fraction of the move that is kept")
    _name_axes(axes, gallery, " (learned units)")
    axes.locator_params(nbins=5)
    return figure


def _upright(gallery: ImageGallery, points: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    """Points of the inferred space as (x, y) to draw: if they are cells, columns are horizontal."""
    return points[:, ::-1] if gallery.metric else points


def _name_axes(axes: Axes, gallery: ImageGallery, unit: str) -> None:
    """Label the axes of the inferred space; if it is in cells, rows count downwards, as in the picture."""
    names = ("columns from the start", "rows") if gallery.metric else (f"s₁{unit}", f"s₂{unit}")
    axes.set(xlabel=names[0], ylabel=names[1])
    if gallery.metric:
        axes.invert_yaxis()


def _world(axes: Axes, gallery: ImageGallery, clip: int) -> None:
    """Draw the image of the world with the view at the last memorised step, and obstacles if there are any."""
    bare(axes, f"world, view at step {gallery.tau}")
    if gallery.way is not None:
        axes.imshow(pixels(gallery.way.scenes[clip]))
        return
    axes.imshow(pixels(gallery.images[clip]))
    top, left = gallery.view_corner[clip] - 0.5
    height, width = gallery.truth.shape[-2:]
    for line, colour in ((3.6, "black"), (2, "#ffd60a")):
        axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=colour, lw=line, clip_on=False))


def _visits(axes: Axes, xy: Float[np.ndarray, "n 2"], colour: Float[np.ndarray, "n 3"], title: str) -> None:
    """Draw positions joined by a faint line, with a blue square around the last."""
    axes.plot(*xy.T, color=INK, lw=0.5, alpha=0.3)
    _, first = np.unique(xy.round(6), axis=0, return_index=True)  # one dot per place keeps the page small
    axes.scatter(*xy[first].T, s=14, c=colour[first], linewidths=0, zorder=3)
    axes.scatter(*xy[-1:].T, s=70, marker="s", facecolors="none", edgecolors=BLUE, linewidths=2.2, zorder=4)
    axes.set_title(title)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)


def _place_colours(pose: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 3"]:
    """A colour for each true position, interpolated between four corners: equal in all panels."""
    low = pose.min(0)
    row, column = ((pose - low) / np.maximum(pose.max(0) - low, 1e-9)).T[:, :, None]
    top_left, top_right, bottom_left, bottom_right = (np.array(mpl.colors.to_rgb(colour)) for colour in PLACES)
    top, bottom = ((1 - column) * a + column * b for a, b in ((top_left, top_right), (bottom_left, bottom_right)))
    blended: np.ndarray = (1 - row) * top + row * bottom
    return blended


def _draw_cells(axes: Axes, solid: Bool[np.ndarray, "cells cells"], title: str) -> None:
    """Draw the grid of cells with row 0 at the top; solid cells are hatched."""
    side = len(solid)
    for row, column in np.argwhere(solid):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=INK, alpha=0.16, linewidth=0))
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", alpha=0.35, linewidth=0))
    axes.add_patch(Rectangle((-0.5, -0.5), side, side, fill=False, edgecolor=INK, lw=1.2))
    axes.set(xlim=(-1.2, side + 0.2), ylim=(side + 0.2, -1.2), xlabel="column", ylabel="row", title=title)
    axes.set_aspect("equal")


def _ring(corners: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    """Corners in order around their centre, for a closed outline."""
    x, y = (corners - corners.mean(0)).T
    return corners[np.argsort(np.arctan2(y, x))]


def _gap_direction(moves: Float[np.ndarray, "A 2"]) -> Float[np.ndarray, "2"]:
    """Unit vector in the middle of the widest angle between the moves that are not close to 0."""
    far = moves[np.hypot(*moves.T) > 0.5 * np.hypot(*moves.T).max()]
    angles = np.sort(np.arctan2(far[:, 1], far[:, 0]))
    gaps = np.diff(angles, append=angles[0] + 2 * np.pi)
    middle = angles[gaps.argmax()] + gaps.max() / 2
    return np.array([np.cos(middle), np.sin(middle)])
