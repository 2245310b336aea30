"""`gtmsm record` and `data`: make, inspect, check and convert recordings."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gtmsm.flags import parse, parse_what, plain_console
from gtmsm.shipped import is_shipped
from gtmsm.verbs.walks import RecordFlags, record_walk


@dataclass(frozen=True)
class RecordEnvironmentFlags:
    """Record clips of any Gymnasium environment; the same command again continues where it stopped."""

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV_ID")]
    """A Gymnasium id, as MiniGrid-FourRooms-v0; module:ID imports a module that registers it."""
    out: Path
    """The store to write, or to continue."""
    walker: str = "explore"
    """How actions are chosen: explore (by the environment's own explorer, as in gtmsm/Doom-v0; otherwise smooth),
    smooth (continuous actions change gradually; others are repeated), repeat (each held for a while), random (a new one
    each step), turn (on the spot), or module:function, which is called with the observation and a generator."""
    clips: int = 100
    """Number of clips; clips that fail are dropped and counted."""
    steps: int = 300
    """Number of steps of a clip."""
    shortest: int = 0
    """Minimum number of steps of a clip that the environment ends early; shorter clips are dropped. 0: --steps."""
    size: int = 32
    """Side of a frame in pixels, to which pictures are averaged by area; 0: not scaled."""
    workers: int = 1
    """Number of worker processes; the clips do not depend on it."""
    shard: str = "0/1"
    """Part of the clips to record, i/n: 0/3, 1/3 and 2/3 for three machines."""
    env_kwargs: str = "{}"
    """Arguments of the environment, as JSON."""
    pixels: str = ""
    """Entry of the observation that holds the picture, or "render" for render(); default: detected."""
    pose: str = ""
    """module:function that takes the unwrapped environment and returns x, y or x, y, heading in radians; default:
    info["pose"], or built in for MiniGrid, MiniWorld and ViZDoom."""
    actions: str = ""
    """Discrete actions to use, by name or number: left,right,forward; default: all."""
    seed: int = 0
    """Seed of the clips."""
    limit: float = 60.0
    """Seconds without progress after which a clip is abandoned."""


def record(words: list[str]) -> int:
    """Record a walk of a run if a run folder, shipped weights or an .npz is named, else clips of an environment."""
    asks = not words or words[0] in ("-h", "--help")
    if asks:
        with suppress(SystemExit):
            parse(RecordFlags, ["--help"], "gtmsm record")
    elif Path(words[0]).is_dir() or is_shipped(words[0]) or any(word.endswith(".npz") for word in words):
        return record_walk(words)
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
class InfoFlags:
    """Describe a store of episodes: counts, actions used, places, writers, bytes."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""


@dataclass(frozen=True)
class VerifyFlags:
    """Check every checksum of a store; exit code 1 if anything is damaged."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""
    repair: bool = False
    """Drop damaged episodes only; list intact ones that a damaged manifest has lost."""


@dataclass(frozen=True)
class SampleFlags:
    """Draw a contact sheet: some steps of some episodes, and their paths if poses are known."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """A store."""
    out: Path = Path("sample.png")
    """The PNG to write."""
    episodes: int = 8
    """Number of episodes, chosen at random."""
    steps: int = 10
    """Number of steps of each, from its first to its last."""
    seed: int = 0
    """Seed of the choice."""


@dataclass(frozen=True)
class ConvertFlags:
    """Convert a recording to another format, and check that each action belongs to its frame.

    Formats to read: a store, .npz, stable-worldmodel's .h5, folders of Minari, of LeRobot v3, and of MP4s or pictures
    with a CSV. The format to write is a store, unless the ending of OUT or --format gives another.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")]
    """Recording to read; its format is detected."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """File or folder to write; must not exist."""
    size: int | None = None
    """Scale frames to this many pixels a side, by area; default: not scaled."""
    shift: int = 0
    """Pair frame t with the recorded action t + shift, if the alignment check reports a shift."""
    format: str | None = None
    """Format to write: store, npz, stable-worldmodel or minari; default: by the ending of OUT."""
    camera: str | None = None
    """Camera to read, if a LeRobot folder has several."""


DATA: dict[str, tuple[type, str]] = {
    "info": (InfoFlags, "what is in it: counts, actions used, places, writers, bytes"),
    "verify": (VerifyFlags, "check every checksum; --repair drops what is damaged"),
    "sample": (SampleFlags, "a contact sheet, and a map of where it went"),
    "convert": (ConvertFlags, "from or to another format: gtmsm data convert IN OUT"),
}
"""Verbs of `gtmsm data`, with their flags and a line of help."""


def data(words: list[str]) -> int:
    """Inspect, check or convert recordings."""
    what, flags = parse_what("data", "PATH", words, DATA)
    if not what:
        return 0
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
