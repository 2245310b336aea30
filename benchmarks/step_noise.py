"""How far steps end from where the motion planned them, and the noise model that is most likely for these residuals.

    .venv/bin/python benchmarks/step_noise.py --walks 200

Walks of 300 steps through rooms: without bumps, with bumps, and with bumps and 10% slips. The motion of `walk-strong`
plans every step from the true pose before it. A step goes as planned or not, each with a normal residual of its own
standard deviation: `steady`, `stray` and `surprise` of `LandmarkConfig`, for positions and (`..._turn`) for headings.
Expectation maximisation fits them to walks through training rooms. The fit and the numbers of `walk-landmarks` are
compared on walks through validation rooms.
"""

import argparse
import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm import WorldModel
from gtmsm.data.record import record_in_batches
from gtmsm.experiments.experiment import RoomsExperiment
from gtmsm.model.motion.base import Motion
from gtmsm.presets import PRESETS
from gtmsm.worlds.rooms import draw_rooms, seeds_of
from gtmsm.worlds.scavenger import ScavengerWalker, ScavengerWalkerConfig
from gtmsm.worlds.slip import SlipConfig, slipping

KINDS = {"no bumps": (False, 0.0), "bumps": (True, 0.0), "bumps and 10% slips": (True, 0.1)}
"""Whether walkers may bump, and the probability that a step slips."""
GROUPS = {"position": "", "heading": "_turn"}
"""Groups of coordinates, and the ends of their settings' names."""
ROUNDS = 200


class Noise(NamedTuple):
    """The noise of a step in one group of coordinates."""

    steady: float
    stray: float
    surprise: float

    def log_density(self, squared: Float[Tensor, "n"], size: int) -> Float[Tensor, "2 n"]:
        """Log-densities of residuals of this squared length in `size` coordinates: as planned, and not."""
        ways = torch.tensor([[1 - self.surprise, self.steady], [self.surprise, self.stray]], dtype=squared.dtype)
        chance, deviation = ways[:, :1], ways[:, 1:]
        return chance.log() - size * (deviation * math.sqrt(2 * math.pi)).log() - squared / (2 * deviation**2)

    def fitted(self, squared: Float[Tensor, "n"], size: int) -> "Noise":
        """The most likely noise of these residuals, by expectation maximisation from here."""
        noise = self
        for _ in range(ROUNDS):
            share = noise.log_density(squared, size).softmax(0)
            steady, stray = ((share * squared).sum(1) / (size * share.sum(1))).sqrt().tolist()
            noise = Noise(steady, stray, float(share[1].mean()))
        return noise


@torch.no_grad()
def residuals(motion: Motion, walks: int, validation: bool, bumps: bool, slips: float) -> list[Float[Tensor, "n"]]:
    """Squared residuals of the steps of `walks` walks, for each group of coordinates."""
    preset = PRESETS["walk-landmarks"][1]
    assert isinstance(preset, RoomsExperiment)
    seed = getattr(seeds_of(preset.seed), "validation" if validation else "train")
    world = slipping(draw_rooms(preset.world, walks, seed), SlipConfig(probability=slips))
    walker, found = ScavengerWalker(ScavengerWalkerConfig(may_bump=bumps)), []
    for clip in record_in_batches(world, walker, walks, 300, torch.Generator().manual_seed(seed)):
        before = motion.settle(motion.start(len(clip.a)), clip.true_pose[:, 0])
        for action, after in zip(clip.a[:, 1:].unbind(1), clip.true_pose[:, 1:].unbind(1), strict=True):
            planned = motion.step(before, action)
            found.append(motion.space.difference(planned[..., : motion.pose_size], after))
            before = motion.settle(planned, after)
    return [length.double() for length in motion.space.squared_lengths(torch.cat(found))]


def main() -> None:
    """Print, for every kind of walk, the fit and what it gains on validation walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=200, help="of each kind, in training and in validation rooms")
    walks = parser.parse_args().walks
    motion, chosen = WorldModel.load("walk-strong").motion, PRESETS["walk-landmarks"][1].model.landmark
    print("| walks | group | steady | stray | surprise | nats a step, fitted | nats a step, preset |")
    print("|---|---|---|---|---|---|---|")
    for kind, (bumps, slips) in KINDS.items():
        train, validation = (residuals(motion, walks, which, bumps, slips) for which in (False, True))
        for (group, end), size, ours, others in zip(GROUPS.items(), (2, 1), train, validation, strict=True):
            preset = Noise(*(getattr(chosen, name + end) for name in Noise._fields))
            fit = preset.fitted(ours, size)
            nats = [float(noise.log_density(others, size).logsumexp(0).mean()) for noise in (fit, preset)]
            numbers = " | ".join(f"{value:.2g}" for value in fit)
            print(f"| {kind} | {group} | {numbers} | {nats[0]:.2f} | {nats[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
