"""The command line: a verb is a function of a few lines that calls the library."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from gtmsm.config import Device
from gtmsm.errors import InputError, did_you_mean, shortened
from gtmsm.flags import parse, value_of

if TYPE_CHECKING:
    import torch
    from lightning_fabric import Fabric

    from gtmsm.bench import Report
    from gtmsm.evaluation.score import EvaluationConfig
    from gtmsm.run import Run
    from gtmsm.training.train import Outcome

# What a verb needs is imported inside it: the training engine and the plots cost seconds that others need not wait.
VERBS = {
    "demo": "train a small model, score it, and write a report: gtmsm demo [rotate|obstacles] (minutes on two cores)",
    "train": "train an experiment of the paper, or on your recordings: gtmsm train PRESET [flags]",
    "evaluate": "score a run in held-out places: scores.json and report.html",
    "imagine": "walk on in a run's memory of a place, truth beside imagination, as a video",
    "record": "clips of any Gymnasium environment: gtmsm record ENV_ID --out PATH; or a run's walk: record RUN OUT.npz",
    "plan": "walk to a goal in a run's memory of a place, plan after plan, as a video: gtmsm plan RUN [--goal PICTURE]",
    "localise": "where was this picture seen? gtmsm localise RUN CLIP PICTURE memorises the clip and looks it up",
    "play": "a page to walk in a world and in its memory: gtmsm play [RUN], then open the address that it says",
    "compare": "one table of the scores of several runs, and the fraction that converged",
    "data": "look at recordings and check them: gtmsm data info|verify|sample|convert PATH",
    "bench": "how fast it is on this device, and how fast it could be: gtmsm bench [NAMES] [--json FILE]",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """`gtmsm VERB ...`; mistaken input is one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run_verb(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _complain("interrupted", 130)
    except InputError as problem:
        # One line, unless a name that was given has more.
        in_more = any("\n" in word for word in words)
        code = _complain(str(problem) if in_more else re.sub(r"\s*\n\s*", " ", str(problem).strip()), 2)
    except OSError as problem:
        named = problem.filename is not None and problem.strerror
        name = shortened(os.fsdecode(problem.filename), 300) if named else ""
        code = _complain(f"{name}: {problem.strerror}" if named else str(problem), 2)
    sys.exit(code)


def _complain(what: str, code: int) -> int:
    """On stderr, by one process: where several train together the others leave quietly."""
    from gtmsm.training.engine import is_first_process

    if not is_first_process():
        return 0
    print(f"gtmsm: {what}", file=sys.stderr)
    return code


def plain_console(stderr: bool = False) -> Console:
    """Prints words as they are: a path with brackets or colons is no markup and no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _run_verb(words: list[str]) -> int:
    """Find the verb and hand it the rest."""
    if not words or words[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {verb:<10} {about}" for verb, about in VERBS.items())
        print(f"gtmsm: world models that remember places\n\n{listed}\n\n`gtmsm VERB --help` explains a verb's flags")
        return 0
    if words[0] == "--version":
        from gtmsm import __version__

        print(__version__)
        return 0
    if words[0] not in VERBS:
        raise InputError(f'unknown verb "{words[0]}"; {did_you_mean(words[0], VERBS)}')
    verb: Callable[[list[str]], int] = globals().get(f"_{words[0]}") or partial(_answer, words[0])
    return verb(words[1:])


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
        "An agent walks over pictures with obstacles that differ from picture to picture; its steps slip, too.\n"
        "The model learns to recognise places, and so to know where it is in spite of both.",
    ),
}
"""Name: the preset it trains, and what there is to see."""


@dataclass(frozen=True)
class DemoFlags:
    """Train a small model on the CPU, score it, and write a report."""

    name: Annotated[Literal["image-walk", "rotate", "obstacles"], tyro.conf.Positional] = "image-walk"
    """image-walk (a minute and a half on two cores), obstacles (some three) or rotate (some six)."""
    run: Path | None = None
    """Folder to make; default: a fresh one under runs/."""
    seed: int = 0
    """Of weights, walks and noise."""


def _demo(words: list[str]) -> int:
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


def _train(words: list[str]) -> int:
    from gtmsm.experiments import proposed
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
    if preset not in PRESETS:
        raise InputError(f'unknown preset "{preset}"; {did_you_mean(preset, PRESETS)}')

    kind: Any = type(PRESETS[preset][1])

    @dataclass(frozen=True)
    class TrainFlags:
        """Train an experiment; every number of the preset can be overridden."""

        experiment: Annotated[kind, tyro.conf.arg(name="")]
        run: Path | None = None
        """Folder to make; default: a fresh one under runs/."""
        resume: bool = False
        """Continue the run in --run exactly where it stopped; only --updates, --images and --data can change."""
        device: Device = "auto"
        """Where to train; auto takes a GPU where there is one."""
        devices: int = 1
        """How many GPUs (or CPU processes) share a batch."""
        evaluate: bool = True
        """Score the run and write its report when training is done."""

    where = value_of("--run", rest)
    resuming = "--resume" in rest and where is not None and (Path(where) / CONFIG).is_file()
    default = Run.open(Path(str(where))).experiment if resuming else PRESETS[preset][1]
    reasons: tuple[str, ...] = ()
    if preset == "own" and not resuming and (data := value_of("--data", rest)) is not None:
        device = choose_device("cpu" if value_of("--device", rest) == "cpu" else "auto")
        default, reasons = proposed(data, device.type == "cuda")
    flags = parse(TrainFlags, rest, f"gtmsm train {preset}", TrainFlags(default))
    console = plain_console()
    for reason in reasons:
        console.print(reason, soft_wrap=True)
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
    """A run folder."""
    images: str | None = None
    """Score on the test images of this .npz or folder instead of those it was trained with."""
    data: str | None = None
    """Score on the held-out episodes of this store, where the run's recordings have moved, or on others."""
    clips: int | None = None
    """Held-out walks, also the most of each kind that test landmarks; default: as the run's config says."""
    tau: int | None = None
    """Steps to memorise; default: as the run's config says."""
    horizon: int | None = None
    """Steps to predict; default: as the run's config says."""
    seed: int | None = None
    """Of the walks; default: as the run's config says."""
    places: Literal["room", "rooms", "maze"] | None = None
    """Score in places of another kind than it was trained in: "rooms" is App. C (300 steps predicted)."""
    out: Path | None = None
    """Where to write; default: the run folder (of shipped weights runs/NAME-evaluated), or a folder in it named after
    other --places."""
    device: Device = "auto"
    """Where to compute."""


def _evaluate(words: list[str]) -> int:
    flags = parse(EvaluateFlags, words, "gtmsm evaluate")
    from gtmsm.presets import HORIZON_IN
    from gtmsm.run import Run
    from gtmsm.training.engine import choose_device

    run = Run.open(flags.run)
    asked = {name: getattr(flags, name) for name in ("clips", "tau", "horizon", "seed")}
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
    _score(run, settings, choose_device(flags.device), out, console, **places)
    return 0


@dataclass(frozen=True)
class ImagineFlags:
    """Memorise a walk through a place, then imagine what further actions would show."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder."""
    actions: str = ""
    """What to do after memorising: letters, each with an optional number of repetitions. On pictures "r10 d5 l" (up,
    down, left, right, stay); in rooms "f10 l5 r" (forward, backward, turn left, turn right, a and d to strafe, q and e
    to turn while walking, . for no key). Default: as the walker likes."""
    picture: Path | None = None
    """Any picture file, for runs on images; default: a held-out image of the run."""
    images: str | None = None
    """The run's images, where they have moved."""
    steps: int = 128
    """How long to walk on, where no actions are given."""
    tau: int | None = None
    """Steps to memorise first; default: as the run's config says."""
    seed: int = 0
    """Of the walk, and of the choice of the image."""
    sample: bool = False
    """Draw poses and codes from the prior instead of following its mean."""
    out: Path = Path("imagined.mp4")
    """An .mp4 or .gif to write."""
    device: Device = "auto"
    """Where to compute."""


@dataclass(frozen=True)
class RecordFlags:
    """Write a walk through a held-out place of the run's world as a clip file, for gtmsm localise."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.npz")]
    """The .npz to write: frames, actions, and the truth beside them."""
    steps: int | None = None
    """How long to walk; default: as many as the run's config says to memorise."""
    seed: int = 0
    """Of the walk, and of the choice of the place."""
    images: str | None = None
    """The run's images, where they have moved, or others."""
    pictures: Path | None = None
    """Folder for a few single frames to ask about: of this place, when the walk comes by again, and of another."""


@dataclass(frozen=True)
class RecordEnvironmentFlags:
    """Record clips of any Gymnasium environment; the same command again goes on where it stopped."""

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV_ID")]
    """A Gymnasium id, as MiniGrid-FourRooms-v0; module:ID imports a module that registers it."""
    out: Path
    """The store to write, or to go on with."""
    walker: str = "explore"
    """Who chooses actions: explore (as the environment itself knows how to, as gtmsm/Doom-v0 does; otherwise smooth),
    smooth (continuous actions change little by little; others are repeated), repeat (each held for a while), random (a
    new one each step), turn (on the spot), or module:function, which is given the observation and a generator."""
    clips: int = 100
    """How many; clips that fail are dropped and counted."""
    steps: int = 300
    """Of a clip."""
    shortest: int = 0
    """The fewest steps of a clip that is kept where the environment ends it earlier; default: all of them."""
    size: int = 32
    """Side of a frame in pixels, to which pictures are averaged by area; 0: as they are."""
    workers: int = 1
    """Processes that record side by side; the clips do not depend on it."""
    shard: str = "0/1"
    """Which part of the clips, i/n: 0/3, 1/3 and 2/3 for three machines."""
    env_kwargs: str = "{}"
    """Arguments of the environment, as JSON."""
    pixels: str = ""
    """Which entry of the observation is the picture, or "render" for render(); default: found."""
    pose: str = ""
    """module:function that is given the unwrapped environment and returns x, y or x, y, heading in radians; default:
    info["pose"], or known for MiniGrid, MiniWorld and ViZDoom."""
    actions: str = ""
    """Only these of the discrete actions, by name or number: left,right,forward; default: all."""
    seed: int = 0
    """Of the clips: another one gives other clips."""
    limit: float = 60.0
    """Seconds without any progress after which a clip is given up."""


def _record(words: list[str]) -> int:
    """Of a run, where a run folder is named or an .npz; otherwise of an environment."""
    asks = not words or words[0] in ("-h", "--help")
    if asks:
        with suppress(SystemExit):
            parse(RecordFlags, ["--help"], "gtmsm record")
    elif Path(words[0]).is_dir() or any(word.endswith(".npz") for word in words):
        return _answer("record", words)
    flags = parse(RecordEnvironmentFlags, ["--help"] if asks else words, "gtmsm record")
    from gtmsm.episodes.recorder import record_environment
    from gtmsm.evaluation.progress import ProgressLine
    from gtmsm.files import parse_json

    given = dict(vars(flags)) | {"env_kwargs": parse_json(flags.env_kwargs, "--env-kwargs", 'give as {"name": value}')}
    given["actions"] = tuple(word.strip() for word in flags.actions.split(",") if word.strip())
    with ProgressLine(plain_console(stderr=True), "recording") as tell:
        recorded = record_environment(**given, tell=tell)
    there = f"\n{flags.out}: see it with gtmsm data sample {flags.out}" if recorded.stored or recorded.already else ""
    plain_console().print(f"{recorded}{there}", soft_wrap=True)
    return recorded.code


@dataclass(frozen=True)
class LocaliseFlags:
    """Memorise a clip, then say and draw where in it a picture was seen, or that it never was."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder of a model with landmarks: trained with --model.landmark.form."""
    clip: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CLIP")]
    """What to memorise: an .npz that gtmsm record wrote, or with `frames` and `actions` of your own."""
    picture: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE")]
    """A PNG or JPEG of the very size that the model sees, or an .npz: a short clip whose last frame is asked for."""
    out: Path = Path("where.png")
    """Figure to write: the map of the clip, or that of the model where the clip has none, and the places found."""
    closure: int = 0
    """Steps after which loops of the clip are closed: worth it where steps slip. 0: never."""
    device: Device = "auto"
    """Where to compute."""


@dataclass(frozen=True)
class PlanFlags:
    """Memorise a walk through a held-out place, then walk to something seen there, planning again on the way."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder."""
    goal: str = ""
    """A step of the memorised walk, whose view to walk to, or a picture file of the very size that the agent sees;
    default: a view drawn at random."""
    seed: int = 0
    """Of the place, the walk, the goal and the search."""
    every: int = 4
    """Steps after which to plan again."""
    steps: int | None = None
    """The most to take; default: 64 on pictures, 256 in rooms."""
    tau: int | None = None
    """Steps to memorise first; default: as the run's config says."""
    images: str | None = None
    """The run's images, where they have moved, or others: "builtin" will do."""
    out: Path = Path("plan.mp4")
    """An .mp4 or .gif to write: where it is, what it sees, what the plan expected, and the goal."""
    device: Device = "auto"
    """Where to compute."""


ANSWERS: dict[str, tuple[type, str, str]] = {
    "plan": (PlanFlags, "gtmsm.trip", "film_plan"),
    "imagine": (ImagineFlags, "gtmsm.film", "film_imagination"),
    "record": (RecordFlags, "gtmsm.find", "record_walk"),
    "localise": (LocaliseFlags, "gtmsm.find", "find_picture"),
}
"""Verbs whose flags are the arguments of a function that returns what to say: its module and name."""


def _answer(verb: str, words: list[str]) -> int:
    kind, module, name = ANSWERS[verb]
    given = dict(vars(parse(kind, words, f"gtmsm {verb}")))
    from gtmsm.run import Run
    from gtmsm.training.engine import choose_device

    given |= {"run": Run.open(given["run"])} | ({"device": choose_device(given["device"])} if "device" in given else {})
    plain_console().print(getattr(import_module(module), name)(**given), soft_wrap=True)
    return 0


@dataclass(frozen=True)
class PlayFlags:
    """Serve a page on which one walks in a world beside the model's imagination of it."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder, whose world is walked; default: all worlds that there are shipped weights for."""
    weights: Path | None = None
    """Folder of the shipped weights; default: weights/ here, or in the repository that gtmsm was installed from."""
    host: str = "127.0.0.1"
    """Where to listen; others than this computer can walk, too, if it is given as 0.0.0.0 or by a name."""
    port: int = 8765
    """The same; 0: any that is free."""
    sessions: int = 128
    """Visitors at a time."""
    history: int = 512
    """Steps that each can go back; older ones are forgotten."""
    device: Device = "auto"
    """Where to compute."""


def _play(words: list[str]) -> int:
    flags = parse(PlayFlags, words, "gtmsm play", PlayFlags())
    try:
        from gtmsm.page.server import Limits, serve
    except ModuleNotFoundError as problem:
        if problem.name not in ("fastapi", "uvicorn", "websockets"):
            raise
        raise InputError(f'the page needs {problem.name}; run: pip install "gtmsm[play]"') from None
    from gtmsm.training.engine import choose_device

    serve(
        flags.run, weights=flags.weights, host=flags.host, port=flags.port, device=choose_device(flags.device),
        limits=Limits(sessions=flags.sessions, history=flags.history),
        tell=lambda line: plain_console().print(line, soft_wrap=True),
    )  # fmt: skip
    return 0


@dataclass(frozen=True)
class CompareFlags:
    """One table of the scores of several runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders (or folders given as --out to evaluate)."""


def _compare(words: list[str]) -> int:
    flags = parse(CompareFlags, words, "gtmsm compare")
    from gtmsm.evaluation.table import comparison_table
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
    for reason in left_out:
        console.print(f"left out: {reason}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class BenchFlags:
    """Time what matters on this device, beside the floor that its arithmetic sets."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAMES]")] = ()
    """What to time: updates of presets, and rollouts, imagine, nearest, long-memory, raycast; default: updates of
    image-walk, walk and walk-strong, and all others."""
    device: Device = "auto"
    """Where to compute; on a CPU there is less of everything, and the table says how much."""
    json: Path | None = None
    """A file to write the numbers to, and those of the device; default: none."""
    goals: bool = False
    """Also say which goals for one H200 are reached here."""
    profile: bool = False
    """Also say where the time of updates goes, kernel by kernel."""
    large: bool = False
    """Also time a memory of ten million entries."""


def _bench(words: list[str]) -> int:
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


@dataclass(frozen=True)
class InfoFlags:
    """Say what is in a store of episodes: counts, actions used, places, writers, bytes."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""


@dataclass(frozen=True)
class VerifyFlags:
    """Check every checksum of a store; exit code 1 where something is damaged."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""
    repair: bool = False
    """Drop damaged episodes, and only those; list whole ones that a damaged manifest has lost."""


@dataclass(frozen=True)
class SampleFlags:
    """Draw a contact sheet: some steps of some episodes, and where they went, where poses are known."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""
    out: Path = Path("sample.png")
    """The PNG to write."""
    episodes: int = 8
    """How many episodes, chosen at random."""
    steps: int = 10
    """How many steps of each, from its first to its last."""
    seed: int = 0
    """Of the choice."""


@dataclass(frozen=True)
class ConvertFlags:
    """Turn a recording into another format, and check that each action belongs to its frame.

    Read are a store, .npz, stable-worldmodel's .h5, folders of Minari, of LeRobot v3, and of MP4s or pictures with a
    CSV. Written is a store, or what the ending of OUT or --format says.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")]
    """What to read; which format it is in is found out."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """What to write; must not exist."""
    size: int | None = None
    """Scale frames to so many pixels a side, by area; as they are without it."""
    shift: int = 0
    """Pair frame t with what was action t + shift, where the alignment check says that it is off."""
    format: str | None = None
    """store, npz, stable-worldmodel or minari."""
    camera: str | None = None
    """Which of several cameras of a LeRobot folder."""


DATA: dict[str, tuple[type, str]] = {
    "info": (InfoFlags, "what is in it: counts, actions used, places, writers, bytes"),
    "verify": (VerifyFlags, "check every checksum; --repair drops what is damaged"),
    "sample": (SampleFlags, "a contact sheet, and a map of where it went"),
    "convert": (ConvertFlags, "from or to another format: gtmsm data convert IN OUT"),
}
"""What `gtmsm data` can do with recordings."""


def _data(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<10} {about}" for name, (_, about) in DATA.items())
        print(f"gtmsm data WHAT PATH [flags]\n\n{listed}\n\n`gtmsm data WHAT --help` explains its flags")
        return 0
    what, *rest = words
    if what not in DATA:
        raise InputError(f'unknown: gtmsm data "{what}"; {did_you_mean(what, DATA)}')
    flags: Any = parse(DATA[what][0], rest, f"gtmsm data {what}")
    console, code = plain_console(), 0
    if what == "convert":
        from gtmsm.episodes.convert import convert

        for line in convert(flags.source, flags.out, flags.size, flags.shift, flags.format, flags.camera).lines:
            console.print(line, soft_wrap=True)
        return code
    from gtmsm.episodes.about import describe, write_sheet
    from gtmsm.episodes.store import Store
    from gtmsm.episodes.store_verify import verify

    if what == "info":
        said = [describe(Store.open(flags.path))]
    elif what == "sample":
        said = [write_sheet(Store.open(flags.path), flags.out, flags.episodes, flags.steps, flags.seed)]
    else:
        said = verify(flags.path, flags.repair)
        code = int(bool(said))
        left = f"whole episodes: {len(Store.open(flags.path)):,}" if flags.repair or not said else ""
        said += [left or f"damages: {len(said)}; mend them with: gtmsm data verify {flags.path} --repair"]
    for line in said:
        console.print(line, soft_wrap=True)
    return code


def _finish(run: "Run", outcome: "Outcome", fabric: "Fabric", console: Console, evaluate: bool) -> int:
    """Say how training ended; score it if it is done."""
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
    """Score a run with a progress line on stderr; then the table, the headline, and where to look."""
    from gtmsm.evaluation.progress import ProgressLine
    from gtmsm.evaluation.table import headline, scores_table
    from gtmsm.run import REPORT

    with ProgressLine(plain_console(stderr=True)) as tell:
        scores = run.evaluate(settings, device, out=out, tell=tell, **places)
    console.print(scores_table(scores))
    console.print(headline(scores), soft_wrap=True)
    console.print(f"report: {out / REPORT}", soft_wrap=True)


if __name__ == "__main__":
    from gtmsm_command import main as command

    command()
