"""The worlds that can be walked here, and the weights that are used in each."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from gtmsm.config import require, require_seed
from gtmsm.errors import InputError, did_you_mean
from gtmsm.experiments import ImageWalkExperiment, RoomsExperiment
from gtmsm.model.gtmsm import WorldModel
from gtmsm.page.walkable import AnyWalkable, InDoom, InRooms, OnImage
from gtmsm.run import Run
from gtmsm.worlds.floorplan import Plan
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.images import BUILTIN, load_images, load_picture
from gtmsm.worlds.lab import import_labmaze
from gtmsm.worlds.rooms import draw_rooms, seeds_of
from gtmsm.worlds.walkers import PoissonWalker

PLANS: dict[str, Plan] = {"room": "room", "rooms": "rooms", "maze": "maze"}
SHIPPED = {
    "image": "image-walk", "obstacles": "obstacles-celeba",
    "room": "walk-strong", "rooms": "walk-strong", "maze": "walk-strong", "doom": "walk-strong",
}  # fmt: skip
"""Names of worlds, and the shipped weights for each."""
MOST_PIXELS = 1 << 24
"""Maximum number of pixels of a picture that a visitor sends: 4,096 by 4,096."""


@dataclass(frozen=True)
class Entry:
    """A world, and the run whose weights are used in it."""

    run: Run
    enter: Callable[[int, bytes | None], AnyWalkable]
    """Makes a place from a seed, or from the visitor's own picture if the world takes pictures."""
    takes_pictures: bool = False

    @property
    def metric(self) -> bool:
        """Whether the model's poses are in the world's units."""
        return self.run.experiment.training.objective.displacement > 0


class Catalogue:
    """Worlds by name, in the order in which they are offered; models are loaded when needed."""

    def __init__(self, run: Path | None, device: torch.device) -> None:
        self.device = device
        self._models: dict[Path, WorldModel] = {}
        self._loading = threading.Lock()
        self.missing: dict[str, str] = {}
        """Worlds that cannot be walked here, and why."""
        if run is not None:
            self.entries = self._of_run(Run.open(run))
            return
        self.entries = {}
        for name, of in SHIPPED.items():
            try:
                if name in ("maze", "doom"):
                    _require_engine(name)
                self.entries[name] = self._of_run(Run.open(of))[name]
            except InputError as problem:
                self.missing[name] = str(problem)
        require(bool(self.entries), next(iter(self.missing.values()), ""))

    def choose(self, name: str) -> Entry:
        """The world of that name."""
        if name in self.missing:
            raise InputError(f"{name} cannot be walked here: {self.missing[name]}")
        require(name in self.entries, f'unknown world "{name}"; {did_you_mean(name, self.entries)}')
        return self.entries[name]

    def enter(self, name: str, seed: int, picture: bytes | None) -> tuple[Entry, WorldModel, AnyWalkable]:
        """A new place of that world, with its entry and the model to use in it."""
        entry = self.choose(name)
        require_seed(seed)
        require(
            picture is None or entry.takes_pictures, f"{name} has no pictures to walk on; choose image or obstacles"
        )
        with self._loading:
            if entry.run.folder not in self._models:
                self._models[entry.run.folder] = entry.run.load_model(self.device)
        return entry, self._models[entry.run.folder], entry.enter(seed, picture)

    def _of_run(self, run: Run) -> dict[str, Entry]:
        """The worlds in which a run's weights can be used."""
        experiment = run.experiment
        if isinstance(experiment, ImageWalkExperiment):
            name = "obstacles" if experiment.world.obstacles else "image"
            return {name: Entry(run, partial(_on_image, experiment), takes_pictures=True)}
        if not isinstance(experiment, RoomsExperiment):
            raise InputError(f"{run.folder} learned from recordings: there is no world to walk in; watch gtmsm imagine")
        inside = {name: Entry(run, partial(_in_rooms, experiment, plan)) for name, plan in PLANS.items()}
        return {**inside, "doom": Entry(run, _in_doom)}


def _require_engine(name: str) -> None:
    """Refuse mazes whose engine is not installed."""
    import_labmaze(name)
    if name == "doom":
        try:
            import vizdoom  # noqa: F401
        except ImportError:
            raise InputError("it needs ViZDoom; run: pip install vizdoom") from None


def _chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _on_image(experiment: ImageWalkExperiment, seed: int, picture: bytes | None) -> OnImage:
    """A walk on a picture that no model was trained on."""
    size = experiment.world.size
    images = load_images(BUILTIN, size).test if picture is None else load_picture(picture, size, MOST_PIXELS)[None]
    return OnImage(ImageWalk(images, experiment.world), PoissonWalker(experiment.walker), _chance(seed))


def _in_rooms(experiment: RoomsExperiment, plan: Plan, seed: int, picture: bytes | None) -> InRooms:
    """A place that no model was trained in."""
    world = draw_rooms(replace(experiment.world, plan=plan), 1, seeds_of(seed).test)
    return InRooms(world, experiment.walker.build(), _chance(seed))


def _in_doom(seed: int, picture: bytes | None) -> InDoom:
    """A maze in ViZDoom."""
    return InDoom(seed)
