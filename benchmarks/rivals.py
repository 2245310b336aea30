"""Rivals of GTM-SM at toy size on two CPU cores: what an update costs, and what they recall.

    python benchmarks/rivals.py cost                          # CPU time of an update, as a ratio to GTM-SM's
    python benchmarks/rivals.py gtmsm,gru,grid-map --rates 0.3 1 3
    python benchmarks/rivals.py gtmsm,gru,grid-map --doom mazes --updates 1500 --width 128

Image walks on the builtin images, 64 steps memorised; PSNR on places that were memorised, over 64 predicted steps of 64
held-out walks. With `--doom FOLDER`: walks in ViZDoom; 200 clips of its training mazes are recorded in the folder, or
are there already; PSNR of all 150 predicted steps of the set `doom/walk`. `gtmsm` comes first where `grid-map` is asked
for, whose motion is that of the GTM-SM.
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
from gtmsm.episodes.recorder import record_environment
from gtmsm.evaluation.controls import control_forecasters
from gtmsm.evaluation.forecaster import Forecaster, ModelForecaster
from gtmsm.evaluation.forecasts import score_forecasters
from gtmsm.evaluation.score import evaluate
from gtmsm.evaluation.sets import named_set
from gtmsm.experiments import Experiment, ImageWalkExperiment, OwnExperiment, Setting, proposed, set_up
from gtmsm.files import read_lines
from gtmsm.model.gtmsm import WorldModel
from gtmsm.presets import PRESETS
from gtmsm.rivals.build import KINDS
from gtmsm.rivals.loss import RivalLoss
from gtmsm.rivals.rival import Rival, RivalConfig
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


def in_doom(folder: Path, updates: int) -> OwnExperiment:
    """What `gtmsm train own` proposes on a CPU for walks in ViZDoom's training mazes, recorded in `folder`."""
    record_environment("gtmsm/Doom-v0", folder, clips=200, workers=2, env_kwargs={"split": "train"})
    return changed(proposed(str(folder), gpu=False)[0], {
        "training": {"updates": updates, "watch_every": updates, "save_every": updates},
        "training.optimiser.anneal_updates": updates,
    })  # fmt: skip


def score_in_doom(forecasters: dict[str, Forecaster]) -> None:
    """Print PSNR on the set doom/walk: all steps, the late ones, and those near a memorised pose."""
    for name, scores in score_forecasters(forecasters, named_set("doom/walk")).items():
        late, near = statistics.mean(scores["psnr_late_by_clip"]), scores["psnr_revisited"]
        print(
            f"{name:24} {scores['psnr_pooled']:6.2f} dB  late {late:6.2f}  revisited {near:6.2f}  "
            f"weights {scores['parameters']}",
            flush=True,
        )


def score_on_images(setting: Setting, rival: Rival, name: str, folder: Path) -> None:
    """Print PSNR of a rival at memorised places, and its last bound in training."""
    reports = [report for _, report in read_lines(folder / METRICS)]
    bound = [float("nan"), *(report["elbo"] for report in reports if "elbo" in report)][-1]
    found = contest.glance(rival, setting.test_world, setting.walker, setting.experiment.evaluation)["psnr_revisited"]
    print(f"{name:20} {found:6.2f} dB revisited  bound {bound:.0f}  weights {rival.weights}", flush=True)


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
    if isinstance(setting.experiment, OwnExperiment):
        score_in_doom({"gtmsm": ModelForecaster(model, metric=True), **control_forecasters(model.vae)})
        return model
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
    words.add_argument("--doom", type=Path, help="folder of walks in ViZDoom to train on")
    given = words.parse_args()
    torch.set_num_threads(1)
    experiment: Experiment = toy(given.updates) if given.doom is None else in_doom(given.doom, given.updates)
    setting, fabric = set_up(experiment, torch.device("cpu")), build_fabric("cpu", 1, 1)
    fabric.launch()
    if given.what == "cost":
        return cost(setting, fabric, given.width)
    walking = None
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
                name = f"{kind}, rate {rate}"
                if given.doom is None:
                    score_on_images(setting, rival, name, Path(folder))
                else:
                    score_in_doom({name: rival.eval()})


if __name__ == "__main__":
    main()
