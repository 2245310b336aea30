"""`gtmsm atlas`: its verbs, each a few lines that call the library and return what to print."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.files import require_writable
from gtmsm.flags import parse_what, plain_console

if TYPE_CHECKING:
    from gtmsm.atlas import Atlas
    from gtmsm.atlas.local import Met
    from gtmsm.model.gtmsm import WorldModel

Address = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ATLAS")]
Weights = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class _WithModel:
    """Flags of verbs that need the model by which the memories were made."""

    atlas: Address
    """A file, or postgresql://USER@HOST/DATABASE."""
    run: Weights
    """The model by which its memories were made: a run folder, or the name of shipped weights."""


@dataclass(frozen=True)
class AddFlags(_WithModel):
    """Memorise a clip, or take the memory of an explorer, and add it to an atlas, which is made if there is none."""

    walk: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="WALK")]
    """An .npz that gtmsm record wrote, or your own with `frames` and `actions`; or a file of Explorer.save."""
    world: str
    """Name of the world. Maps of agents in the same world can be merged."""
    agent: str
    """Name of the agent. Each has its own frame of poses, with the origin where it set out."""
    closure: int = 0
    """Number of steps between loop closures in the clip, which help if steps slip; 0: never."""
    walls: bool = False
    """Use the walls that the model has learned; valid only if all walks begin where its training walks did."""


@dataclass(frozen=True)
class WhereFlags(_WithModel):
    """Print where a picture was seen, or that it never was."""

    picture: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PICTURE")]
    """A PNG or JPEG of exactly the size of the model's frames."""
    world: str | None = None
    """World to search; default: the most similar views of all worlds."""
    agent: str | None = None
    """Agent whose frame is used; its memory and those of agents it has met are searched. Default: the only agent."""
    walls: bool = False
    """Use the learned walls, as in `gtmsm atlas add`."""


@dataclass(frozen=True)
class ImagineFlags(_WithModel):
    """Write a video of an imagined walk through a world, from the memories of an agent and of all agents it has met."""

    world: str
    """Name of the world."""
    actions: str
    """Letters, each with an optional number: "r10 d5" on pictures, "f10 l5" in rooms."""
    agent: str | None = None
    """Agent whose frame is used; default: the only agent."""
    at: tuple[float, ...] = ()
    """Pose to begin at, in that frame: row and column, or x, y and degrees; default: where the agent set out."""
    out: Path = Path("imagined.mp4")
    """The .mp4 or .gif to write."""
    walls: bool = False
    """Use the learned walls, as in `gtmsm atlas add`."""


@dataclass(frozen=True)
class MergeFlags(_WithModel):
    """Find where the maps of agents meet, and store the motions between their frames."""

    world: str | None = None
    """Name of the world; default: all worlds."""
    walls: bool = False
    """Use the learned walls, as in `gtmsm atlas add`."""


@dataclass(frozen=True)
class PruneFlags(_WithModel):
    """Drop repeated views, and print how much imagination loses."""

    world: str
    """Name of the world."""
    keep: int
    """Maximum number of entries to keep, shared in proportion; each agent keeps at least as many as one query reads."""
    walls: bool = False
    """Use the learned walls, as in `gtmsm atlas add`."""


@dataclass(frozen=True)
class InfoFlags:
    """Check all hashes of an atlas, and list what it holds."""

    atlas: Address
    """A file, or postgresql://USER@HOST/DATABASE."""


@dataclass(frozen=True)
class ExportFlags:
    """Copy an atlas, or some of its worlds, to another file or server."""

    atlas: Address
    """A file, or postgresql://USER@HOST/DATABASE."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """A file, or postgresql://USER@HOST/DATABASE."""
    world: tuple[str, ...] = ()
    """Names of worlds; default: all worlds."""


def _model(flags: Any) -> "WorldModel":
    """The model, without its learned walls unless `--walls` is given."""
    from gtmsm.model.gtmsm import WorldModel

    model = WorldModel.load(flags.run)
    return model if flags.walls else model.without_walls()


def _open(flags: Any, model: "WorldModel | None" = None, create: bool = False) -> "Atlas":
    """Open the atlas that the flags name."""
    from gtmsm.atlas import Atlas

    return Atlas.open(flags.atlas, model, create)


def _add(flags: AddFlags) -> str:
    from gtmsm.data.store import read_clip
    from gtmsm.explore import Explorer

    model = _model(flags)
    if flags.walk.suffix.lower() == ".npz":
        recording = read_clip(flags.walk, model.frame_shape, model.action_size)
        memory, _ = model.memorise(recording.x(), recording.a(model.action_size), closure=flags.closure or None)
    else:
        memory = Explorer.load(flags.walk, model).memory
    with _open(flags, model, create=True) as opened:
        before = opened.written(flags.world, flags.agent)
        now = opened.add(flags.world, flags.agent, memory)
        return f"{now - before:,} entries of {flags.agent} added to {flags.world}: {now:,} in all"


def _where(flags: WhereFlags) -> str:
    from gtmsm.data.store import require_size
    from gtmsm.find.words import pose_in_words, told
    from gtmsm.worlds.images import read_picture

    model = _model(flags)
    frame = read_picture(flags.picture)
    require_size(f"{flags.picture}:", frame.shape[1], frame.shape[2], model.frame_shape)
    asked = frame.float() / 255
    with _open(flags, model) as opened:
        if flags.world is not None:
            return told(opened.where(flags.world, asked[None, None], agent=flags.agent), _turns(model), False)
        found = opened.which(asked)
        require(bool(found), f"{flags.atlas} holds nothing that this model made; add a walk first")
        return "\n".join(
            f"{place.hit.world}: like what {place.hit.agent} saw at {pose_in_words(place.pose.tolist())}, "
            f"{place.hit.distance:.2f} away in code"
            for place in found
        )


def _turns(model: "WorldModel") -> bool:
    return model.settings.motion.has_heading


def _imagine(flags: ImagineFlags) -> str:
    import torch

    from gtmsm.data.record import one_hot
    from gtmsm.evaluation.video import require_video_name, side_by_side, write_video
    from gtmsm.film import parse_actions
    from gtmsm.find.words import pose_in_words
    from gtmsm.tensors import Belief
    from gtmsm.worlds.image_walk import ImageWalk
    from gtmsm.worlds.rooms import Rooms

    require_video_name(flags.out)
    require_writable(flags.out)
    model = _model(flags)
    world = Rooms if _turns(model) else ImageWalk
    names, size = world.action_names, model.motion.pose_size
    require(len(names) == model.action_size, f"{flags.run} acts otherwise than the worlds that ship; use Atlas.imagine")
    require(len(flags.at) in (0, size), f"at has {len(flags.at)} numbers; a pose of this model has {size}")
    actions = one_hot(torch.tensor([parse_actions(flags.actions, names, world.action_keys)]), len(names))
    start = model.motion.start(1)
    for i, number in enumerate(flags.at):
        start[0, i] = number if i < 2 else torch.deg2rad(torch.tensor(number))
    with _open(flags, model) as opened:
        dream = opened.imagine(flags.world, Belief(start), actions, flags.agent)
        write_video(
            flags.out, side_by_side([dream.frames[0].numpy()], ["imagined"], max(1, 256 // model.frame_shape[1])), 10
        )
    return f"{actions.shape[1]} steps to {pose_in_words(dream.poses[0, -1, :size].tolist())}: {flags.out}"


def _merge(flags: MergeFlags) -> str:
    with _open(flags, _model(flags)) as opened:
        met = {world.name: opened.merge(world.name) for world in opened.worlds() if flags.world in (None, world.name)}
    if not met:
        raise InputError(f"there is no world {flags.world} in {flags.atlas}; gtmsm atlas info lists them")
    said = [f"{world}: {line}" for world, pairs in met.items() for pair in pairs for line in _told(pair)]
    return "\n".join(said) or "no maps meet"


def _told(met: "Met") -> list[str]:
    """One line for each motion between two frames."""
    from gtmsm.find.words import pose_in_words

    if not met.found:
        return [f"{met.one} and {met.other} do not meet any more"]
    used = "" if met.clear else " (an alternative: none is used until one is clearly better)"
    return [
        f"{met.other} set out from {pose_in_words(found.origin.tolist())} of {met.one} ± "
        f"{float(found.covariance.diagonal()[:2].mean()) ** 0.5:.2f}, by {found.sights:.0f} places recognised; "
        f"{100 * found.share:.0f}% of the places known to both look alike{used}"
        for found in (met.found[:1] if met.clear else met.found)
    ]


def _prune(flags: PruneFlags) -> str:
    with _open(flags, _model(flags)) as opened:
        pruned = opened.prune(flags.world, flags.keep)
    if pruned.loss is None:
        return f"{pruned.before:,} entries, none dropped"
    loss = pruned.loss
    return (
        f"{pruned.before:,} entries before, {pruned.after:,} now; where entries were dropped, imagination shows "
        f"{loss.after:.1f} dB of what was remembered there, {loss.before:.1f} dB before ({loss.asked} asked)"
    )


def _info(flags: InfoFlags) -> str:
    said = []
    with _open(flags) as opened:
        for world in opened.worlds():
            local = opened.local(world.name)
            said.append(f"{world.name}: {len(local):,} entries, {world.seq} lines, by the weights {world.weights}")
            for agent, memory in sorted(local.agents.items()):
                last = time.strftime("%Y-%m-%d %H:%M", time.gmtime(local.times[agent][-1][1]))
                said.append(f"  {agent}: {len(memory):,} entries, the last of {last} UTC")
            said += [f"  {line}" for met in local.met.values() for line in _told(met)]
    return "\n".join(said) or f"{flags.atlas} is empty"


def _export(flags: ExportFlags) -> str:
    with _open(flags) as opened:
        return f"{opened.export(flags.out, flags.world):,} entries copied to {flags.out}"


WHAT: dict[str, tuple[type, str, Any]] = {
    "add": (AddFlags, "memorise a walk into it: gtmsm atlas add ATLAS RUN CLIP.npz --world NAME --agent NAME", _add),
    "where": (WhereFlags, "where was this picture seen? gtmsm atlas where ATLAS RUN PICTURE [--world NAME]", _where),
    "imagine": (ImagineFlags, "walk on in it, as a video: --world NAME --agent NAME --actions r10d5", _imagine),
    "merge": (MergeFlags, "find where the maps of agents meet", _merge),
    "prune": (PruneFlags, "drop views that others repeat: --world NAME --keep N", _prune),
    "info": (InfoFlags, "what is in it; checks every hash", _info),
    "export": (
        ExportFlags,
        "copy it, or some worlds, elsewhere: gtmsm atlas export ATLAS OUT",
        _export,
    ),
}
"""Verbs of `gtmsm atlas`: flags, a line of help, and the function that returns what to print."""


def atlas(words: list[str]) -> int:
    """Run a verb of `gtmsm atlas`."""
    what, flags = parse_what("atlas", "ATLAS", words, WHAT)
    if what:
        plain_console().print(WHAT[what][2](flags), soft_wrap=True)
    return 0
