"""Figures of every report, and functions that other figures share."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gtmsm.evaluation.columns import rows
from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.report.figure_style import INK, LINES, RED, SKY, STYLE, new_figure

FRAMES_IN_A_LINE = 8


@mpl.rc_context(STYLE)
def horizon(scores: Mapping[str, Any]) -> Figure:
    """PSNR at each predicted step, of the model and its controls; below it retrieval, if places are cells."""
    panels = 1 + any(values.get("retrieval_by_step") is not None for _, _, values in rows(scores))
    figure = new_figure(1.3 + 2.2 * panels)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _curves(axes[0], scores, "psnr_by_step")
    axes[0].set_ylabel("PSNR (dB)")
    if panels > 1:
        # Controls that copy retrieve the same entries, and would cover these curves.
        read_from_memory = ("imagined", "sampled", "true_pose_memory", "random_retrieval")
        _curves(axes[1], scores, "retrieval_by_step", read_from_memory, (-0.03, 1.06))
        axes[1].set_ylabel("right place retrieved")
        axes[1].yaxis.set_major_formatter(PercentFormatter(1, 0))
    axes[-1].set_xlabel("steps predicted")
    whole_steps(axes[-1])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2, handlelength=1.8)
    return figure


@mpl.rc_context(STYLE)
def strips(gallery: Gallery, clip: int) -> Figure:
    """True above imagined frames of the gallery's `strips`; numbers of steps at unseen places are red."""
    lines = strip_lines(gallery.strips)
    across = max(map(len, lines))
    figure = new_figure(len(lines) * (0.45 + 8.6 / max(across, FRAMES_IN_A_LINE // 2)))
    grid = figure.add_gridspec(len(lines), across)
    for row, steps in enumerate(lines):
        which = np.array(steps) - gallery.tau - 1
        axes = figure.add_subplot(grid[row, : len(steps)])
        picture, middles, centres = _tiles(np.stack([gallery.truth[clip, which], gallery.imagined[clip, which]]))
        axes.imshow(picture)
        axes.xaxis.tick_top()
        axes.set_yticks(middles, ["true", "imagined"])
        axes.set_xticks(centres, [str(step) for step in steps])
        seen = np.ones(len(steps), bool) if gallery.seen is None else gallery.seen[clip, which]
        for label, known in zip(axes.get_xticklabels(), seen, strict=True):
            label.set(color=INK if known else RED, weight="normal" if known else "bold")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def strip_lines(runs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Ranges of steps, given by first and last, as lines of at most 8 steps.

    >>> [len(line) for line in strip_lines([(1, 8), (20, 27), (30, 45)])]
    [8, 8, 8, 8]
    """
    return [
        list(range(start, min(start + FRAMES_IN_A_LINE, last + 1)))
        for first, last in runs
        for start in range(first, last + 1, FRAMES_IN_A_LINE)
    ]


def time_axes(panels: Sequence[Axes], tau: int, steps: int) -> None:
    """Set up time axes: label steps below the last panel, and shade the memorising phase in all."""
    for axes in panels:
        axes.axvspan(1, tau, color=INK, alpha=0.07, lw=0)
        axes.set_xlim(1, max(2, steps))
        axes.grid(axis="y")
    top = panels[0]
    # Inside the panel, since the legend is above it.
    top.text(tau / 2, 0.97, "memorising", transform=top.get_xaxis_transform(), ha="center", va="top", alpha=0.6)
    panels[-1].set_xlabel("step")
    whole_steps(panels[-1])


def whole_steps(axes: Axes) -> None:
    """Set ticks at whole steps only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))


def bare(axes: Axes, title: str) -> None:
    """Set a title, and remove ticks and frame."""
    axes.set_title(title)
    axes.set(xticks=[], yticks=[], anchor="NW")
    axes.spines[:].set_visible(False)


def pixels(frame: Float[np.ndarray, "C h w"]) -> Float[np.ndarray, "h w 3"]:
    """A frame with channels last; grey becomes three equal channels."""
    shown = frame.clip(0, 1).transpose(1, 2, 0)
    return np.broadcast_to(shown, (*shown.shape[:2], 3))


def _curves(
    axes: Axes, scores: Mapping[str, Any], key: str, only: Sequence[str] = (), limits: tuple[float, float] | None = None
) -> None:
    """Draw one line per row of the scores that has this key."""
    curves = {
        name: (row.label, np.array(values[key], dtype=float))  # None becomes NaN, a gap in the line
        for name, row, values in rows(scores)
        if (not only or name in only) and any(value is not None for value in values.get(key) or [])
    }
    for name, (label, curve) in reversed(curves.items()):
        colour, dash = LINES.get(name, (SKY, "-."))
        width = 2 if name == "imagined" else 1.1
        axes.plot(np.arange(1, len(curve) + 1), curve, dash, color=colour, lw=width, label=label)
    steps = max((len(curve) for _, curve in curves.values()), default=2)
    axes.set(ylim=limits or _range([curve for _, curve in curves.values()]), xlim=(1, max(2, steps)))
    axes.grid(axis="y")


def _tiles(
    frames: Float[np.ndarray, "down across C h w"],
) -> tuple[Float[np.ndarray, "H W 4"], list[float], list[float]]:
    """Frames as one picture with transparent gaps, and the centres of its rows and of its columns."""
    down, across, _, h, w = frames.shape
    joint = max(1, h // 8)
    sheet = np.zeros((down, h + joint, across, w + joint, 4))
    for i, j in np.ndindex(down, across):
        sheet[i, :h, j, :w, :3] = pixels(frames[i, j])
        sheet[i, :h, j, :w, 3] = 1
    sheet = sheet.reshape(down * (h + joint), across * (w + joint), 4)[:-joint, :-joint]
    rows, columns = ([(side - 1) / 2 + i * (side + joint) for i in range(n)] for side, n in ((h, down), (w, across)))
    return sheet, rows, columns


def _range(curves: Sequence[Float[np.ndarray, "time"]]) -> tuple[float, float]:
    """Limits of the dB axis; exact copies, at 100 dB, are ignored so that they do not compress the rest."""
    values = np.concatenate([curve[np.isfinite(curve) & (curve < 60)] for curve in curves] or [np.array([0.0, 30.0])])
    low, high = (values.min(), np.quantile(values, 0.995)) if len(values) else (0.0, 30.0)
    return float(np.floor(low - 1)), float(np.ceil(high + 1))
