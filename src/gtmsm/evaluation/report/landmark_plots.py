"""Figures of the scores of landmarks, in any world."""

from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gtmsm.evaluation.long_walks import kinds_of_walks
from gtmsm.evaluation.report.figure_style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, STYLE, new_figure
from gtmsm.evaluation.report.plots import whole_steps

SMOOTHED = 20
"""Steps over which long curves are averaged, since means over few walks are noisy."""
COLOURS = (BLUE, ORANGE, RED, GREEN)
FEW = 20
"""Bins with fewer pictures are drawn hollow, since they are unreliable."""
LANDMARKS, CLOSING, CLOSED, RECKONING, EQUAL = "-", (0, (3, 1)), (0, (1, 1)), (0, (4, 2)), (0, (5, 1.5, 1, 1.5))
WAYS = (
    ("equal_frames", EQUAL, 1.0, "equal frames, true moves"),
    ("dead_reckoning", RECKONING, 1.3, "dead reckoning"),
    ("loops_closed", CLOSED, 1.6, "loops closed afterwards"),
    ("closing_loops", CLOSING, 1.6, "loops closed on the way"),
    ("landmarks", LANDMARKS, 2.0, "with landmarks"),
)
"""Ways to infer poses: key in the scores, line style, line width, name in the legend."""


@mpl.rc_context(STYLE)
def long_walks(landmarks: Mapping[str, Any]) -> Figure:
    """Errors at every step of long walks: a colour for each kind of walk, a line style for each way to infer poses."""
    walked, panels = list(kinds(landmarks)), list(_panels(landmarks))
    figure = new_figure(0.9 + 2.1 * len(panels))
    for axes, (key, unit, title) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        highest, steps = 0.0, 2
        for _, colour, walks in reversed(walked):
            for way, dash, width, _ in WAYS:
                if way not in walks:
                    continue
                curve = unit * smoothed(np.array(walks[way][f"{key}_by_step"], dtype=float))
                axes.plot(np.arange(1, len(curve) + 1), curve, ls=dash, color=colour, lw=width)
                highest, steps = max(highest, float(np.nanmax(curve))), max(steps, len(curve))
        axes.set(title=title, xlabel="step", xlim=(1, steps), ylim=(0, max(1e-3, 1.08 * highest)))
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if key == "within":
            axes.set_ylim(-0.02, 1.04)
            axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
    handles = [Line2D([], [], color=colour, lw=2.4, label=name) for name, colour, _ in walked]
    handles += [
        Line2D([], [], color=INK, lw=1.8, ls=dash, label=name)
        for way, dash, _, name in reversed(WAYS)
        if way in walked[0][2]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, handlelength=2.6)
    return figure


@mpl.rc_context(STYLE)
def localisation(landmarks: Mapping[str, Any]) -> Figure:
    """Fraction of unknown starts found after each step; and the reliability diagram of single pictures."""
    figure = new_figure(7.4)
    lost, diagram, counts = figure.subplots(3, 1, height_ratios=(3, 3, 1))
    _unknown_start(lost, landmarks["unknown_start"], landmarks["right"])
    counts.sharex(diagram)
    _reliability(diagram, counts, landmarks["localise"]["reliability"])
    return figure


def smoothed(curve: Float[np.ndarray, "time"], over: int = SMOOTHED) -> Float[np.ndarray, "time"]:
    """Moving average over the last `over` steps; short curves are returned unchanged."""
    if len(curve) < 10 * over:
        return curve
    total = np.concatenate([[0.0], curve.cumsum()])
    last = np.arange(1, len(curve) + 1)
    first = np.maximum(0, last - over)
    mean: np.ndarray = (total[last] - total[first]) / (last - first)
    return mean


def kinds(landmarks: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, colour and scores of each kind of long walk."""
    slips = len(landmarks["slip"])
    for i, (name, walks) in enumerate(kinds_of_walks(landmarks)):
        yield name, COLOURS[i % len(COLOURS)] if i < slips else PURPLE, walks


def _panels(landmarks: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    """Key, factor and title of each panel."""
    if "position_error_relative_by_step" in landmarks["slip"][0]["landmarks"]:
        yield "position_error_relative", 100, "position off (% of the room's width)"
        yield "heading_error", 1, "heading off (degrees)"
    else:
        yield "position_error", 1, f"position off ({landmarks['unit']})"
    yield "within", 1, landmarks["right"]


def _unknown_start(axes: Axes, scores: Mapping[str, Any], right: str) -> None:
    """Draw the fraction of agents with a right pose estimate after each step."""
    lines = (
        ("_on_own_map", GREEN, 1.4, "at a memorised place, on its own map"),
        ("_at_memorised", BLUE, 2.2, f"at a memorised place in the end ({scores['trials_at_memorised']})"),
        ("", GREY, 1.6, f"all ({scores['trials']})"),
    )
    for suffix, colour, width, label in lines:
        curve = np.array(scores[f"within{suffix}_by_step"] or [], dtype=float)
        axes.plot(np.arange(1, len(curve) + 1), curve, "o-", ms=3.5, color=colour, lw=width, label=label)
    axes.set(title=f"put anywhere: {right}", xlabel="steps since", ylim=(-0.02, 1.04))
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
    whole_steps(axes)
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2))


def _reliability(axes: Axes, below: Axes, scores: Mapping[str, Any]) -> None:
    """Draw the fraction of right places against the predicted probability; below it, the number of pictures."""
    axes.plot([0, 1], [0, 1], ls="--", color=INK, lw=1, alpha=0.5)
    there = [i for i, n in enumerate(scores["count"]) if n]
    said, came_true = (np.array([scores[key][i] for i in there], dtype=float) for key in ("predicted", "right"))
    fill = [BLUE if scores["count"][i] >= FEW else "none" for i in there]
    axes.scatter(said, came_true, s=30, c=fill, edgecolors=BLUE, linewidths=1.2, clip_on=False, zorder=3)
    axes.set(title="a single picture: how often right, by how sure", xlim=(0, 1), ylim=(-0.02, 1.04))
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")
    edges, count = np.array(scores["edges"]), np.array(scores["count"])
    width = edges[1] - edges[0]
    below.bar(edges[:-1] + width / 2, count, 0.86 * width, color=GREY)
    for x, n in zip(edges[:-1] + width / 2, count.tolist(), strict=True):
        below.annotate(f"{n}", (x, n), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=9)
    below.set(xlabel="probability that the place is known", ylabel="pictures", yticks=[])
    below.set_ylim(0, 1.45 * max(1, count.max()))
    below.xaxis.set_major_formatter(PercentFormatter(1, 0))
