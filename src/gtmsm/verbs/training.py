"""`gtmsm demo`, `train`, `evaluate`, `compare` and `bench`: train, score and time models."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from gtmsm.config import Device
from gtmsm.errors import InputError, did_you_mean
from gtmsm.flags import parse, plain_console, value_of

if TYPE_CHECKING:
    import torch
    from lightning_fabric import Fabric

    from gtmsm.bench import Report
    from gtmsm.evaluation.score import EvaluationConfig
    from gtmsm.run import Run
    from gtmsm.training.train import Outcome

DEMOS = {
    "image-walk": (
        "image-walk-small",
        "An agent walks over pictures it has never seen, 256 steps each, and sees 8x8 pixels at a time.\n"
        "The model learns from pixels and actions alone how it moves and where the walls are, then imagines the "
        "next 256 steps.",
    ),
    "rotate": (
        "rotate-small",
        "An agent turns on the spot in a room it has never seen, for most of a circle.\n"
        "The model learns from pixels and actions alone how fast it turns, then imagines the rest of the circle, "
        "which it has not seen, and another one.",
    ),
    "obstacles": (
        "obstacles-small",
        "An agent walks over pictures with obstacles that differ from picture to picture.\n"
        "The model learns from pixels and actions alone how it moves and to recognise places, and so to know where it "
        "is in spite of obstacles, and of steps that slip.",
    ),
}
"""For each name: the preset that is trained, and what the demo shows."""


@dataclass(frozen=True)
class DemoFlags:
    """Train a small model on the CPU, score it, and write a report."""

    name: Annotated[Literal["image-walk", "rotate", "obstacles"], tyro.conf.Positional] = "image-walk"
    """image-walk (a minute and a half on two cores), obstacles (some three) or rotate (some six)."""
    run: Path | None = None
    """Folder to make; default: a new one under runs/."""
    seed: int = 0
    """Seed of weights, walks and noise."""


def demo(words: list[str]) -> int:
    """Train a small model on the CPU, score it and write its report."""
    flags = parse(DemoFlags, words, "gtmsm demo", DemoFlags())
    preset, about = DEMOS[flags.name]
    console = plain_console()
    console.print(about, soft_wrap=True)
    from gtmsm.presets import PRESETS
    from gtmsm.run import begin
    from gtmsm.training.engine import build_fabric

    experiment = replace(PRESETS[preset][1], seed=flags.seed)
    fabric = build_fabric("cpu", 1, experiment.training.optimiser.batch)
    return _finish(*begin(preset, experiment, flags.run, fabric, console), fabric, console, evaluate=True)


def train(words: list[str]) -> int:
    """Train a preset, or continue a run; then score it."""
    from gtmsm.experiments import as_chosen, proposed
    from gtmsm.presets import PRESETS
    from gtmsm.run import CONFIG, Run, begin, resume
    from gtmsm.training.engine import build_fabric, choose_device

    if not words or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<18} {about}" for name, (about, _) in PRESETS.items())
        print(f"gtmsm train PRESET [flags]\n\n{listed}\n\n`gtmsm train PRESET --help` lists its flags")
        return 0
    preset, *rest = words
    if preset == "rooms":
        raise InputError("rooms trains nothing; it tests a walk in several rooms: gtmsm evaluate RUN --places rooms")
    if preset.startswith("-"):
        resumed = "to resume a run, give the one that it was begun with: gtmsm train PRESET --run RUN --resume"
        raise InputError(f'the first word must be a preset, not "{preset}"; {resumed}')
    if preset not in PRESETS:
        raise InputError(f'unknown preset "{preset}"; {did_you_mean(preset, PRESETS)}')

    kind: Any = type(PRESETS[preset][1])

    @dataclass(frozen=True)
    class TrainFlags:
        """Train an experiment; every number of the preset can be overridden."""

        experiment: Annotated[kind, tyro.conf.arg(name="")]
        run: Path | None = None
        """Folder to make; default: a new one under runs/."""
        resume: bool = False
        """Continue the run in --run exactly where it stopped; only --updates, --images and --data can change."""
        device: Device = "auto"
        """Device to train on; auto takes a GPU if there is one."""
        devices: int = 1
        """Number of GPUs (or CPU processes) that share a batch."""
        evaluate: bool = True
        """Score the run and write its report after training."""

    where = value_of("--run", rest)
    resuming = "--resume" in rest and where is not None and (Path(where) / CONFIG).is_file()
    default = Run.open(Path(str(where))).experiment if resuming else PRESETS[preset][1]
    reasons: tuple[str, ...] = ()
    if preset == "own" and not resuming and (data := value_of("--data", rest)) is not None:
        device = choose_device("cpu" if value_of("--device", rest) == "cpu" else "auto")
        default, reasons = proposed(data, device.type == "cuda")
    flags = parse(TrainFlags, rest, f"gtmsm train {preset}", TrainFlags(default))
    console = plain_console()
    if reasons:
        console.print("\n".join(as_chosen(reasons, default, flags.experiment)), soft_wrap=True)
    fabric = build_fabric(flags.device, flags.devices, flags.experiment.training.optimiser.batch)
    if flags.resume:
        if flags.run is None:
            raise InputError("--resume needs --run DIR, the run to continue")
        run, again = Run.open(flags.run), f"--run {shlex.quote(str(flags.run))} --resume"
        if run.preset != preset:
            raise InputError(f"{flags.run} is a run of {run.preset}: gtmsm train {run.preset} {again}")
        done = resume(run, flags.experiment, fabric, console)
    else:
        done = begin(preset, flags.experiment, flags.run, fabric, console)
    return _finish(*done, fabric, console, flags.evaluate)


@dataclass(frozen=True)
class EvaluateFlags:
    """Score a run in held-out places; writes scores.json and report.html."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder, or the name of shipped weights."""
    images: str | None = None
    """Score on the test images of this .npz or folder; default: those of the images it was trained with."""
    data: str | None = None
    """Score on the held-out episodes of this store: the run's recordings, if they have moved, or others."""
    clips: int | None = None
    """Number of held-out walks, also the most of each kind that test landmarks; default: from the run's config."""
    tau: int | None = None
    """Number of steps to memorise; default: from the run's config."""
    horizon: int | None = None
    """Number of steps to predict; default: from the run's config."""
    seed: int | None = None
    """Seed of the walks; default: from the run's config."""
    slip: float | None = None
    """Probability that a step slips; default: from the run's config."""
    places: Literal["room", "rooms", "maze"] | None = None
    """Score in places of another kind than it was trained in: "rooms" is App. C (300 steps predicted)."""
    out: Path | None = None
    """Folder to write to; default: the run folder (for shipped weights runs/NAME-evaluated), or with --places a folder
    in it of that name."""
    frames: Path | None = None
    """File to write the imagined and true frames to, as float32 in a .npz, so that others can score them; default:
    none."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


def evaluate(words: list[str]) -> int:
    """Score a run in held-out places."""
    flags = parse(EvaluateFlags, words, "gtmsm evaluate")
    from gtmsm.presets import HORIZON_IN
    from gtmsm.run import Run
    from gtmsm.training.engine import choose_device

    run = Run.open(flags.run)
    asked = {name: getattr(flags, name) for name in ("clips", "tau", "horizon", "seed", "slip")}
    given = {name: value for name, value in asked.items() if value is not None}
    if flags.places in HORIZON_IN:
        given = {"horizon": HORIZON_IN[flags.places]} | given
    settings = replace(run.experiment.evaluation, **given)
    folder = run.scores_folder
    out = flags.out or (folder / flags.places if flags.places else folder)
    console = plain_console()
    if flags.out is None and folder != run.folder:
        console.print(f"{run.folder} was not trained here and stays as it is; scores go to {out}", soft_wrap=True)
    places = {"images": flags.images, "plan": flags.places, "data": flags.data}
    _score(run, settings, choose_device(flags.device), out, console, frames=flags.frames, **places)
    if flags.frames is not None:
        console.print(f"frames: {flags.frames}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class CompareFlags:
    """Show the scores of several runs in one table."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders (or folders given as --out to evaluate)."""


def compare(words: list[str]) -> int:
    """Show the scores of several runs in one table."""
    flags = parse(CompareFlags, words, "gtmsm compare")
    from gtmsm.evaluation.table import comparison_table, unlike_walks
    from gtmsm.run import read_scores

    if not flags.runs:
        raise InputError("compare needs at least one run folder")
    scores, left_out = {}, []
    for folder in flags.runs:
        try:
            scores[str(folder)] = read_scores(folder)
        except InputError as problem:
            left_out.append(str(problem))
    if not scores:
        raise InputError(left_out[0])
    console = plain_console()
    console.print(comparison_table(scores))
    if told := unlike_walks(scores):
        console.print(told, soft_wrap=True)
    for reason in left_out:
        console.print(f"left out: {reason}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class BenchFlags:
    """Time updates and inference on this device, beside the lower bound that its arithmetic sets."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAMES]")] = ()
    """What to time: names of presets, for their updates, and rollouts, imagine, nearest, long-memory, raycast; default:
    updates of image-walk, walk and walk-strong, and all of the others."""
    device: Device = "auto"
    """Device to compute on. On a CPU the sizes are smaller; the table states them."""
    json: Path | None = None
    """File to write the measurements and the properties of the device to; default: none."""
    goals: bool = False
    """Also show which goals for one H200 are reached here."""
    profile: bool = False
    """Also show the time of each kernel in an update."""
    large: bool = False
    """Also time a memory of ten million entries."""


def bench(words: list[str]) -> int:
    """Time updates and inference on this device."""
    flags = parse(BenchFlags, words, "gtmsm bench", BenchFlags())
    from gtmsm.bench import bench, profile_table, sizes_for, speeds_table
    from gtmsm.files import require_writable
    from gtmsm.training.engine import choose_device

    device = choose_device(flags.device)
    if flags.json is not None:
        require_writable(flags.json)
    console = plain_console()

    def keep(so_far: "Report") -> None:
        """Write what was measured so far, in case of an interruption."""
        if flags.json is not None:
            so_far.write(flags.json)
        if not console.is_terminal:
            row = so_far.rows[-1]
            console.print(f"{row.work}, {row.size}: {1e3 * row.seconds:.3f} ms", soft_wrap=True)

    with console.status("") as status:
        sizes = sizes_for(device, flags.large)
        report = bench(flags.names, device, sizes, flags.profile, lambda doing: status.update(f"timing {doing}"), keep)
    console.print(speeds_table(report, flags.goals))
    for name, shares in report.profiles.items():
        console.print("", profile_table(name, shares), sep="\n")
    return 0


def _finish(run: "Run", outcome: "Outcome", fabric: "Fabric", console: Console, evaluate: bool) -> int:
    """Print how training ended; score the run if training is done."""
    if not fabric.is_global_zero:
        return 0
    console.print(f"{outcome.updates} updates behind it, {outcome.seconds:.0f} s in this go")
    if outcome.signal:
        folder, more = shlex.quote(str(run.folder)), f" --devices {fabric.world_size}" if fabric.world_size > 1 else ""
        again = f"continue with: gtmsm train {run.preset} --run {folder} --resume{more}"
        done = f"training is done; score it with: gtmsm evaluate {folder}"
        console.print(f"interrupted; {done if outcome.finished else again}", soft_wrap=True)
        return 128 + outcome.signal
    if evaluate:
        _score(run, run.experiment.evaluation, fabric.device, run.folder, console)
    return 0


def _score(
    run: "Run", settings: "EvaluationConfig", device: "torch.device", out: Path, console: Console, **places: Any
) -> None:
    """Score a run with a progress line on stderr; then print the table, the headline and the path of the report."""
    from gtmsm.evaluation.progress import ProgressLine
    from gtmsm.evaluation.table import headline, scores_table
    from gtmsm.run import REPORT, kept_scores

    earlier = kept_scores(out)
    with ProgressLine(plain_console(stderr=True)) as tell:
        scores = run.evaluate(settings, device, out=out, tell=tell, **places)
    console.print(scores_table(scores))
    console.print(headline(scores), soft_wrap=True)
    console.print(f"report: {out / REPORT}", soft_wrap=True)
    for kept in kept_scores(out) - earlier:
        console.print(f"the scores that were there, of other walks or settings, are now in {kept}", soft_wrap=True)
