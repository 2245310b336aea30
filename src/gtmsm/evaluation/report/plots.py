"""Figures that every report has, whatever its world, and what other figures are drawn with."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from gtmsm.evaluation.report.figure_style import INK, LINES, RED, SKY, STYLE, new_figure, spread
from gtmsm.evaluation.table import rows


@mpl.rc_context(STYLE)
def horizon(scores: Mapping[str, Any]) -> Figure:
    """PSNR at each predicted step, the model among its controls; retrieval below it, where places are cells."""
    # The copies read the same entries as the model and as the memory at true poses: their lines would hide those.
    looking_up = ("imagined", "sampled", "true_pose_memory", "random_retrieval")
    panels = 1 + any(values.get("retrieval_by_step") is not None for _, _, values in rows(scores))
    figure = new_figure(0.6 + 2.5 * panels if panels > 1 else 3.4)
    figure.get_layout_engine().set(hspace=0.08)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _curves(axes[0], scores, "psnr_by_step")
    axes[0].set_ylabel("PSNR (dB)")
    if panels > 1:
        _curves(axes[1], scores, "retrieval_by_step", looking_up, (-0.03, 1.06))
        axes[1].set_ylabel("right place retrieved")
        axes[1].yaxis.set_major_formatter(PercentFormatter(1, 0))
    axes[-1].set_xlabel("steps predicted")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))
    return figure


def draw_strip(
    axes: Axes,
    pair: Float[np.ndarray, "2 steps C h w"],
    numbers: Sequence[int],
    seen: Bool[np.ndarray, "steps"],
    named: bool = True,
) -> None:
    """True above imagined frames, the number of each step above them: red where nothing like it was memorised."""
    picture, centres = _tiles(pair)
    axes.imshow(picture)
    axes.xaxis.tick_top()
    axes.set_yticks(centres[:2], ["true", "imagined"] if named else ["", ""])
    axes.set_xticks(centres[: len(numbers)], [str(number) for number in numbers])
    for label, known in zip(axes.get_xticklabels(), seen, strict=True):
        label.set(color=INK if known else RED, weight="normal" if known else "bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def pixels(frame: Float[np.ndarray, "C h w"]) -> Float[np.ndarray, "h w 3"]:
    """Channels last; grey as three equal channels."""
    shown = frame.clip(0, 1).transpose(1, 2, 0)
    return np.broadcast_to(shown, (*shown.shape[:2], 3))


def _curves(
    axes: Axes,
    scores: Mapping[str, Any],
    key: str,
    only: Sequence[str] | None = None,
    limits: tuple[float, float] | None = None,
) -> None:
    """One line per row of the scores that has this key, each named at its end."""
    curves = {
        name: (row.label, np.array(values[key], dtype=float))  # None becomes NaN, a gap in the line
        for name, row, values in rows(scores)
        if (only is None or name in only) and any(value is not None for value in values.get(key) or [])
    }
    low, high = limits or _range([curve for _, curve in curves.values()])
    for name, (_, curve) in reversed(curves.items()):
        colour, dash = LINES.get(name, (SKY, "-."))
        axes.plot(np.arange(1, len(curve) + 1), curve, dash, color=colour, lw=2 if name == "imagined" else 1.1)
    ends = [float(curve[np.isfinite(curve)][-16:].mean().clip(low, high)) for _, curve in curves.values()]
    for (name, (label, _)), y in zip(curves.items(), spread(ends, 0.085 * (high - low)), strict=True):
        axes.annotate(
            label, (1.012, y), xycoords=("axes fraction", "data"), va="center", annotation_clip=False,
            color=LINES.get(name, (SKY, "-."))[0], weight="bold" if name == "imagined" else "normal",
        )  # fmt: skip
    steps = max((len(curve) for _, curve in curves.values()), default=2)
    axes.set(ylim=(low, high), xlim=(1, max(2, steps)))
    axes.grid(axis="y")


def _tiles(frames: Float[np.ndarray, "down across C h w"]) -> tuple[Float[np.ndarray, "H W 4"], list[float]]:
    """Frames as one picture with transparent joints, and the middle of each row and column."""
    down, across, _, h, w = frames.shape
    joint = max(1, h // 8)
    sheet = np.zeros((down * (h + joint) - joint, across * (w + joint) - joint, 4))
    for i, row in enumerate(frames):
        for j, frame in enumerate(row):
            top, left = i * (h + joint), j * (w + joint)
            sheet[top : top + h, left : left + w, :3] = pixels(frame)
            sheet[top : top + h, left : left + w, 3] = 1
    return sheet, [(h - 1) / 2 + i * (h + joint) for i in range(max(down, across))]


def _range(curves: Sequence[Float[np.ndarray, "time"]]) -> tuple[float, float]:
    """Limits for dB: exact copies, at 100 dB, must not squash the rest."""
    values = np.concatenate([curve[np.isfinite(curve) & (curve < 60)] for curve in curves] or [np.array([0.0, 30.0])])
    low, high = (values.min(), np.quantile(values, 0.995)) if len(values) else (0.0, 30.0)
    return float(np.floor(low - 1)), float(np.ceil(high + 1))
