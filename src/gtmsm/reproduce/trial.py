"""One row and one seed: train, score on every set of its world, and write the result."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gtmsm.config import Device, require
from gtmsm.contest import at_rate, train_rival
from gtmsm.errors import InputError
from gtmsm.evaluation.controls import Ceiling, control_forecasters
from gtmsm.evaluation.forecaster import Forecaster, ModelForecaster
from gtmsm.evaluation.forecasts import score_forecasters
from gtmsm.evaluation.metrics import converged
from gtmsm.evaluation.score import EvaluationConfig, evaluate
from gtmsm.evaluation.sets import SETS, FixedSet, Split, named_set
from gtmsm.experiments import ImageWalkExperiment, RoomsExperiment, set_up
from gtmsm.files import read_json, write_json
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.weights import WEIGHTS
from gtmsm.reproduce.results import result_path, write_result
from gtmsm.reproduce.rows import WORLDS, Row
from gtmsm.run import Run, begin, resume
from gtmsm.training.engine import build_fabric, choose_device
from gtmsm.training.train import Diverged, Outcome

SECONDS = "seconds.json"
SELF = ""
"""Name of the trained model among the forecasters that are scored."""
RUNS = "runs"
"""Folder of the trainings, in the folder of results."""
LEFT_OUT = ("protocol", "forecaster", "psnr_by_clip", "mse_by_clip", "privileges", "parameters", "split", "quick")
"""Keys of scores that results omit: given once per result or in docs/protocol.md, or not used by the table."""


class Interrupted(InputError):
    """A signal ended a training, so that no other may begin."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"training was interrupted after {outcome.updates} updates; the same command goes on there")
        self.signal = outcome.signal


@dataclass(frozen=True)
class Trained:
    """A trained forecaster, with the cost of its training."""

    forecaster: Forecaster
    model: WorldModel | None
    """The world model, if the row is GTM-SM: its controls use its coder."""
    parameters: int
    seconds: float
    learning_rate: float


@dataclass(frozen=True)
class Trial:
    """A row and a seed to train and score, with folder, device and size."""

    row: Row
    seed: int
    out: Path
    quick: bool
    device: Device
    images: str | None
    share: float = 1.0
    first: bool = True
    """Whether this is the first seed of its row, for which all controls are scored."""
    sweep: tuple[float, ...] = ()
    """Factors of the learning rate of which the best on validation places is taken; empty: none were to be tried."""

    def run(self) -> None:
        """Train, score and write the result, with the best learning rate on validation places if any were tried."""
        tried = {} if self.row.is_ablation else swept(self.out, self.row.name, self.sweep)
        sets = self.row.sets(self.images)
        self._prepare(sets, "test")
        trained = self._train(best(tried))
        # Controls are scored for GTM-SM itself only; those without weights are the same for every seed.
        model = trained.model if self.row.name == self.row.world else None
        controls = control_forecasters(model.vae) if model is not None else {}
        if not self.first:
            controls = {name: one for name, one in controls.items() if isinstance(one, Ceiling)}
        found = {name: self._score({SELF: trained.forecaster, **controls}, name) for name in sets}
        scores = {name: of.pop(SELF) for name, of in found.items()}
        facts: dict[str, Any] = {
            "quick": self.quick,
            "updates": self._experiment.training.updates,
            "learning_rate": trained.learning_rate,
            "swept": {f"{factor:g}": value for factor, value in tried.items()},
            "parameters": trained.parameters,
            "seconds": round(trained.seconds, 1),
            "privileges": list(trained.forecaster.privileges),
            "converged": converged(scores[sets[0]]),
            "scores": scores,
            "controls": found if model is not None else {},
        }
        if model is not None and self.seed == 0:
            facts["figure"] = self._draw(model)
        write_result(self.out, self.row.name, self.seed, facts)

    def _draw(self, model: WorldModel) -> str:
        """Draw the paper's figure of this world, as far as clips are long enough; return the file's name."""
        from gtmsm.reproduce.plots import write_frames  # matplotlib takes seconds to import

        walks = named_set(WORLDS[self.row.world].sets[0], quick=self.quick)
        size, setting = walks.size, set_up(self._experiment, self._where)
        metric = self._experiment.training.objective.displacement > 0
        few = EvaluationConfig(tau=size.tau, horizon=size.horizon, clips=2, metric_poses=metric)
        gallery = evaluate(model, setting.test_world, walks.walker, few, self._where).gallery
        write_frames(self.out / (name := f"{self.row.world}-frames.png"), gallery)
        return name

    @property
    def _experiment(self) -> ImageWalkExperiment | RoomsExperiment:
        return self.row.experiment(self.seed, self.quick, self.images, self.share)

    @property
    def _where(self) -> torch.device:
        return choose_device(self.device)

    def _score(
        self, forecasters: Mapping[str, Forecaster], name: str, split: Split = "test"
    ) -> dict[str, dict[str, Any]]:
        """Scores on a set, without the keys that results omit."""
        found = score_forecasters(forecasters, self._set(name, split), device=self._where)
        return {who: {key: scores[key] for key in scores if key not in LEFT_OUT} for who, scores in found.items()}

    def _set(self, name: str, split: Split) -> FixedSet:
        """A set of walks to score on."""
        return _kept_set(name, split, self.quick, self.images if SETS[name].needs_images else None)

    def _prepare(self, names: Sequence[str], split: Split) -> None:
        """Set up the worlds to score in before the training, which would be in vain if one of them cannot be."""
        for name in names:
            _ = self._set(name, split).world

    def try_rate(self, factor: float) -> None:
        """Train in full with `factor` times the learning rate, and write the PSNR on validation places; None if the
        training diverges, so that the row is trained by another rate."""
        name = self.row.sets(self.images)[0]
        self._prepare([name], "validation")
        found: dict[str, Any] = {"psnr_pooled": None}
        with suppress(Diverged):
            found = self._score({SELF: self._train(factor).forecaster}, name, "validation")[SELF]
        size = {"quick": self.quick, "updates": self._experiment.training.updates}
        noted = {"row": self.row.name, "set": name, "factor": factor, "validation": found["psnr_pooled"], **size}
        write_json(sweep_path(self.out, self.row.name, factor), noted)

    def _train(self, factor: float) -> Trained:
        """Train in a separate folder; a training that is there already is resumed, or used if finished."""
        folder = self._folder(self.row.name, factor)
        return self._train_rival(folder, factor) if self.row.rival else self._train_model(folder, factor)

    def _folder(self, row: str, factor: float) -> Path:
        at = "" if f"{factor:g}" == "1" else f"-rate{factor:g}"
        return self.out / RUNS / f"{row.replace('/', '.')}-seed{self.seed}{at}"

    def _train_model(self, folder: Path, factor: float) -> Trained:
        experiment = self._experiment
        experiment = replace(experiment, training=at_rate(experiment.training, factor))
        optimiser = experiment.training.optimiser
        fabric = build_fabric(self.device, 1, optimiser.batch)
        if (folder / "config.yaml").exists():
            run, outcome = resume(Run.open(folder), experiment, fabric, Console())
        else:
            preset = WORLDS[self.row.world].preset
            run, outcome = begin(preset, experiment, folder, fabric, Console())
        seconds = _took(folder, outcome)
        model = run.load_model(self._where)
        metric = experiment.training.objective.displacement > 0
        count = sum(weight.numel() for weight in model.parameters())
        return Trained(ModelForecaster(model, metric), model, count, seconds, optimiser.learning_rate)

    def _train_rival(self, folder: Path, factor: float) -> Trained:
        experiment, fabric = self._experiment, build_fabric(self.device, 1, self._experiment.training.optimiser.batch)
        borrowed = None
        if self.row.needs:
            made = result_path(self.out, self.row.needs, self.seed)
            rate = read_json(made, "remove it, so that it is made again")["learning_rate"]
            there = self._folder(self.row.needs, rate / experiment.training.optimiser.learning_rate)
            require(
                (there / WEIGHTS).exists(),
                f"it is built on weights that are not in {there}; remove {made}, so that they are trained again",
            )
            borrowed = WorldModel.load(there, self._where)
        setting = set_up(experiment, fabric.device)
        settings = self.row.rival_settings(self.quick)
        settings = replace(settings, rate=factor * settings.rate)
        fabric.launch()
        rival, outcome = train_rival(
            setting, settings, experiment.training, folder,
            fabric=fabric, seed=self.seed, borrowed=borrowed, console=Console(),
        )  # fmt: skip
        rate, count = settings.rate * experiment.training.optimiser.learning_rate, rival.weights
        return Trained(rival.eval().requires_grad_(False), None, count, _took(folder, outcome), rate)


@lru_cache(maxsize=8)
def _kept_set(name: str, split: Split, quick: bool, images: str | None) -> FixedSet:
    """A set that is drawn only once per process: with one worker, for all rows that are scored on it."""
    return replace(named_set(name, split, quick, images), kept=True)


def _took(folder: Path, outcome: Outcome) -> float:
    """Total seconds of training over all attempts; raises `Interrupted` if it is not finished.

    An attempt that was killed, or that an error ended, has left no time: its seconds are missing from the total.
    """
    path = folder / SECONDS
    before = read_json(path, "remove it")["seconds"] if path.exists() else 0.0
    write_json(path, {"seconds": before + outcome.seconds})
    if outcome.signal or not outcome.finished:  # a signal may come in the last update
        raise Interrupted(outcome)
    return before + outcome.seconds


def sweep_path(out: Path, row: str, factor: float) -> Path:
    """Path of the validation score of a factor of the learning rate."""
    return out / f"{row.replace('/', '.')}.rate{factor:g}.json"


def swept(out: Path, row: str, factors: Sequence[float]) -> dict[float, float | None]:
    """PSNR on validation places by factor of the learning rate, for these factors only, whichever else were tried; None
    where a training diverged."""
    again = "remove it, so that it is made again"
    return {factor: read_json(sweep_path(out, row, factor), again)["validation"] for factor in factors}


def best(tried: Mapping[float, float | None]) -> float:
    """The factor of the learning rate with the highest validation PSNR; 1 if none is known."""
    known = {factor: psnr for factor, psnr in tried.items() if psnr is not None}
    return max(known, key=lambda factor: known[factor]) if known else 1.0
