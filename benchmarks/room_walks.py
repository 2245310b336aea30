"""What landmarks are worth in validation rooms, for choosing: `gtmsm evaluate` scores the same in test rooms.

    .venv/bin/python benchmarks/room_walks.py RUN --out walks.json --plot docs/bumps.png
    .venv/bin/python benchmarks/room_walks.py RUN --known walks.json --plot docs/bumps.png    # draw again

Walks of 1,000 steps with bumps, with slips as well and with neither, unknown starts and single pictures. Landmarks have
the numbers of today's preset, not those that the run was trained with: training does not use them.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig, Trials, work_of_trials
from gtmsm.evaluation.long_walks import WAYS, found_in_rooms, kinds_of_walks
from gtmsm.evaluation.progress import Meter, ProgressLine
from gtmsm.evaluation.report.figure_style import BLUE, GREEN, GREY, ORANGE, STYLE
from gtmsm.evaluation.report.landmark_plots import smoothed
from gtmsm.flags import plain_console
from gtmsm.presets import PRESETS
from gtmsm.run import Run
from gtmsm.training.engine import choose_device

COLOURS = {"closing_loops": BLUE, "landmarks": ORANGE, "loops_closed": GREEN, "dead_reckoning": GREY}
WANTED = {"no slip, bumps": (4.0, 2.0), "10% slip, bumps": (8.0, 5.0)}
"""Percent of the width and degrees that were asked for."""


@torch.no_grad()
def score(folder: Path, device: torch.device, settings: LandmarkEvaluationConfig, seed: int) -> dict[str, Any]:
    """All trials in validation rooms."""
    run = Run.open(folder)
    model, setting = run.load_model(device).eval(), run.set_up(device)
    assert model.landmarks is not None
    model.landmarks.settings = PRESETS["walk-landmarks"][1].model.landmark
    examiner = examiner_for(setting.watched, run.experiment.evaluation.tau, run.experiment.evaluation.metric_poses)
    examiner.calibrate(model, setting.walker, 300, seed + 6)
    with ProgressLine(plain_console(stderr=True)) as tell:
        meter = Meter(work_of_trials(settings, examiner, setting.walker), tell)
        return Trials(model, examiner, settings, seed, meter).scores(setting.watched, setting.walker)


def plot(scores: dict[str, Any], path: Path) -> None:
    """Errors over the steps: a column for each kind of walk, positions above headings."""
    *others, easy = kinds_of_walks(scores)
    kinds = [easy, *others]  # beginning with walks on which nothing goes wrong
    with mpl.rc_context({**STYLE, "axes.facecolor": "white", "figure.facecolor": "white"}):
        figure = Figure(figsize=(3.2 * len(kinds), 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(kinds), sharex=True)
        rows = (
            ("position_error_relative", 100, "position off (% of the width)"),
            ("heading_error", 1, "heading off (°)"),
        )
        for column, (name, walks) in enumerate(kinds):
            for row, (key, unit, label) in enumerate(rows):
                panel, highest = axes[row, column], 1.0
                for way, words in WAYS:
                    curve = unit * smoothed(np.array(walks[way][f"{key}_by_step"]))
                    panel.plot(np.arange(1, len(curve) + 1), curve, color=COLOURS[way], lw=1.6, label=words)
                    highest = max(highest, highest if way == "dead_reckoning" else float(curve.max()))
                if name in WANTED:
                    panel.axhline(WANTED[name][row], color="black", lw=0.8, ls=":", label="asked for")
                    highest = max(highest, WANTED[name][row])
                panel.set(ylim=(0, 1.25 * highest), title=name if row == 0 else "", xlabel="step" if row else "")
                panel.set_ylabel(label if column == 0 else "")
        lines, names = axes[0, -1].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=len(lines))
        figure.savefig(path, dpi=110)


def main() -> None:
    """Score or read, tell, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--walks", type=int, default=16)
    parser.add_argument("--slips", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--known", type=Path, help="scores that --out wrote")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if given.known:
        scores = json.loads(given.known.read_text())
    else:
        settings = LandmarkEvaluationConfig(walks=given.walks, slips=tuple(given.slips))
        scores = score(given.run, choose_device(given.device), settings, given.seed)
    if given.out:
        given.out.write_text(json.dumps(scores))
    print(found_in_rooms(scores))
    if given.plot:
        plot(scores, given.plot)


if __name__ == "__main__":
    main()
