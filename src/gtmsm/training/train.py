"""The training loop, shared by all experiments and by GTM-SM and its rivals."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import tyro
from rich.console import Console

from gtmsm.config import config, require
from gtmsm.data.clip import Source
from gtmsm.errors import InputError
from gtmsm.interruption import Interruption, interruptible
from gtmsm.model.weights import WEIGHTS
from gtmsm.training.base_loss import BaseLoss, Model
from gtmsm.training.checkpoint import CHECKPOINT, read_checkpoint, write_checkpoint
from gtmsm.training.curriculum import CurriculumConfig, Stage, plan_stages
from gtmsm.training.engine import tuned
from gtmsm.training.log import Display, MetricsLog, NoLog
from gtmsm.training.loss import ObjectiveConfig
from gtmsm.training.prospect import ProspectConfig
from gtmsm.training.update import OptimiserConfig, Updater

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@config
class TrainingConfig:
    """How a model is trained."""

    updates: int = 50_000
    """Total number of updates (App. A.1 anneals over as many)."""
    optimiser: Annotated[OptimiserConfig, tyro.conf.arg(name="")] = OptimiserConfig()
    curriculum: Annotated[CurriculumConfig, tyro.conf.arg(name="")] = CurriculumConfig()
    objective: Annotated[ObjectiveConfig, tyro.conf.arg(name="")] = ObjectiveConfig()
    prospect: ProspectConfig = ProspectConfig()
    log_every: int = 50
    """Updates between two lines of metrics."""
    watch_every: int = 1_000
    """Updates between two evaluations on held-out clips."""
    save_every: int = 1_000
    """Updates between two checkpoints."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.updates >= 1, f"updates is {self.updates}; give at least 1")
        for name in ("log_every", "watch_every", "save_every"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; give at least 1")


class Diverged(InputError):
    """A loss, a gradient or weights are not finite."""


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    updates: int
    seconds: float
    finished: bool
    """False if training was interrupted; it can then be resumed."""
    signal: int = 0
    """The number of the signal that ended it; 0: none."""


def train(
    loss: BaseLoss[Model],
    source: Source,
    settings: TrainingConfig,
    folder: Path,
    *,
    fabric: "Fabric",
    seed: int,
    watch: Callable[[Model], dict[str, float]],
    resume: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Train the model of `loss` on `source`; write weights, checkpoint and metrics to `folder`.

    `watch` is called with the model every `watch_every` updates and returns numbers to log. On Ctrl-C, SIGTERM or
    SIGHUP the current update is completed and a checkpoint is written; with `resume` a later call continues exactly
    there.
    """
    generator = torch.Generator(fabric.device).manual_seed(seed + 1_000_003 * fabric.global_rank)
    updater = Updater(fabric, loss, source, settings.optimiser, generator)
    loop = _Loop(loss, updater, settings, folder, watch)
    if resume:
        loop.prospected = read_checkpoint(folder / CHECKPOINT, loss.model, updater)
    began, start = time.monotonic(), int(updater.count)
    require(start <= settings.updates, f"{folder} has {start} updates behind it; give {start} or more --updates")
    log = MetricsLog(folder, start, loop.prospected) if fabric.is_global_zero else NoLog()
    quiet = Console(quiet=True)
    try:
        with tuned(), Display(settings.updates, (console or quiet) if fabric.is_global_zero else quiet) as display:
            by = loop.run(source, start, log, display)
    except RuntimeError as error:
        if fabric.world_size > 1 and "peer" in str(error):  # of a connection; gloo and NCCL have no error class for it
            kept = f"{folder} has a checkpoint" if (folder / CHECKPOINT).exists() else "no checkpoint was saved yet"
            raise InputError(f"another process of this training was killed; {kept}: go on with --resume") from error
        raise
    finally:
        log.close()
    done = int(updater.count)
    return Outcome(done, time.monotonic() - began, done >= settings.updates, by)


@dataclass
class _Loop:
    """The state of one call of `train`."""

    loss: BaseLoss[Any]
    updater: Updater
    settings: TrainingConfig
    folder: Path
    watch: Callable[[Any], dict[str, float]]
    prospected: bool = False

    def run(self, source: Source, start: int, log: MetricsLog, display: Display) -> int:
        """Run every stage from update `start` on; return the signal that ended it, or 0."""
        settings = self.settings
        update, stop = start, 0
        with interruptible() as interrupted:
            for stage in plan_stages(settings.curriculum, self.loss.reading, settings.updates):
                if stage.end <= update:
                    continue
                if settings.curriculum.prospect and not self.prospected and stage.begin >= settings.curriculum.warm_up:
                    find = self.loss.search(source, settings.prospect, self.updater.generator)
                    self.loss.zero_grad()  # a search that fits by gradients leaves the last ones
                    self.prospected = True
                    if find is not None:
                        self.updater.broadcast()
                        display.say(f"prospected for the motion: {find.verdict}")
                        log.write(update, {"prospect": find.score, "verdict": find.verdict})
                self.updater.enter(stage)
                stop = self._anyone(interrupted)
                while update < stage.end and not stop:
                    self.updater.run()
                    update += 1
                    self._report(update, stage, log, display)
                    stop = self._anyone(interrupted)
                if stop:
                    break
            self._save(update)
            return stop or self._anyone(interrupted)

    def _anyone(self, interrupted: Interruption) -> int:
        """The signal that any of the processes received, or 0: all must stop after the same update."""
        fabric = self.updater.fabric
        if fabric.world_size == 1:
            return interrupted.signal
        asked = torch.tensor(interrupted.signal, device=fabric.device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        return int(asked)

    def _report(self, update: int, stage: Stage, log: MetricsLog, display: Display) -> None:
        """Log metrics, watch the model and save, as far as they are due after this update."""
        values: dict[str, float] = {}
        if update % self.settings.log_every == 0:
            self._check_finite()
            values |= self.updater.take_sums()
        if update % self.settings.watch_every == 0:
            self._check_finite()
            values |= self.watch(self.loss.model)
        if values:
            log.write(update, values)
            display.show(update, stage.name, values)
        if update % self.settings.save_every == 0:
            self._save(update)

    def _check_finite(self) -> None:
        """Raise an error before a model that is not finite is watched or saved."""
        if bad := int(self.updater.optimiser.first_bad):
            raise self._broken(f"loss or gradient was not finite at update {bad}")

    def _broken(self, what: str) -> Diverged:
        """The error for training that diverged; it names the weights that are left."""
        saved = (self.folder / WEIGHTS).exists()
        kept = f"the last good weights are in {self.folder}" if saved else "no weights were saved yet"
        return Diverged(f"training broke down: {what}; {kept}. Try a lower learning rate")

    def _save(self, update: int) -> None:
        """Write the checkpoint, then the weights: these can be made again from the checkpoint alone."""
        self._check_finite()
        if not all(bool(weight.isfinite().all()) for weight in self.loss.model.parameters()):
            raise self._broken(f"weights were not finite after update {update}")
        write_checkpoint(self.folder / CHECKPOINT, self.loss.model, self.updater, self.prospected)
        if self.updater.fabric.is_global_zero:
            self.loss.model.save(self.folder / WEIGHTS)
