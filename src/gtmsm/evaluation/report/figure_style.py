"""Style of the report's figures, and their conversion to SVG for a page."""

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK = "#010203"
"""Placeholder for the colour of text; `svg` replaces it, so that figures follow light and dark pages."""

# Okabe and Ito's colours, which colour-blind readers can distinguish, in tones visible on white and on black.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#2f86d1", "#d98a00", "#129a74", "#d55e3a", "#b56fa8", "#4aa8dd", "#868c96",
)  # fmt: skip
LINES: dict[str, tuple[str, str]] = {
    "imagined": (BLUE, "-"),
    "sampled": (BLUE, ":"),
    "vae_ceiling": (GREEN, "--"),
    "true_pose_memory": (ORANGE, "-"),
    "copy_nearest_true_pose": (PURPLE, "-"),
    "best_copy": (PURPLE, "--"),
    "copy_nearest_predicted_pose": (PURPLE, ":"),
    "last_frame": (RED, "-"),
    "mean_frame": (RED, "--"),
    "random_retrieval": (GREY, "-"),
}
PLACES = (ORANGE, GREEN, PURPLE, "#5a4fcf")
"""Colours of the corners of a map; places between them are blended."""
ACTIONS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, GREY)
STYLE = {
    "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.facecolor": "none", "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlecolor": INK, "axes.titlesize": 9.5,
    "axes.titlelocation": "left", "axes.titlepad": 8, "axes.labelsize": 9.5,
    "figure.facecolor": "none", "savefig.facecolor": "none", "font.size": 9.5, "legend.frameon": False,
    "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6, "text.color": INK, "text.parse_math": False,
    "xtick.color": INK, "ytick.color": INK, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 3, "ytick.major.size": 3,
    "svg.fonttype": "none", "svg.hashsalt": "gtmsm", "image.interpolation": "none", "lines.solid_capstyle": "round",
}  # fmt: skip
WIDTH = 4.5
"""Inches: 324 points, so that 9-point text is 9 pixels high on a phone 360 pixels wide, with the page's margins."""


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element: no header, no links, the page's own text colour and font."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        canvas, layout = FigureCanvasSVG(figure), figure.get_layout_engine()
        if layout is not None:  # done here, since `savefig` would draw the figure once more for it
            layout.execute(figure)
            figure.set_layout_engine("none")
        canvas.print_svg(text, metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body)  # HTML needs none, and the page is to contain no links
    body = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", body)
    body = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg \1 role="img" aria-label="{escape(name)}">', body, count=1
    )
    prefix = re.sub(r"[^a-z0-9]+", "-", name.lower())  # ids are unique within a figure only, not within a page
    body = re.sub(r'( id="|href="#|url\(#)', rf"\1{prefix}-", body)
    return body.replace(INK, "currentColor")


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure with constrained layout; sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def two_columns(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in two columns; an unused last place stays empty."""
    rows = -(-count // 2)
    figure = new_figure(2.4 * rows)
    panels = list(figure.subplots(rows, 2, squeeze=False).flatten())
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]
