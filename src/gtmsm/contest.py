"""Training of rivals by GTM-SM's loop, on the windows of an experiment, watched on the same validation clips."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml
from rich.console import Console

from gtmsm.config import as_plain, require
from gtmsm.data.record import record
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.forecaster import given_to
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import Setting
from gtmsm.files import locked, read_yaml, write_atomically
from gtmsm.interruption import is_first_process
from gtmsm.model.budget import Budget
from gtmsm.model.gtmsm import WorldModel
from gtmsm.rivals.build import KINDS, build_rival
from gtmsm.rivals.loss import RivalLoss
from gtmsm.rivals.rival import Rival, RivalConfig
from gtmsm.training.checkpoint import CHECKPOINT, budget_of
from gtmsm.training.train import Outcome, TrainingConfig, train
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SETTINGS = "rival.yaml"
WALKED = ("world", "walker", "slip", "pool")
"""Parts of an experiment that determine what is trained on, besides its places."""


def train_rival(
    setting: Setting,
    rival: RivalConfig,
    training: TrainingConfig,
    folder: Path,
    *,
    fabric: "Fabric",
    seed: int,
    borrowed: WorldModel | None = None,
    console: Console | None = None,
) -> tuple[Rival, Outcome]:
    """Train a rival in `folder` on the windows of a setting; `training` gives updates, curriculum and objective.

    Its learning rate is `rival.rate` times that of `training`. If the folder has a checkpoint, training continues
    exactly there; places and all settings but the number of updates must be the same. `borrowed`: see `build_rival`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) if is_first_process() else nullcontext():
        _note_settings(folder, rival, training, seed, setting)
        begun = (folder / CHECKPOINT).exists()
        model = build(setting, rival, seed, borrowed, budget_of(folder / CHECKPOINT) if begun else None)
        look = partial(glance, world=setting.watched, walker=setting.walker, settings=setting.brief)
        outcome = train(
            RivalLoss(model, training.objective), partial(setting.source, truth=model.needs_poses),
            at_rate(training, rival.rate), folder,
            fabric=fabric, seed=seed, watch=look, resume=begun, console=console,
        )  # fmt: skip
    return model, outcome


def build(
    setting: Setting, rival: RivalConfig, seed: int, borrowed: WorldModel | None = None, budget: Budget | None = None
) -> Rival:
    """A rival with fresh weights for the worlds of a setting, with the coder of its experiment."""
    world, poses = setting.test_world, 0
    if KINDS[rival.kind].needs_poses:
        poses = record(world, setting.walker, 1, 2, torch.Generator().manual_seed(0)).true_pose.shape[-1]
    with torch.random.fork_rng(devices=[]), budget or nullcontext():
        torch.manual_seed(seed)
        vae, actions = setting.experiment.model.vae, len(world.action_names)
        return build_rival(rival, vae, world.frame_shape, actions, poses, borrowed).to(setting.device)


@torch.no_grad()
def glance(rival: Rival, world: World, walker: Walker, settings: EvaluationConfig) -> dict[str, float]:
    """PSNR on a few held-out clips, of all frames and of frames at memorised places."""
    examiner = examiner_for(world, settings.tau, settings.metric_poses)
    generator = torch.Generator().manual_seed(settings.seed)
    clip = examiner.prepared(record(world, walker, settings.clips, settings.tau + settings.horizon, generator))
    frames = rival.forecast(*given_to(rival, clip, settings.tau, clip.x.device))
    error2 = metrics.frame_mse(clip.x[:, settings.tau :], frames)
    values = {"psnr": metrics.psnr_pooled(error2)}
    if examiner.knows_places:
        values["psnr_revisited"] = metrics.psnr_pooled(error2, examiner.revisited(clip))
    return {name: value for name, value in values.items() if value is not None}


def at_rate(training: TrainingConfig, factor: float) -> TrainingConfig:
    """The same training with learning rates multiplied by `factor`."""
    optimiser = training.optimiser
    rates = {name: factor * getattr(optimiser, name) for name in ("learning_rate", "final_learning_rate")}
    return replace(training, optimiser=replace(optimiser, **rates))


def _note_settings(folder: Path, rival: RivalConfig, training: TrainingConfig, seed: int, setting: Setting) -> None:
    """Write the settings of a training and its places, or refuse to resume one with others."""
    path, experiment = folder / SETTINGS, as_plain(setting.experiment)
    walked = {name: experiment[name] for name in WALKED if name in experiment} | {"places": asdict(setting.places)}
    mine = {"rival": as_plain(rival), "training": as_plain(training), "seed": seed, **walked}
    if path.exists():
        theirs = walked | read_yaml(path)  # older files do not have these
        same = isinstance(theirs.get("training"), dict)
        same = same and theirs | {"training": theirs["training"] | {"updates": training.updates}} == mine
        require(same, f"{folder} holds a rival of other settings or places, see {path}; train into another folder")
    if is_first_process():
        write_atomically(path, yaml.safe_dump(mine, sort_keys=False))
