"""How many agents that are put anywhere into a memorised room know where they are after 20 steps.

    .venv/bin/python benchmarks/lost_walks.py RUN --split test --rooms 16 --seeds 1 2 --device cpu

`gtmsm evaluate` asks the same of few rooms. The map of a room is right or wrong for all agents in it, so the standard
error is that over rooms. `--once` leaves out the second look at where a walk has ended.
"""

import argparse
import math
from pathlib import Path

import torch

from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig, Trials
from gtmsm.evaluation.progress import Meter
from gtmsm.model import landmark
from gtmsm.run import Run
from gtmsm.training.engine import choose_device


@torch.no_grad()
def main() -> None:
    """Score rooms of each seed, and tell of all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--rooms", type=int, default=16, help="of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--careful", action="store_true", help="walkers that bump into nothing")
    parser.add_argument("--once", action="store_true", help="without a second look")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    if given.once:
        landmark.LAST = math.inf  # no walk is longer
    run, device = Run.open(given.run), choose_device(given.device)
    model, setting = run.load_model(device).eval(), run.set_up(device)
    world = setting.watched if given.split == "validation" else setting.test_world
    settings, asked = LandmarkEvaluationConfig(walks=given.rooms), run.experiment.evaluation
    shares = []
    for seed in given.seeds:
        examiner = examiner_for(world, asked.tau, asked.metric_poses)
        walker = setting.walker
        if given.careful and (walker := examiner.careful(setting.walker)) is None:
            parser.error(f"walkers of {given.run} bump into nothing anyway; leave out --careful")
        examiner.calibrate(model, walker, asked.tau + asked.horizon, seed + 6)
        scores = Trials(model, examiner, settings, seed, Meter(1, None)).unknown_start(world, walker)
        shares += scores["within_by_place"]
        print(f"seed {seed}: {100 * scores['within']:.1f}% of {scores['trials']}", flush=True)
    each = torch.tensor(shares).double()
    error = each.std() / math.sqrt(len(each))
    print(
        f"{given.split} rooms: {100 * each.mean():.1f}% of {len(each) * settings.lost} agents in {len(each)} rooms, "
        f"give or take {100 * error:.1f}; all {settings.lost} agents of {int((each == 1).sum())} rooms, none of "
        f"{int((each == 0).sum())}"
    )


if __name__ == "__main__":
    main()
