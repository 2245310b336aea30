"""Rivals of GTM-SM at toy size on two CPU cores: what an update costs, and what they recall.

    python benchmarks/rivals.py cost                          # CPU time of an update, as a ratio to GTM-SM's
    python benchmarks/rivals.py gtmsm,gru,grid-map --rates 0.3 1 3

Image walks on the builtin images, 64 steps memorised; PSNR on places that were memorised, over 64 predicted steps of 64
held-out walks. `gtmsm` comes first where `grid-map` is asked for, whose motion is that of the GTM-SM.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from gtmsm import contest
from gtmsm.config import changed
from gtmsm.evaluation.score import evaluate
from gtmsm.experiments import ImageWalkExperiment, Setting, set_up
from gtmsm.files import read_lines
from gtmsm.model.gtmsm import WorldModel
from gtmsm.presets import PRESETS
from gtmsm.rivals.build import KINDS
from gtmsm.rivals.loss import RivalLoss
from gtmsm.rivals.rival import RivalConfig
from gtmsm.training.curriculum import plan_stages
from gtmsm.training.engine import build_fabric
from gtmsm.training.log import METRICS
from gtmsm.training.loss import Loss
from gtmsm.training.train import train
from gtmsm.training.update import Updater


def toy(updates: int) -> ImageWalkExperiment:
    """image-walk-small with shorter memories and fewer updates."""
    fifth = updates // 5
    return changed(PRESETS["image-walk-small"][1], {
        "training": {"updates": updates, "watch_every": max(1, updates // 4), "save_every": updates},
        "training.optimiser.anneal_updates": updates,
        "training.curriculum": {"tau": 64, "horizon": 32, "warm_up": fifth, "grow": (fifth,)},
        "evaluation": {"tau": 64, "horizon": 64, "clips": 64},
    })  # fmt: skip


def cost(setting: Setting, fabric, width: int, rounds: int = 6) -> None:
    """CPU time of an update of the last stage, taken in turns."""
    training, model = setting.experiment.training, setting.build_model()
    losses = {"gtmsm": (Loss(model, training.objective), setting.source)}
    for kind in KINDS:
        rival = contest.build(setting, RivalConfig(kind=kind, width=width), 0, model if kind == "grid-map" else None)
        losses[kind] = RivalLoss(rival, training.objective), partial(setting.source, truth=rival.needs_poses)
    stage = plan_stages(training.curriculum, setting.experiment.model.recall, training.updates)[-1]
    took: dict[str, list[float]] = {}
    updaters = {}
    for name, (loss, source) in losses.items():
        generator = torch.Generator().manual_seed(0)
        updaters[name] = Updater(fabric, loss, source, training.optimiser, generator)
        updaters[name].enter(stage)
    for number in range(rounds):
        for name, updater in updaters.items():
            began = time.process_time()
            updater.run()
            if number:  # the first one allocates
                took.setdefault(name, []).append(time.process_time() - began)
    unit = statistics.median(took["gtmsm"])
    for name, times in took.items():
        print(f"{name:20} {statistics.median(times) / unit:6.2f}")


def train_gtmsm(setting: Setting, fabric, folder: Path) -> WorldModel:
    """GTM-SM on the same windows; prints its score and those of its controls."""
    training, model = setting.experiment.training, setting.build_model()
    loss = Loss(model, training.objective)
    train(loss, setting.source, training, folder, fabric=fabric, seed=0, watch=setting.watch())
    scores = evaluate(
        model, setting.test_world, setting.walker, setting.experiment.evaluation, setting.device
    ).scores  # fmt: skip
    for name in ("vae_ceiling", "mean_frame", "last_frame"):
        print(f"control {name:12} {scores['controls'][name]['psnr_revisited']:6.2f} dB revisited")
    print(f"{'gtmsm':20} {scores['psnr_revisited']:6.2f} dB revisited", flush=True)
    return model


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", help="cost, or kinds with commas between them")
    words.add_argument("--width", type=int, default=64)
    words.add_argument("--updates", type=int, default=600)
    words.add_argument("--rates", type=float, nargs="+", default=[1.0])
    given = words.parse_args()
    torch.set_num_threads(1)
    experiment = toy(given.updates)
    setting, fabric = set_up(experiment, torch.device("cpu")), build_fabric("cpu", 1, 1)
    fabric.launch()
    if given.what == "cost":
        return cost(setting, fabric, given.width)
    walking = None
    look = partial(contest.glance, world=setting.test_world, walker=setting.walker, settings=experiment.evaluation)
    for kind in given.what.split(","):
        if kind == "gtmsm":
            with tempfile.TemporaryDirectory() as folder:
                walking = train_gtmsm(setting, fabric, Path(folder))
            continue
        for rate in given.rates:
            settings = RivalConfig(kind=kind, width=given.width, rate=rate)
            with tempfile.TemporaryDirectory() as folder:
                rival, _ = contest.train_rival(
                    setting, settings, experiment.training, Path(folder),
                    fabric=fabric, seed=0, borrowed=walking if kind == "grid-map" else None,
                )  # fmt: skip
                reports = [report for _, report in read_lines(Path(folder) / METRICS)]
            bound = [float("nan"), *(report["elbo"] for report in reports if "elbo" in report)][-1]
            found = look(rival)["psnr_revisited"]
            print(
                f"{kind:20} {found:6.2f} dB revisited  rate {rate}  bound {bound:.0f}  weights {rival.weights}",
                flush=True,
            )


if __name__ == "__main__":
    main()
