"""Remakes the paper's figures at its time steps, with shipped weights: docs/paper-*.png. `make figures`.

The walks are those of the gallery's videos. Scores of each walk are printed.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from gtmsm.data.record import record
from gtmsm.data.store import Chart
from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.forecaster import ModelForecaster
from gtmsm.evaluation.gallery import Gallery, ImageGallery
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.evaluation.report.figure_style import BLUE, GREEN, RED, STYLE, new_figure
from gtmsm.evaluation.report.image_walk_plots import paths, positions, walls
from gtmsm.evaluation.report.plots import bare, strip_lines, strips
from gtmsm.evaluation.report.rooms_plots import over_time, turning, walking
from gtmsm.files import replacing
from gtmsm.presets import HORIZON_IN
from gtmsm.reproduce.plots import LIGHT
from gtmsm.run import Run
from gtmsm.worlds.floorplan import Plan

Picture: TypeAlias = UInt8[np.ndarray, "tall wide 3"]
DOCS, CPU = Path(__file__).resolve().parent, torch.device("cpu")


def main() -> None:
    """Write all figures."""
    for name, draw in FIGURES.items():
        with replacing(DOCS / name) as draft:
            Image.fromarray(draw()).save(draft, optimize=True)
        print(f"wrote {DOCS / name}")


def figure_3() -> Picture:
    """Image navigation: positions, walls and frames."""
    gallery, _ = walked("image-walk", seed=0)
    found = drawn(positions(gallery, 0), "(a–c) Where it was, and where it thinks it was")
    learned = drawn(walls(gallery), "The walls that it learned; white: the true ones")
    return below(beside(found, learned), frames(gallery, "(d) Frames"))


def figure_4() -> Picture:
    """Rooms: turning on the spot and walking, states and frames."""
    (turned, _), (gallery, _) = (walked(weights, seed=3) for weights in ("rotate", "walk-strong"))
    turn = below(drawn(turning(turned, 0), "(a) Turning on the spot"), drawn(strips(turned, 0), "(c) Turning, frames"))
    return below(beside(turn, drawn(walking(gallery, 0), "(b) Walking")), frames(gallery, "(d) Walking, frames"))


def appendix_c() -> Picture:
    """Several rooms: the way up to the last step that the paper shows, frames, and poses over time."""
    gallery, _ = walked("walk-strong", seed=3, plan="rooms")
    way = drawn(walking(gallery, 0, gallery.strips[-1][1]), "From room to room")
    return beside(way, below(drawn(strips(gallery, 0), "Frames"), drawn(over_time(gallery, 0), "Poses")))


def appendix_d() -> Picture:
    """Obstacles: the first one met, the whole walk, and frames around the first one met in imagination."""
    gallery, chart = walked("obstacles-free", seed=11)
    met = first_wrong(gallery.way.believed[0], gallery.true_pose[0], after=gallery.tau)
    gallery = replace(gallery, strips=(gallery.strips[0], (met - 3, met + 4)))
    corrected = drawn(obstacle(gallery, chart), "A frame corrects the pose")
    return below(beside(corrected, drawn(paths(gallery, gallery.way, 0), "The whole walk")), frames(gallery, "Frames"))


FIGURES: dict[str, Callable[[], Picture]] = {
    "paper-figure-3.png": figure_3,
    "paper-figure-4.png": figure_4,
    "paper-appendix-c.png": appendix_c,
    "paper-appendix-d.png": appendix_d,
}
"""Names of files in docs/, and what draws them."""


@torch.no_grad()
def walked(weights: str, seed: int, plan: Plan | None = None) -> tuple[Any, Chart]:
    """The gallery of one held-out walk, as long as the paper's, and a map of its place."""
    run = Run.open(weights)
    model, setting, settings = run.load_model(CPU), run.set_up(CPU, plan=plan), run.experiment.evaluation
    world, walker, tau = setting.test_world, setting.walker, settings.tau
    steps = tau + (HORIZON_IN[plan] if plan else settings.horizon)
    examiner = examiner_for(world, tau, settings.metric_poses)
    examiner.calibrate(model, walker, steps, settings.seed + 6)  # fits the map of poses on 32 other walks
    clip = record(world, walker, 1, steps, torch.Generator().manual_seed(seed))
    past, future = clip.split(tau)
    guess = ModelForecaster(model).guess(past.x, past.a, future.a)
    examiner.note(clip, guess.walk, guess.frames, guess.reckoned)
    scores = {"psnr": psnr_pooled(frame_mse(future.x, guess.frames)), **examiner.scores()}
    print(weights, *(f"{name} {value:.4g}" for name, value in scores.items() if isinstance(value, float)), sep="\n  ")
    return examiner.gallery(model), examiner.chart()


def first_wrong(path: Float[np.ndarray, "time 2"], true: Float[np.ndarray, "time 2"], after: int = 0) -> int:
    """The first step later than `after`, counted from 1, at which a path is more than half a cell from the true one."""
    wrong = np.linalg.norm(path - true, axis=-1) > 0.5
    return after + 1 + int(np.flatnonzero(wrong[after:])[0])


@mpl.rc_context(STYLE)
def obstacle(gallery: ImageGallery, chart: Chart) -> Figure:
    """The paper's fig:obstacle_nav_merge: the first step that an obstacle blocks.

    Dead reckoning is right until then, so it shows what the motion predicts for this step.
    """
    assert gallery.way is not None
    true, believed, reckoned = (path[0] for path in (gallery.true_pose, gallery.way.believed, gallery.way.reckoned))
    step = first_wrong(reckoned, true)
    side = len(chart.picture) * gallery.truth.shape[-1] / gallery.images.shape[-1]
    axes = (figure := new_figure(6.1)).subplots()
    axes.imshow(chart.picture)
    bare(axes, f"steps {step - 1} and {step}; hatched cells are solid, and nobody sees them")
    view = chart.pixel(true[step - 1]) - side / 2
    axes.add_patch(Rectangle(view, side, side, fill=False, edgecolor="#ffd60a", lw=2.4, label="what it sees"))
    for pose, mark, size, colour, label in (
        (true[step - 2], "*", 22, RED, f"step {step - 1}: where it is, and stays"),
        (reckoned[step - 1], "h", 15, GREEN, f"step {step}: predicted from the action"),
        (believed[step - 1], "o", 7, BLUE, f"step {step}: inferred with the frame"),
    ):
        axes.plot(*chart.pixel(pose), mark, ms=size, color=colour, mec="white", label=label)
    figure.legend(loc="outside lower left")
    return figure


def frames(gallery: Gallery, title: str) -> Picture:
    """True above imagined frames; each line of eight steps has a title of its own, and lines are side by side."""
    lines = [(steps[0], steps[-1]) for steps in strip_lines(gallery.strips)]
    figures = (strips(replace(gallery, strips=(line,)), 0) for line in lines)
    return beside(*(drawn(each, f"{title} {a}–{b}") for each, (a, b) in zip(figures, lines, strict=True)))


def drawn(figure: Figure, title: str) -> Picture:
    """A figure of a report on white, with a title above it."""
    with mpl.rc_context(LIGHT):
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
        figure.set(dpi=144, facecolor="white")
        (canvas := FigureCanvasAgg(figure)).draw()
        return np.asarray(canvas.buffer_rgba())[..., :3]


def beside(*pictures: Picture) -> Picture:
    """Pictures side by side on white."""
    tall = max(map(len, pictures))
    return np.hstack([np.pad(one, ((0, tall - len(one)), (0, 0), (0, 0)), constant_values=255) for one in pictures])


def below(*pictures: Picture) -> Picture:
    """Pictures from the top down on white."""
    return beside(*(one.swapaxes(0, 1) for one in pictures)).swapaxes(0, 1)


if __name__ == "__main__":
    main()
