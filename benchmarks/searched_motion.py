"""What a motion that was found without displacements costs the pictures of weights that learned with them.

    gtmsm train walk-strong-free --updates 1 --pool.clips 2048 --no-evaluate --device cpu --run runs/searched
    .venv/bin/python benchmarks/searched_motion.py runs/searched --out searched.json

The motion of a run takes the place of the one in shipped weights, and nothing else changes; both are scored on the same
walks. Frames and actions cannot tell the unit of length: it is fitted to true poses of walks in training rooms.
"""

import argparse
import json
from copy import deepcopy
from pathlib import Path

import torch

from gtmsm import WorldModel
from gtmsm.errors import InputError
from gtmsm.evaluation.forecaster import ModelForecaster
from gtmsm.evaluation.forecasts import score_forecasters
from gtmsm.evaluation.sets import FixedSet, named_set
from gtmsm.model.motion.turning import Gliding
from gtmsm.training.engine import choose_device

SHOWN = ("psnr_pooled", "psnr_frames", "psnr_revisited", "position_error_relative", "heading_error", "mse_by_clip")


@torch.no_grad()
def unit_of(motion: Gliding, walks: FixedSet) -> float:
    """The length, in the world, of what this motion takes for 1: least squares over the steps of these walks."""
    products = squares = 0.0
    for clip in walks.clips():
        path = motion.unroll(motion.start(len(clip.a)), clip.a)[..., :2]
        found, true = path.diff(dim=1).norm(dim=-1), clip.true_pose[..., :2].diff(dim=1).norm(dim=-1)
        products, squares = products + float((found * true).sum()), squares + float(found.square().sum())
    return products / squares


@torch.no_grad()
def in_units(motion: Gliding, unit: float) -> Gliding:
    """The same motion with lengths counted otherwise: moves and velocities are so many times as long."""
    scaled = deepcopy(motion)
    scaled.move.mul_(unit)
    scaled.V.mul_(unit)
    scaled.W_v.div_(unit)
    return scaled


def main() -> None:
    """Score shipped weights with their own motion and with the one that was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of walk-strong-free or walk-free; its motion is what counts")
    parser.add_argument("--weights", default="walk-strong", help="shipped weights, or a run, of walk-strong")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="a file for the scores, as JSON")
    flags = parser.parse_args()
    device = choose_device(flags.device)
    found, model = WorldModel.load(flags.run, "cpu").motion, WorldModel.load(flags.weights, device)
    if not isinstance(found, Gliding):
        raise InputError(f"{flags.run} has a motion of another kind; give a run of walk-strong-free")
    unit = unit_of(found, named_set("rooms/walk", "train"))
    other = deepcopy(model)
    other.motion = in_units(found, unit).to(device)
    both = {"its own motion": ModelForecaster(model, metric=True), "found": ModelForecaster(other, metric=True)}
    scores = score_forecasters(both, named_set("rooms/walk", flags.split), device=device)
    told = {name: {key: one[key] for key in SHOWN} for name, one in scores.items()}
    for name, one in told.items():
        print(f"{name}: {one['psnr_pooled']:.2f} dB, near a memorised pose {one['psnr_revisited']:.2f}, "
              f"{one['position_error_relative']:.2%} and {one['heading_error']:.2f} degrees off")  # fmt: skip
    if flags.out:
        flags.out.write_text(json.dumps({"unit": unit, "split": flags.split, **told}, indent=1))


if __name__ == "__main__":
    main()
