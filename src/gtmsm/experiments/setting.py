"""Experiments set up on a device: images to walk over, or rooms to walk in."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from gtmsm.data.clip import Clip, Source
from gtmsm.data.record import record
from gtmsm.data.windows import Windows, record_windows
from gtmsm.errors import NoMemoryError
from gtmsm.evaluation.score import EvaluationConfig, glance
from gtmsm.experiments.experiment import ImageWalkExperiment, OwnExperiment, RoomsExperiment
from gtmsm.model.budget import Budget
from gtmsm.model.gtmsm import WorldModel
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.images import ImageSet
from gtmsm.worlds.rooms import Rooms, draw_rooms, seeds_of
from gtmsm.worlds.slip import SlipConfig, Slipping, slipping
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, Walker
from gtmsm.worlds.world import World


@dataclass(frozen=True)
class Places:
    """The places of an experiment, as recorded in a run's config."""

    name: str
    sha256: str
    train: int
    test: int
    validation: int = 0
    """Number of validation places; 0 for runs of older versions, which watched test places while training."""


class Setting(ABC):
    """An experiment set up on a device: worlds for training, validation and test, a walker, and an untrained model."""

    experiment: ImageWalkExperiment | RoomsExperiment | OwnExperiment
    device: torch.device
    walker: Walker
    places: Places
    noun: str
    """Word for its places, in messages."""
    hashed: str = "sha256"
    """Word for the fingerprint of its places, in messages."""

    watched: World
    """Validation places: watched while training, and never trained or tested on."""
    test_world: World
    """Test places, which neither training nor any choice has used."""

    @abstractmethod
    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Fresh clips to train on; with `truth`, true poses are recorded even if GTM-SM does not learn from them."""

    def encoded(self, model: WorldModel) -> Source:
        """A source for a model whose coder is held: clips include codes if all frames exist before training."""
        return self.source

    @property
    def fitted_in(self) -> World:
        """The world of the walks on which the map from a model's poses to the world's is fitted."""
        return self.test_world

    def watch(self) -> Callable[[WorldModel], dict[str, float]]:
        """A function that scores a model on a few validation clips, for the progress display."""
        return partial(glance, world=self.watched, walker=self.walker, settings=self.brief)

    @property
    def brief(self) -> EvaluationConfig:
        """Settings of the evaluation on validation clips while training."""
        full = self.experiment.evaluation
        return replace(full, horizon=min(64, full.horizon), clips=min(16, full.clips), seed=1)

    def build_model(self, budget: Budget | None = None) -> WorldModel:
        """A model with fresh weights by the experiment's seed, or with those of `begin_with`.

        `budget` limits what is allocated, for settings that come with a checkpoint.
        """
        world = self.test_world
        with torch.random.fork_rng(devices=[]), budget or nullcontext():
            torch.manual_seed(self.experiment.seed)
            model = WorldModel(self.experiment.model, world.frame_shape, len(world.action_names))
        if self.experiment.begin_with:
            model.begin_with(self.experiment.begin_with)
        return model.to(self.device)


class ImageWalkSetting(Setting):
    """Images to walk over."""

    noun = "images"

    def __init__(self, experiment: ImageWalkExperiment, images: ImageSet, device: torch.device) -> None:
        self.experiment, self.device = experiment, device
        self.places = Places(
            images.name, images.fingerprint, len(images.train), len(images.test), len(images.validation)
        )
        self.walker = PoissonWalker(experiment.walker)
        slip, test_slip = experiment.slip, experiment.test_slip
        self.train_world, self.watched, self.test_world = (
            slipping(ImageWalk(part.to(device), experiment.world), how)
            for part, how in ((images.train, slip), (images.validation, test_slip), (images.test, test_slip))
        )

    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Walks recorded on the spot; true poses only if the objective or `truth` asks for them."""
        truth = truth or self.experiment.training.objective.displacement > 0
        return record(self.train_world, self.walker, n, steps, generator, truth)


class RoomsSetting(Setting):
    """Rooms to walk in; drawn and rendered on first use."""

    noun = "places"
    hashed = "textures' sha256"

    def __init__(self, experiment: RoomsExperiment, device: torch.device) -> None:
        self.experiment: RoomsExperiment = experiment
        self.device, self.world = device, experiment.world
        textures = load_textures(self.world.textures)
        name = f"{self.world.plan} with {textures.name} textures"
        counts = self.world.train_places, self.world.test_places, self.world.validation_places
        self.places = Places(name, textures.fingerprint, *counts)
        self.walker = experiment.walker.build()

    @cached_property
    def test_world(self) -> World:  # type: ignore[override]
        """Test places: the same for every seed of an experiment, so that models are scored on the same walks."""
        return self._draw(self.world.test_places, seeds_of(0).test, self.experiment.test_slip)

    @cached_property
    def watched(self) -> World:  # type: ignore[override]
        """Validation places: others of the same kind, so that the test places decide nothing."""
        return self._draw(self.world.validation_places, seeds_of(0).validation, self.experiment.test_slip)

    @cached_property
    def pool(self) -> Windows:
        """Clips to train on, the same for every process and after a resume."""
        seed, settings = seeds_of(self.experiment.seed).train, self.experiment.pool
        needed = settings.clips * settings.steps * math.prod(self.test_world.frame_shape)
        require_memory(needed, self.device, "the pool of clips", "give fewer --pool.clips")
        world = self._draw(self.world.train_places, seed, self.experiment.slip)
        generator = torch.Generator(self.device).manual_seed(seed)
        return record_windows(world, self.walker, settings.clips, settings.steps, generator)

    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Windows of the pool, always with true poses."""
        return self.pool(n, steps, generator)

    def encoded(self, model: WorldModel) -> Source:
        """Windows of the pool with codes: encoding frames would take longer than the rest of an update."""
        needed = math.prod(self.pool.frames.shape[:2]) * 2 * self.experiment.model.vae.code_size * 4
        require_memory(needed, self.device, "codes of the pool of clips", "give fewer --pool.clips")
        with self.experiment.training.optimiser.autocast(self.device):
            return self.pool.encoded(model.vae.encode)

    def _draw(self, count: int, seed: int, slip: SlipConfig) -> Rooms | Slipping:
        """A world of places drawn from a seed, in which actions may slip."""
        return slipping(draw_rooms(self.world, count, seed, self.device), slip)


def require_memory(needed: int, device: torch.device, what: str, instead: str) -> None:
    """Refuse data that does not fit into the device's free memory, before minutes are spent on making it."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    sizes = f"needs {needed / 1e9:.1f} GB and there are {free / 1e9:.1f} free"
    if needed >= free:
        raise NoMemoryError(f"{what} {sizes}; {instead}")
