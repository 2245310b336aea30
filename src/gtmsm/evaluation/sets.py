"""Fixed evaluation sets: walks that are the same on every machine, drawn from seeds on a CPU, verified by checksum."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gtmsm.config import require, require_choice
from gtmsm.data.clip import Clip
from gtmsm.data.record import record_in_batches
from gtmsm.episodes.pool import Pool
from gtmsm.episodes.recorded import RecordedWorld, nobody
from gtmsm.tensors import Frames
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import BUILTIN, load_images
from gtmsm.worlds.returns import LoopWalker, Returning, ReturnWalker, SpinReturnWalker
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms, seeds_of
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig, SpinWalker, Walker
from gtmsm.worlds.world import World

Split: TypeAlias = Literal["train", "validation", "test"]
Build: TypeAlias = Callable[[Split, "str | Path | None", "Size"], World]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
FEWER = 5
"""The training and validation parts have a fifth of the clips."""
FINE = 1_000
"""Checksums cover poses and actions rounded to thousandths."""


@dataclass(frozen=True)
class Size:
    """Number and length of the clips of a set."""

    clips: int
    tau: int
    """Steps to memorise."""
    horizon: int
    """Steps to predict."""
    skip: int = 0
    """Predicted steps that are not scored: the way back, of sets that score only the frames at its end."""


@dataclass(frozen=True)
class Recipe:
    """How a named set is drawn."""

    about: str
    build: Build
    walker: Walker
    full: Size
    quick: Size
    needs_images: bool = False


@dataclass(frozen=True)
class Checksum:
    """SHA-256 of frames (as bytes), actions and poses (to a thousandth), and of actions and poses alone."""

    sha256: str
    walks: str
    others: tuple[str, ...] = ()
    """SHA-256 of the same walks drawn on other kinds of processors, where rounding changes a few frames."""

    @property
    def known(self) -> tuple[str, ...]:
        """All checksums that count as the same frames."""
        return self.sha256, *self.others


@dataclass(frozen=True)
class FixedSet:
    """Walks to memorise and to predict, the same on every machine up to the rounding of frames."""

    name: str
    split: Split
    quick: bool
    recipe: Recipe
    images: str | Path | None = None
    seed: int = 0
    kept: bool = False
    """Keep the clips in memory once they are drawn, to score several models on them: walks in rooms take minutes to
    draw."""

    @property
    def size(self) -> Size:
        """Number and length of the clips of this part."""
        size = self.recipe.quick if self.quick else self.recipe.full
        return size if self.split == "test" or self.quick else replace(size, clips=max(1, size.clips // FEWER))

    @cached_property
    def world(self) -> World:
        """The world of the walks, with the agents of the batch that was drawn last."""
        return self.recipe.build(self.split, self.images, self.size)

    @property
    def elsewhere(self) -> World | None:
        """For recorded worlds, which can only be replayed: the world of another part, to fit maps of poses on."""
        if not isinstance(self.world, RecordedWorld):
            return None
        return replace(self, split="train" if self.split == "validation" else "validation").world

    @property
    def walker(self) -> Walker:
        """The walker that chooses the actions."""
        return self.recipe.walker

    def clips(self) -> Iterator[Clip]:
        """All clips, in batches on the CPU; `world` holds the agents of a batch until the next is drawn."""
        if not self.kept:
            yield from self._draw()
            return
        for frames, others, agents in self._drawn:
            vars(self.world).update(agents)
            yield Clip(x=frames.float() / 255, **others)

    def _draw(self) -> Iterator[Clip]:
        size, generator = self.size, torch.Generator().manual_seed(self.seed)
        return record_in_batches(self.world, self.walker, size.clips, size.tau + size.horizon, generator)

    @cached_property
    def _drawn(self) -> list[tuple[Tensor, dict[str, Any], dict[str, Any]]]:
        """For each batch: frames as bytes (as worlds draw them), the clip's other fields, and the world's attributes.

        Keeping references is enough, since a world never changes its attributes in place.
        """
        batches = []
        for clip in self._draw():
            others = {name: part for name, part in vars(clip).items() if name != "x"}
            batches.append((as_bytes(clip.x), others, dict(vars(self.world))))
        return batches

    def checksum(self) -> Checksum:
        """Checksum of the walks as this machine draws them."""
        digest = Digest()
        for clip in self.clips():
            digest.add(clip)
        return digest.checksum

    @property
    def listed(self) -> Checksum | None:
        """The checksum that came with the package; None if there is none."""
        known = _listed().get(f"{self.name}:{self.split}{':quick' if self.quick else ''}")
        return None if known is None else Checksum(known["sha256"], known["walks"], tuple(known.get("others", ())))

    def check(self, found: Checksum | None = None) -> str:
        """Compare with the listed checksum; return an empty string if the walks are the same, else what differs.

        `found` is the checksum of the clips if it was computed before.
        """
        found = found or self.checksum()
        listed, name = self.listed, f"{self.name} ({self.split}{', quick' if self.quick else ''})"
        if listed is None:
            return f"{name} has no checksum in this version: its scores compare only on this machine"
        if found.walks != listed.walks:
            return f"{name}: this machine draws other walks than the set has: scores are not comparable"
        if found.sha256 in listed.known:
            return ""
        why = "are these its images?" if self.images else "arithmetic or libraries differ"
        return f"{name}: the walks are those of the set, but some of the frames differ ({why})"


class Digest:
    """A running checksum of clips."""

    def __init__(self) -> None:
        """Start with no clips."""
        self._all, self._walks = hashlib.sha256(), hashlib.sha256()

    def add(self, clip: Clip) -> None:
        """Add a batch."""
        self._all.update(as_bytes(clip.x).numpy().tobytes())
        for part in (clip.a, clip.true_pose):
            rounded = _rounded(part)
            self._all.update(rounded)
            self._walks.update(rounded)

    @property
    def checksum(self) -> Checksum:
        """The checksum of all batches so far."""
        return Checksum(self._all.hexdigest(), self._walks.hexdigest())


def named_set(name: str, split: Split = "test", quick: bool = False, images: str | Path | None = None) -> FixedSet:
    """A set by its name, one of `SETS`; `images` is the .npz for a set that needs images of yours."""
    require_choice("set", name, SETS)
    require_choice("split", split, SPLITS)
    recipe = SETS[name]
    require(
        recipe.needs_images == (images is not None),
        f"{name} is drawn from a .npz of yours: give images=PATH"
        if recipe.needs_images
        else f"{name} has images of its own, so that it is the same for everybody; leave out images",
    )
    return FixedSet(name, split, quick, recipe, images)


def as_bytes(frames: Frames) -> UInt8[Tensor, "batch time c h w"]:
    """Frames in [0, 1] as bytes."""
    return (255 * frames).round().byte()


def _rounded(values: Float[Tensor, "batch time _"]) -> bytes:
    """Numbers rounded to thousandths, as bytes of integers."""
    return (values.double() * FINE).round().int().numpy().tobytes()


def _listed() -> Mapping[str, Mapping[str, Any]]:
    """The checksums that came with the package."""
    listed: Mapping[str, Mapping[str, Any]] = json.loads(
        resources.files("gtmsm.evaluation").joinpath("checksums.json").read_text()
    )
    return listed


# ---- the sets


def _over_images(config: ImageWalkConfig, split: Split, images: str | Path | None, size: Size) -> World:
    """The world of walks over the images of one part."""
    return ImageWalk(getattr(load_images(images or BUILTIN, config.size), split), config)


def _in_rooms(config: RoomsConfig, split: Split, images: str | Path | None, size: Size) -> World:
    """The world of walks in the places of one part; those of the test are what `gtmsm evaluate` scores on."""
    return draw_rooms(config, getattr(config, f"{split}_places"), getattr(seeds_of(0), split))


def _in_doom(split: Split, images: str | Path | None, size: Size) -> World:
    """Walks in ViZDoom, recorded in the mazes of one part; each clip is an episode from its first step."""
    from gtmsm.episodes.recorder import record_environment  # needs the extra `own`, which other sets do not
    from gtmsm.episodes.store import Store

    cpu = torch.device("cpu")
    with tempfile.TemporaryDirectory(prefix="gtmsm-doom-") as folder:
        path, steps = Path(folder) / "walks", size.tau + size.horizon
        env_kwargs = {"split": split}
        record_environment("gtmsm/Doom-v0", path, clips=size.clips, steps=steps, workers=0, env_kwargs=env_kwargs)
        store = Store.open(path)
        pool = Pool.of(store, np.arange(len(store)), cpu, from_start=True)
    return RecordedWorld(store.kind, pool, steps, cpu)


def over_images(size: int = 32, obstacles: int = 0) -> Build:
    """Builder of walks over the built-in images, or over the user's if a set needs them."""
    return partial(_over_images, ImageWalkConfig(size=size, obstacles=obstacles))


def in_rooms(plan: Literal["room", "rooms"]) -> Build:
    """Builder of walks in rooms with the textures of labmaze, so that the set does not depend on the machine."""
    return partial(_in_rooms, RoomsConfig(plan=plan, textures="lab"))


def _returning(about: str, build: Build, walker: Returning, clips: int, few: int) -> Recipe:
    """Recipe of a set whose walker determines the lengths of its walks."""
    full, quick = (Size(n, walker.tau, walker.horizon, walker.skip) for n in (clips, few))
    return Recipe(about, build, walker, full, quick)


LARGE = over_images(size=64)
"""Images with 19 by 19 cells, large enough to walk away from the middle until nothing of it is in view."""
AWAY = (0, 30, 100, 300, 1_000)
"""Numbers of steps elsewhere before a return."""
REPLAY, BRIEF = Size(500, 256, 256), Size(24, 64, 64)
SETS: dict[str, Recipe] = {
    "image-walk/builtin": Recipe(
        "walks over views of photographs (section 4.1)", over_images(), PoissonWalker(), REPLAY, BRIEF
    ),
    "image-walk/celeba": Recipe(
        "walks over faces, from a .npz of yours", over_images(), PoissonWalker(), REPLAY, BRIEF, needs_images=True
    ),
    "image-walk/obstacles": Recipe(
        "walks over views of photographs among two obstacles (App. D)",
        over_images(obstacles=2), PoissonWalker(PoissonWalkerConfig(look_first=True)), REPLAY, BRIEF,
    ),
    "rooms/rotate": Recipe(
        "turning on the spot in a room (section 4.2.1)",
        in_rooms("room"), SpinWalker(), Size(500, 33, 45), Size(32, 33, 45),
    ),
    "rooms/walk": Recipe(
        "walking from object to object in a room (section 4.2.2)",
        in_rooms("room"), ScavengerWalker(), Size(200, 150, 150), Size(32, 60, 60),
    ),
    "rooms/multi": Recipe(
        "the same in several rooms (App. C)",
        in_rooms("rooms"), ScavengerWalker(), Size(200, 150, 300), Size(32, 60, 60),
    ),
    # In one batch, which has every episode once.
    "doom/walk": Recipe("walking through mazes in ViZDoom", _in_doom, nobody, Size(40, 150, 150), Size(3, 40, 24)),
    "image-walk/loop": _returning("A-B-A on a large image, back by the same way", LARGE, LoopWalker(), 200, 24),
    "image-walk/loop-around": _returning("the same, back by another way", LARGE, LoopWalker(other_way=True), 200, 24),
    **{
        f"image-walk/return-{n}": _returning(f"back at A after {n} steps elsewhere", LARGE, ReturnWalker(n), 200, 12)
        for n in AWAY
    },
    **{
        f"rooms/return-{n}": _returning(
            f"turned back after {n} turns elsewhere", in_rooms("room"), SpinReturnWalker(n), 50, 2
        )
        for n in AWAY[:-1]
    },
}  # fmt: skip
"""Recipes by name. The test walks of image-walk/builtin, rooms/rotate, rooms/walk and rooms/multi are those that
`gtmsm evaluate` draws."""
