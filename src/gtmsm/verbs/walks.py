"""`gtmsm imagine`, `plan`, `export`, `record` of a run, `localise`, `play` and `weights`: use a trained model."""

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
    """List the weights that come with gtmsm."""
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
    """Actions after memorising: letters, each with an optional number of repetitions. On pictures "r10 d5 l" (up,
    down, left, right, stay); in rooms "f10 l5 r" (forward, backward, turn left, turn right, a and d to strafe, q and e
    to turn while walking, . for no key). Default: chosen by the walker."""
    picture: Path | None = None
    """Any picture file, for runs on images; default: a held-out image of the run."""
    images: str | None = None
    """The run's images, if they have moved; default: as in the run's config."""
    places: Literal["room", "rooms", "maze"] | None = None
    """For runs in rooms: walk in another kind of place than in training; "rooms" is App. C."""
    steps: int = 128
    """Number of steps to imagine, if no actions are given."""
    tau: int | None = None
    """Number of steps to memorise first; default: from the run's config."""
    seed: int = 0
    """Seed of the walk and of the choice of the image."""
    sample: bool = False
    """Draw poses and codes from the prior instead of following its mean."""
    out: Path = Path("imagined.mp4")
    """The .mp4 or .gif to write."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


def imagine(words: list[str]) -> int:
    """Write a video of an imagined walk beside the true one."""
    return _answer("imagine", ImagineFlags, words, "gtmsm.film", "film_imagination")


@dataclass(frozen=True)
class PlanFlags:
    """Memorise a walk through a held-out place, then walk to a goal view seen there, with repeated planning."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
    goal: str = ""
    """Number of a step of the memorised walk, whose view is the goal, or a picture file of exactly the size of a frame;
    default: a view drawn at random."""
    seed: int = 0
    """Seed of the place, the walk, the goal and the search."""
    every: int = 4
    """Number of steps after which to plan again."""
    steps: int | None = None
    """Maximum number of steps; default: 64 on pictures, 256 in rooms."""
    tau: int | None = None
    """Number of steps to memorise first; default: from the run's config."""
    images: str | None = None
    """The run's images, if they have moved, or other images, as "builtin"; default: as in the run's config."""
    out: Path = Path("plan.mp4")
    """The .mp4 or .gif to write: the agent on the map, its view, the view that the plan predicted, and the goal."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


def plan(words: list[str]) -> int:
    """Write a video of a planned walk to a goal."""
    return _answer("plan", PlanFlags, words, "gtmsm.trip", "film_plan")


@dataclass(frozen=True)
class ExportFlags:
    """Write a walk as a file for rerun: through a held-out place and on in a dream, or the walk of a saved explorer."""

    kind: Annotated[Literal["rrd"], tyro.conf.Positional]
    """Kind of file."""
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
    explorer: Path | None = None
    """A file of Explorer.save, whose walk and memory are written instead."""
    steps: int = 128
    """Number of steps to imagine after memorising."""
    tau: int | None = None
    """Number of steps to memorise first; default: from the run's config."""
    images: str | None = None
    """The run's images, if they have moved, or other images, as "builtin"; default: as in the run's config."""
    seed: int = 0
    """Seed of the place and the walk."""
    out: Path = Path("walk.rrd")
    """The file to write."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


def export(words: list[str]) -> int:
    """Write a walk as a file for another program."""
    return _answer("export", ExportFlags, words, "gtmsm.rrd", "export_walk")


@dataclass(frozen=True)
class RecordFlags:
    """Write a walk through a held-out place of the run's world as a clip file, for gtmsm localise."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or the name of shipped weights."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.npz")]
    """The .npz to write, with frames, actions and true poses."""
    steps: int | None = None
    """Number of steps; default: as many as the run's config says to memorise."""
    seed: int = 0
    """Seed of the walk and of the choice of the place."""
    images: str | None = None
    """The run's images, if they have moved, or other images; default: as in the run's config."""
    pictures: Path | None = None
    """Folder for a few frames to localise: from later visits to places of the walk, and from another place."""


def record_walk(words: list[str]) -> int:
    """Write a walk in the world of a run as a clip file."""
    return _answer("record", RecordFlags, words, "gtmsm.find", "record_walk")


@dataclass(frozen=True)
class LocaliseFlags:
    """Memorise a clip, then print and draw where in it a picture was seen, or that it never was."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder of a model with landmarks (trained with --model.landmark.form), or obstacles-celeba, which ships."""
    clip: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CLIP")]
    """Clip to memorise: an .npz that gtmsm record wrote, or your own with `frames` and `actions`."""
    picture: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE")]
    """A PNG or JPEG of exactly the size of the model's frames, or an .npz: a short clip, to localise its last frame."""
    out: Path = Path("where.png")
    """Figure to write: the places found, on the map of the clip, or on the model's map if the clip has none."""
    closure: int = 0
    """Number of steps between loop closures in the clip, which help if steps slip; 0: never."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


def localise(words: list[str]) -> int:
    """Print and draw where a picture was seen."""
    return _answer("localise", LocaliseFlags, words, "gtmsm.find", "find_picture")


def _answer(verb: str, kind: type, words: list[str], module: str, name: str) -> int:
    """Parse the words, pass them as arguments to a function of the library, and print what it returns."""
    given = dict(vars(parse(kind, words, f"gtmsm {verb}")))
    from gtmsm.run import Run
    from gtmsm.training.engine import choose_device

    given |= {"run": Run.open(given["run"])} | ({"device": choose_device(given["device"])} if "device" in given else {})
    plain_console().print(getattr(import_module(module), name)(**given), soft_wrap=True)
    return 0


@dataclass(frozen=True)
class PlayFlags:
    """Serve a page for walking in a world, beside the model's imagination of it."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder or the name of shipped weights, whose worlds are offered; default: all with shipped weights."""
    host: str = "127.0.0.1"
    """Address to listen on; with 0.0.0.0 or a name, other computers can open the page, too."""
    port: int = 8765
    """Port to listen on; 0: any free port."""
    sessions: int = 128
    """Maximum number of visitors at a time."""
    history: int = 512
    """Number of steps that each visitor can go back; older ones are dropped."""
    device: Device = "auto"
    """Device to compute on; auto takes a GPU if there is one."""


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
