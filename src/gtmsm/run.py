"""Run folders: config, weights, checkpoint, metrics, scores, report."""

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import MISSING, dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import yaml
from rich.console import Console

from gtmsm.config import Device, as_plain, changed, flat, read_config, require
from gtmsm.errors import InputError, did_you_mean, shown
from gtmsm.evaluation.columns import NUMBERS
from gtmsm.evaluation.progress import Tell
from gtmsm.evaluation.score import EvaluationConfig, ScoredFrames, evaluate
from gtmsm.experiments import (
    ImageWalkExperiment,
    OwnExperiment,
    Places,
    RoomsExperiment,
    Setting,
    as_chosen,
    in_other_places,
    proposed,
    set_up,
)
from gtmsm.files import (
    OURS,
    locked,
    read_json,
    read_yaml,
    require_folder,
    require_writable,
    write_atomically,
    write_json,
)
from gtmsm.interruption import is_first_process
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.weights import WEIGHTS
from gtmsm.presets import PRESETS
from gtmsm.shipped import find_run
from gtmsm.training.checkpoint import CHECKPOINT, budget_of, updates_behind
from gtmsm.training.curriculum import plan_stages
from gtmsm.training.engine import build_fabric
from gtmsm.training.log import METRICS, read_verdict
from gtmsm.training.loss import Loss
from gtmsm.training.train import Outcome, train
from gtmsm.worlds.floorplan import Plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric
from gtmsm.worlds.images import BUILTIN

AnyExperiment: TypeAlias = ImageWalkExperiment | RoomsExperiment | OwnExperiment
CONFIG = "config.yaml"
SCORES = "scores.json"
REPORT = "report.html"


@dataclass(frozen=True)
class Run:
    """A training on disk."""

    folder: Path
    preset: str
    experiment: AnyExperiment
    places: Places
    """The places that it was trained on."""

    @classmethod
    def create(cls, folder: Path, preset: str, setting: Setting) -> "Run":
        """Create a run folder with its config."""
        make_folder(folder)
        run = cls(folder, preset, setting.experiment, setting.places)
        try:
            run.write_config()
        except InputError:
            remove_empty(folder)
            raise
        return run

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open a run folder, or shipped weights by name."""
        folder = find_run(folder)
        path = folder / CONFIG
        if not path.is_file():
            raise InputError(f"{folder} is not a run folder: it has no {CONFIG}; make one with `gtmsm train`")
        plain = read_yaml(path)
        if not {"preset", "places", "experiment"} <= plain.keys():
            raise InputError(f"{path} is not a run's config: it needs preset, places and experiment")
        needed = {field.name for field in fields(Places) if field.default is MISSING}
        if not isinstance(plain["places"], dict) or not needed <= plain["places"].keys():
            raise InputError(f"{path}: places needs name, sha256, train and test")
        if (preset := plain["preset"]) not in list(PRESETS):
            raise InputError(f"{path}: unknown preset {shown(preset)}; {did_you_mean(shown(preset), PRESETS)}")
        kind = type(PRESETS[preset][1])
        with suppress(TypeError, KeyError):  # a setting of version 0.1, which never affected what was learned
            del plain["experiment"]["training"]["optimiser"]["compiled"]
        experiment = read_config(kind, plain["experiment"], str(path))
        return cls(folder, preset, experiment, read_config(Places, plain["places"], f"{path}: places"))

    def write_config(self) -> None:
        """Write config.yaml: all that is needed to repeat the training."""
        plain = {"preset": self.preset, "places": vars(self.places), "experiment": as_plain(self.experiment)}
        write_atomically(self.folder / CONFIG, yaml.safe_dump(plain, sort_keys=False))

    def train(
        self, model: WorldModel, setting: Setting, fabric: "Fabric", resume: bool, console: Console | None
    ) -> Outcome:
        """Train `model` in this folder; see `training.train`."""
        settings, seed, watch = self.experiment.training, self.experiment.seed, setting.watch()
        source = setting.encoded(model) if settings.objective.recognition_only else setting.source
        return train(
            Loss(model, settings.objective), source, settings, self.folder,
            fabric=fabric, seed=seed, watch=watch, resume=resume, console=console,
        )  # fmt: skip

    def evaluate(
        self,
        settings: EvaluationConfig,
        device: torch.device,
        images: str | None = None,
        out: Path | None = None,
        plan: Plan | None = None,
        tell: Tell | None = None,
        data: str | None = None,
        frames: Path | None = None,
    ) -> dict[str, Any]:
        """Score the weights on held-out places, write scores.json and report.html, and return the scores.

        `images`, `plan` or `data` give places of another origin than in training; `tell` is called with the progress.
        The frames that were scored are written to `frames`, a .npz. Scores by another protocol that are in the folder
        already, such as those of more walks, are kept as scores-1.json, scores-2.json, ...
        """
        from gtmsm.evaluation.report import write_report  # slow to import (plots and video), not needed for training

        folder = out or self.scores_folder
        require_folder(folder)
        if frames is not None:
            require(frames.suffix == ".npz", f"cannot write frames as {frames}; end its name with .npz")
            require_writable(frames)
        scored_frames = None if frames is None else ScoredFrames()
        asked = replace(self.experiment, evaluation=replace(self.experiment.evaluation, slip=settings.slip))
        setting = replace(self, experiment=asked).set_up(device, images, plan, data=data)
        model = self.load_model(device)
        _require_fit(model, setting, self.folder)
        # Poses are compared, and scores labelled, by whether training used displacements.
        settings = replace(settings, metric_poses=self.experiment.training.objective.displacement > 0)
        test_world, walker = setting.test_world, setting.walker
        result = evaluate(model, test_world, walker, settings, device, tell, setting.fitted_in, scored_frames)
        scored, trained, noun = setting.places, self.places, setting.noun
        result.scores["protocol"] |= {
            "scored_on": f"{scored.test} test {noun} of {scored.name}, {setting.hashed} {scored.sha256}",
            "trained_on": f"{trained.train} {noun} of {trained.name}, {setting.hashed} {trained.sha256}",
        }
        folder.mkdir(parents=True, exist_ok=True)
        _set_aside(folder, result.scores["protocol"])
        write_json(folder / SCORES, result.scores)
        if frames is not None and scored_frames is not None:
            scored_frames.write(frames)
        about = {
            "run": self.folder.name,
            "trained on": f"{trained.train} {noun} of {trained.name}",
            "scored on": f"{scored.test} held-out {noun} of {scored.name}",
            "updates": str(self.experiment.training.updates),
            "seed": str(self.experiment.seed),
        }
        title, verdict = f"{self.preset}: {scored.name}", read_verdict(self.folder)
        write_report(folder / REPORT, result.scores, result.gallery, title, about, verdict)
        return result.scores

    @property
    def scores_folder(self) -> Path:
        """Default folder of scores and report: the run folder, or for shipped weights runs/NAME-evaluated."""
        trained_here = (self.folder / METRICS).exists()
        return self.folder if trained_here else Path("runs") / f"{self.folder.resolve().name}-evaluated"

    def load_model(self, device: torch.device) -> WorldModel:
        """Load the weights of this run; refuses those of another model than its config describes."""
        model = WorldModel.load(self.folder, device)
        frame = model.frame_shape
        if not isinstance(self.experiment, OwnExperiment):  # frames of recordings are checked when these are opened
            frame = (frame[0], self.experiment.world.pixels, self.experiment.world.pixels)
        theirs = {**flat(as_plain(model.settings)), "frame": model.frame_shape}
        mine = {**flat(as_plain(self.experiment.model)), "frame": frame}
        for name, value in mine.items():
            differ = f"{name} is {theirs.get(name)} there and {value} in {CONFIG}"
            require(theirs.get(name) == value, f"{self.folder / WEIGHTS} holds weights of another model: {differ}")
        return model

    def set_up(
        self,
        device: torch.device,
        images: str | None = None,
        plan: Plan | None = None,
        picture: Path | None = None,
        data: str | None = None,
    ) -> Setting:
        """Set up the worlds of this run, by default of the kind it was trained on; see `experiments.set_up`."""
        experiment = in_other_places(self.experiment, plan) if plan else self.experiment
        own = isinstance(experiment, OwnExperiment)
        source = vars(experiment).get("data" if own else "images", BUILTIN)
        try:
            return set_up(experiment, device, images, picture, data)
        except InputError as problem:
            if (images or picture or data) is not None or source == BUILTIN or Path(source).exists():
                raise
            if own:
                raise InputError(f'this run learned from "{source}", which is not there; give it with --data') from None
            raise InputError(
                f"this run was trained on {self.places.name} (sha256 {self.places.sha256[:12]}...), which is "
                f'not at "{source}"; give it, or other images, with --images: "builtin" will do'
            ) from problem


def _require_fit(model: WorldModel, setting: Setting, folder: Path) -> None:
    """Refuse worlds whose frames or actions differ from those that a model was trained on."""
    world = setting.test_world
    for what, found, known in (
        ("frames of (channels, height, width)", world.frame_shape, model.frame_shape),
        ("action vectors of size", len(world.action_names), model.action_size),
    ):
        require(found == known, f"{setting.places.name} has {what} {found}, and {folder} was trained on {known}")


def begin(
    preset: str, experiment: AnyExperiment, folder: Path | None, fabric: "Fabric", console: Console
) -> tuple[Run, Outcome]:
    """Create a run and train it; by default in a new folder under runs/."""
    # Everything that may be refused comes first, before a folder is made and other processes start.
    setting = set_up(experiment, fabric.device)
    model = setting.build_model()
    made = None
    with ExitStack() as at_the_end:
        if is_first_process():
            folder = folder or fresh_folder(preset)
            make_folder(folder)
            at_the_end.callback(remove_empty, folder)
            at_the_end.enter_context(locked(folder))
            made = Run.create(folder, preset, setting)
            console.print(_notes_on_schedule(experiment), end="", soft_wrap=True)
            places, noun = setting.places, setting.noun
            kept = f"{places.validation} for validation, {places.test} for the test"
            on = f"{places.train} {noun} ({places.name}; {kept})"
            console.print(f"training {preset} on {on} into {made.folder}", soft_wrap=True)
        fabric.launch()
        run = fabric.broadcast(made)
        assert run is not None
        return run, run.train(model, setting, fabric, resume=False, console=console)


def train_own(
    data: str, run: Path | None, device: Device, evaluate: bool, quiet: bool, changes: Mapping[str, Any]
) -> Run:
    """Train on recorded episodes with the proposed settings and the given changes; see `gtmsm.train`."""
    console, fabric = Console(quiet=quiet, markup=False, emoji=False, highlight=False), build_fabric(device, 1, 1)
    proposal, reasons = proposed(data, fabric.device.type == "cuda")
    experiment = changed_by_flags(proposal, changes)
    console.print(*as_chosen(reasons, proposal, experiment), sep="\n", soft_wrap=True)
    made, outcome = begin("own", experiment, run, fabric, console)
    if evaluate and outcome.finished:
        made.evaluate(made.experiment.evaluation, fabric.device)
    return made


def changed_by_flags(experiment: OwnExperiment, changes: Mapping[str, Any]) -> OwnExperiment:
    """An experiment with changed settings, named like flags (_ for -, __ for a dot), in short or in full.

    >>> changed_by_flags(OwnExperiment(), {"updates": 7}).training.updates
    7
    """
    full: dict[str, str] = {}
    for path in flat(as_plain(experiment)):
        training = path.removeprefix("training.")
        short = re.sub(r"^(optimiser|curriculum|objective)\.", "", training) if training != path else path
        full |= {path: path, short: path}
    named = {}
    for name, value in changes.items():
        path = name.replace("__", ".")
        if path not in full:  # not `require`, which would always compute the suggestion
            raise InputError(f'unknown setting "{name}"; {did_you_mean(path, full)}')
        named[full[path]] = value
    return changed(experiment, named)


def _notes_on_schedule(experiment: AnyExperiment) -> str:
    """Notes for the user if training does not end where its learning rate or its curriculum does; else empty."""
    made, falls = experiment.training.updates, experiment.training.optimiser.anneal_updates
    note = f"note: the learning rate falls over {falls:,} updates (--anneal-updates), and {made:,} are made\n"
    return ("" if falls == made else note) + _note_on_stages(experiment)


def _note_on_stages(experiment: AnyExperiment) -> str:
    """A note if training ends before its curriculum does; else empty."""
    settings = experiment.training
    last = plan_stages(settings.curriculum, experiment.model.recall, settings.updates)[-1]
    if last.tau == settings.curriculum.tau:
        return ""
    missed = "the motion is never searched for" if last.name == "warm up" else "the full tau is never trained on"
    return f'note: {settings.updates} updates end in stage "{last.name}", {missed}; shorten --warm-up and --grow\n'


def resume(run: Run, experiment: AnyExperiment, fabric: "Fabric", console: Console) -> tuple[Run, Outcome]:
    """Resume a run; only its number of updates and the location of its images or recordings may change."""
    training = experiment.training
    same = replace(run.experiment, training=replace(run.experiment.training, updates=training.updates))
    may_change = {"images": None, "data": None}
    require(
        as_plain(same) | may_change == as_plain(experiment) | may_change,
        "a resumed run keeps its settings: only --updates may be given anew, and --images or --data where it has any",
    )
    with locked(run.folder) if is_first_process() else nullcontext():
        begun = (run.folder / CHECKPOINT).exists()
        require(
            begun or not (run.folder / WEIGHTS).exists(),
            f"nothing to resume: {run.folder} has weights but no {CHECKPOINT}; a new run can --begin-with them",
        )
        done = updates_behind(run.folder / CHECKPOINT) if begun else 0
        require(training.updates >= done, f"{run.folder} has {done} updates behind it; give {done} or more --updates")
        run = replace(run, experiment=experiment)
        setting = run.set_up(fabric.device)
        require(
            setting.places.sha256 == run.places.sha256,
            f"{setting.places.name} is not what {run.folder} was trained on: {run.places.name} with other contents; to "
            f"learn on from its weights, begin a new run with --begin-with {run.folder}",
        )
        model = setting.build_model(budget_of(run.folder / CHECKPOINT) if begun else None)
        fabric.launch()
        if fabric.is_global_zero:
            run.write_config()
            if not begun:
                console.print(f"{run.folder} has no {CHECKPOINT} yet: training begins at update 0", soft_wrap=True)
        return run, run.train(model, setting, fabric, resume=begun, console=console)


def make_folder(folder: Path) -> None:
    """Make a folder to train in; refuses one with other files than a killed process of ours may have left."""
    if (folder / CONFIG).exists():
        raise InputError(f"{folder} exists; choose another --run, or continue it with --resume")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(not OURS.fullmatch(name) for name in os.listdir(folder))
    except OSError as problem:
        raise InputError(f"cannot make the run folder {folder}: {problem.strerror}") from None
    require(not used, f"{folder} exists and is no run folder, since it has no {CONFIG}; choose another --run")


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def fresh_folder(preset: str) -> Path:
    """Make the folder runs/PRESET-N with the first free number N."""
    for n in count(1):
        with suppress(FileExistsError):
            (path := Path("runs") / f"{preset}-{n}").mkdir(parents=True)
            return path
    raise AssertionError


def kept_scores(folder: Path) -> set[Path]:
    """Earlier scores in a folder, by other protocols than those of scores.json."""
    return set(folder.glob("scores-*.json"))


def _set_aside(folder: Path, protocol: Mapping[str, Any]) -> None:
    """Give the scores in a folder another name, if they are by another protocol."""
    with suppress(InputError):  # there are none, or none that can be read
        if read_scores(folder).get("protocol") != protocol:
            free = (path for n in count(1) if not (path := folder / f"scores-{n}.json").exists())
            (folder / SCORES).rename(next(free))


def read_scores(folder: Path) -> dict[str, Any]:
    """Read scores.json of a run folder; refuses files with other contents."""
    path = folder / SCORES
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give a run folder, or a folder that `gtmsm evaluate` wrote into")
    if not path.is_file():
        raise InputError(f"{folder} has no {SCORES}; make it with `gtmsm evaluate {folder}`")
    again = f"make it anew with `gtmsm evaluate {folder}`"
    scores = read_json(path, again)
    controls = scores.get("controls")
    if not isinstance(controls, dict) or "vae_ceiling" not in controls:
        raise InputError(f"{path} holds no scores of gtmsm; {again}")
    for of, row in {"the model": scores, "sampled": scores.get("sampled"), **controls}.items():
        require(isinstance(row, dict | None), f"{path}: scores of {of} are {shown(row)}; {again}")
        for name, value in (row or {}).items():
            fits = value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
            require(fits or name not in NUMBERS, f"{path}: {name} of {of} is {shown(value)}; {again}")
    return scores
