"""What a trained model does: `gtmsm imagine`, `plan`, `export`, `localise`, `play`, a walk of its own; `weights`."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gtmsm.config import Device
from gtmsm.errors import InputError
from gtmsm.flags import parse, plain_console
from gtmsm.shipped import cards


@dataclass(frozen=True)
class WeightsFlags:
    """List the weights that come with gtmsm: their names, what they are, their licences, and their cards."""


def weights(words: list[str]) -> int:
    """Say which weights there are."""
    parse(WeightsFlags, words, "gtmsm weights", WeightsFlags())
    for card in cards():
        plain_console().print(f"{card.name}: {card.what}\n  licence: {card.licence}\n  {card.path}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class ImagineFlags:
    """Memorise a walk through a place, then imagine what further actions would show."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder, or the name of shipped weights."""
    actions: str = ""
    """What to do after memorising: letters, each with an optional number of repetitions. On pictures "r10 d5 l" (up,
    down, left, right, stay); in rooms "f10 l5 r" (forward, backward, turn left, turn right, a and d to strafe, q and e
    to turn while walking, . for no key). Default: as the walker likes."""
    picture: Path | None = None
    """Any picture file, for runs on images; default: a held-out image of the run."""
    images: str | None = None
    """The run's images, where they have moved."""
    places: Literal["room", "rooms", "maze"] | None = None
    """Of runs in rooms: walk in places of another kind than it was trained in; "rooms" is App. C."""
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


def imagine(words: list[str]) -> int:
    """Walk on in the memory of a place, as a video."""
    return _answer("imagine", ImagineFlags, words, "gtmsm.film", "film_imagination")


@dataclass(frozen=True)
class PlanFlags:
    """Memorise a walk through a held-out place, then walk to something seen there, planning again on the way."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
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


def plan(words: list[str]) -> int:
    """Walk to a goal in the memory of a place, as a video."""
    return _answer("plan", PlanFlags, words, "gtmsm.trip", "film_plan")


@dataclass(frozen=True)
class ExportFlags:
    """Walk through a held-out place and on in a dream, or take an explorer's walk, and write it as a file for rerun."""

    kind: Annotated[Literal["rrd"], tyro.conf.Positional]
    """Of file."""
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
    explorer: Path | None = None
    """A file of Explorer.save, whose walk and memory to write instead."""
    steps: int = 128
    """How long to dream after memorising."""
    tau: int | None = None
    """Steps to memorise first; default: as the run's config says."""
    images: str | None = None
    """The run's images, where they have moved, or others: "builtin" will do."""
    seed: int = 0
    """Of the place and the walk."""
    out: Path = Path("walk.rrd")
    """The file to write."""
    device: Device = "auto"
    """Where to compute."""


def export(words: list[str]) -> int:
    """Write a walk as a file of others."""
    return _answer("export", ExportFlags, words, "gtmsm.rrd", "export_walk")


@dataclass(frozen=True)
class RecordFlags:
    """Write a walk through a held-out place of the run's world as a clip file, for gtmsm localise."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
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


def record_walk(words: list[str]) -> int:
    """Write a walk in the world of a run as a clip."""
    return _answer("record", RecordFlags, words, "gtmsm.find", "record_walk")


@dataclass(frozen=True)
class LocaliseFlags:
    """Memorise a clip, then say and draw where in it a picture was seen, or that it never was."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder of a model with landmarks (trained with --model.landmark.form), or obstacles-celeba, which ships."""
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


def localise(words: list[str]) -> int:
    """Say and draw where a picture was seen."""
    return _answer("localise", LocaliseFlags, words, "gtmsm.find", "find_picture")


def _answer(verb: str, kind: type, words: list[str], module: str, name: str) -> int:
    """Parse the words, hand them to a function of the library as its arguments, and say what it returns."""
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
    """A run folder, or shipped weights by name, whose world is walked; default: all worlds that there are shipped
    weights for."""
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


def play(words: list[str]) -> int:
    """Serve the page until it is interrupted."""
    flags = parse(PlayFlags, words, "gtmsm play", PlayFlags())
    try:
        from gtmsm.page.server import Limits, serve
    except ModuleNotFoundError as problem:
        if problem.name not in ("fastapi", "uvicorn", "websockets"):
            raise
        raise InputError(f'the page needs {problem.name}; run: pip install "gtmsm[play]"') from None
    from gtmsm.training.engine import choose_device

    serve(
        flags.run, host=flags.host, port=flags.port, device=choose_device(flags.device),
        limits=Limits(sessions=flags.sessions, history=flags.history),
        tell=lambda line: plain_console().print(line, soft_wrap=True),
    )  # fmt: skip
    return 0
