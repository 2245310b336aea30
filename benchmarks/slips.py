"""Pose estimates on long walks whose steps slip, with other settings of landmarks than those of a run.

    .venv/bin/python benchmarks/slips.py RUN --images celeba32.npz --landmark '{watch: true}' '{watch: true, doubt: 3}'

`gtmsm evaluate` scores the same walks through test places, with the settings of the run.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig, Trials
from gtmsm.evaluation.progress import Meter
from gtmsm.run import Run
from gtmsm.training.engine import choose_device


@torch.no_grad()
def main() -> None:
    """Score each choice of settings on the same walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", help="as of gtmsm evaluate")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--landmark", nargs="*", default=["{}"], help="settings that replace those of the run, as YAML")
    parser.add_argument("--walks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--slips", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    run, device = Run.open(given.run), choose_device(given.device)
    model, setting = run.load_model(device).eval(), run.set_up(device, given.images)
    world = setting.watched if given.split == "validation" else setting.test_world
    asked, own = run.experiment.evaluation, model.require_landmarks("score slips").settings
    examiner = examiner_for(world, asked.tau, asked.metric_poses)
    for choice in given.landmark:
        model.landmarks.settings = replace(own, **yaml.safe_load(choice))
        examiner.calibrate(model, setting.walker, asked.tau + asked.horizon, given.seed + 6)
        for slip in given.slips:
            settings = LandmarkEvaluationConfig(walks=given.walks, steps=given.steps)
            trials = Trials(model, examiner, settings, given.seed, Meter(1, None))
            ways = trials.long_walks(examiner.slippery(slip), setting.walker, "")
            told = ", ".join(f"{way} {100 * scores['within']:.2f}%" for way, scores in ways.items() if scores)
            print(f"{choice}, {100 * slip:g}% slips: {told}", flush=True)


if __name__ == "__main__":
    main()
