"""Plots of the table: PSNR over the predicted steps, and over the time since a place was left."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.report.figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    STYLE,
    WIDTH,
    new_figure,
)
from gtmsm.evaluation.report.plots import strips
from gtmsm.files import replacing
from gtmsm.reproduce.table import CONTROL, Line
from gtmsm.rivals.build import KINDS

COLOURS: dict[str, str] = dict(
    zip(KINDS, (ORANGE, GREEN, PURPLE, RED, SKY, "#5a4fcf", "#8a6d3b", "#2b2b2b"), strict=True)
)
"""Colour of each rival, the same in all worlds."""
RETURN = re.compile(r".*/return-(\d+)")
SHOWN_CONTROLS = ("VAE ceiling", "mean frame", "last frame")
SMOOTHED = 8
"""Steps over which curves are averaged."""
LIGHT = {key: ("#1b1f24" if value == "#010203" else value) for key, value in STYLE.items()} | {
    "figure.facecolor": "white", "savefig.facecolor": "white",
}  # fmt: skip
"""Style of the reports' figures on a white background, since these are separate files."""


def write_plots(out: Path, world: str, lines_by_set: Mapping[str, Sequence[Line]]) -> list[Path]:
    """Plot the horizon of the first set, and the return probe if there is one; return the files."""
    first = next(iter(lines_by_set))
    figures = {f"{world}-horizon.png": _horizon(lines_by_set[first], first)}
    returns = {int(found[1]): lines for name, lines in lines_by_set.items() if (found := RETURN.fullmatch(name))}
    if len(returns) > 1:
        figures[f"{world}-return.png"] = _returns(returns)
    for name, figure in figures.items():
        with mpl.rc_context(LIGHT), replacing(out / name) as path:
            figure.savefig(path, dpi=160)
    return [out / name for name in figures]


def write_frames(path: Path, gallery: Gallery) -> None:
    """Draw the paper's figure: true above imagined frames of the first walk, at the paper's time steps."""
    figure = strips(gallery, 0)
    with mpl.rc_context(LIGHT), replacing(path) as draft:
        figure.savefig(draft, dpi=160, facecolor="white")


def _styles(lines: Sequence[Line]) -> dict[str, tuple[str, str, float]]:
    """Colour, line style and width of each line: ours blue, extensions dashed, rivals in colours, controls grey."""
    styles: dict[str, tuple[str, str, float]] = {}
    for line in lines:
        if line.bold:
            styles[line.label] = BLUE, ("-", "--", "-.")[len(styles) % 3], 1.6 if styles else 2.4
        elif line.given == CONTROL:
            styles[line.label] = GREY, {"VAE ceiling": "--", "mean frame": "-"}.get(line.name, ":"), 1.0
        else:
            styles[line.label] = COLOURS[line.name], "-", 1.3
    return styles


def _shown(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.given != CONTROL or line.name in SHOWN_CONTROLS]


@mpl.rc_context(LIGHT)
def _horizon(lines: Sequence[Line], name: str) -> Figure:
    """PSNR at each predicted step, with bands over clips for GTM-SM, and over seeds where a line has several.

    Bands over clips of all lines would overlap too much.
    """
    figure = new_figure(0.95 * WIDTH)
    axes = figure.subplots()
    for line in reversed(_shown(lines)):
        colour, dash, width = _styles(lines)[line.label]
        curves = np.array([_numbers(scores["psnr_by_step"]) for scores in line.scores])
        curve = _smooth(curves.mean(0))
        steps = np.arange(1, len(curve) + 1)
        axes.plot(steps, curve, dash, color=colour, lw=width, label=line.name)
        if line.bold and line is lines[0]:
            error = _smooth(np.mean([_numbers(scores["psnr_band"]["error"]) for scores in line.scores], axis=0))
            axes.fill_between(steps, curve - 2 * error, curve + 2 * error, color=colour, alpha=0.12, lw=0)
        if line.given != CONTROL and len(curves) > 1:
            low, high = _smooth(curves.min(0)), _smooth(curves.max(0))
            axes.fill_between(steps, low, high, color=colour, alpha=0.25, lw=0)
    axes.set(xlabel="steps predicted", ylabel="PSNR (dB)", title=f"{name}, known and new places together")
    axes.grid(axis="y")
    _legend(figure, axes)
    return figure


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Numbers as an array; NaN where there are none."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


@mpl.rc_context(LIGHT)
def _returns(returns: Mapping[int, Sequence[Line]]) -> Figure:
    """PSNR at a revisited place, by the number of steps spent elsewhere."""
    figure = new_figure(0.95 * WIDTH)
    axes = figure.subplots()
    gaps = sorted(returns)
    for line in reversed(_shown(returns[gaps[0]])):
        colour, dash, width = _styles(returns[gaps[0]])[line.label]
        values = []
        for gap in gaps:
            same = [other for other in returns[gap] if other.label == line.label]
            found = same[0].over_seeds(lambda scores: scores.get("psnr_revisited")) if same else []
            values.append(float(np.mean(found)) if found else np.nan)
        axes.plot(range(len(gaps)), values, dash, marker="o", ms=4, color=colour, lw=width, label=line.name)
    axes.set(xlabel="steps spent elsewhere before coming back", ylabel="PSNR of frames there (dB)")
    axes.set_xticks(range(len(gaps)), [str(gap) for gap in gaps])
    axes.set_title("return probe: look around, leave, wander, come back")
    axes.grid(axis="y")
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="outside lower left",
        ncols=3,
        handlelength=1.4,
        columnspacing=1.0,
        fontsize=8.5,
    )


def _smooth(curve: np.ndarray) -> np.ndarray:
    """Moving average over `SMOOTHED` steps; short curves are returned unchanged."""
    if len(curve) < 4 * SMOOTHED:
        return curve
    padded = np.pad(curve, SMOOTHED // 2, mode="edge")
    smoothed: np.ndarray = np.convolve(padded, np.ones(SMOOTHED) / SMOOTHED, mode="same")
    return smoothed[SMOOTHED // 2 : -(SMOOTHED // 2)]
