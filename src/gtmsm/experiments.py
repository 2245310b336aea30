"""An experiment: a world, who walks in it, a model, and how it is trained and scored."""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from gtmsm.config import changed, config, require, require_seed
from gtmsm.data.clip import Clip, Source
from gtmsm.data.record import record
from gtmsm.data.windows import Windows, record_windows
from gtmsm.episodes.pool import Episodes, Pool
from gtmsm.episodes.propose import propose
from gtmsm.episodes.recorded import Failing, RecordedWorld, nobody
from gtmsm.episodes.split import HoldOut, Numbers, Split, hold_out_by, split
from gtmsm.episodes.survey import survey
from gtmsm.episodes.windows import StoreWindows
from gtmsm.errors import InputError
from gtmsm.evaluation.score import EvaluationConfig, glance
from gtmsm.model.budget import Budget
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.settings import WorldModelConfig
from gtmsm.training.curriculum import CurriculumConfig, plan_stages
from gtmsm.training.prospect import ProspectConfig
from gtmsm.training.train import TrainingConfig
from gtmsm.worlds.floorplan import Plan
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import BUILTIN, ImageSet, load_images, load_picture
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms, seeds_of
from gtmsm.worlds.scavenger import ScavengerWalker, ScavengerWalkerConfig
from gtmsm.worlds.slip import SlipConfig, Slipping, slipping
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig, SpinWalker, SpinWalkerConfig, Walker
from gtmsm.worlds.world import World


@config
class Experiment:
    """A model, and how it is trained and scored; the world and who walks in it are particular."""

    seed: int = 0
    """Of weights, walks and noise: the same seed on the same CPU gives the same run, on a GPU up to rounding."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")] = TrainingConfig()
    begin_with: str = ""
    """A run folder, or shipped weights by name, to begin with; parts that it lacks begin from scratch."""
    model: WorldModelConfig = WorldModelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    slip: SlipConfig = SlipConfig()

    @property
    def test_slip(self) -> SlipConfig:
        """How steps slip in the walks to be scored on."""
        return replace(self.slip, probability=self.evaluation.slip)

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        require_seed(self.seed)
        objective, training, form = self.training.objective, self.training, self.model.landmark.form
        k, tau, scored = self.model.recall.neighbours, training.curriculum.tau, self.evaluation.tau
        require(k <= tau, f"neighbours is {k} but tau is {tau}; memory would hold fewer than K entries")
        require(k <= scored, f"neighbours is {k} but evaluation.tau is {scored}; memory would be too small")
        require(
            form != "paper" or objective.poses_from_bound,
            "the paper's form of landmarks learns from the bound alone: give --poses-from-bound",
        )
        require(
            form == "off" or training.optimiser.batch >= 2,
            "batch is 1, but what is strange is learned from another walk of the batch; give at least 2",
        )
        fits = form != "off" or not objective.recognition_only
        require(fits, "recognition_only needs landmarks: give a form of them")
        shortest = min(stage.steps for stage in plan_stages(training.curriculum, self.model.recall, training.updates))
        require(
            not objective.displacement or objective.displacement_after < shortest,
            f"displacement_after is {objective.displacement_after} but the shortest clips trained on have {shortest} "
            "steps; leave some of them to learn from",
        )


@config
class ImageWalkExperiment(Experiment):
    """Agents that walk over images (section 4.1)."""

    images: str = BUILTIN
    """"builtin" (views of photographs inside scikit-image), a .npz with `train` and `test`, or a folder of pictures."""
    world: ImageWalkConfig = ImageWalkConfig()
    walker: PoissonWalkerConfig = PoissonWalkerConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion = self.model.motion
        require(not motion.has_heading, f"kind is {motion.kind}; who walks over an image has no heading: use walled")
        require(motion.state_size == 2, f"state_size is {motion.state_size}; an image is walked in 2 dimensions")
        weight = self.training.objective.displacement
        require(
            weight == 0 or self.world.obstacles > 0 or self.slip.probability > 0,
            f"displacement is {weight}; walls make true displacements no target on images: leave it 0, or put "
            "something in the way with --world.obstacles or --slip.probability (App. D)",
        )


@config
class RoomsWalkerConfig:
    """Who walks through rooms."""

    kind: Literal["spin", "scavenger"] = "scavenger"
    """spin: turns on the spot (section 4.2.1); scavenger: walks from object to object (section 4.2.2)."""
    spin: SpinWalkerConfig = SpinWalkerConfig()
    scavenger: ScavengerWalkerConfig = ScavengerWalkerConfig()

    def build(self) -> Walker:
        """The walker."""
        return SpinWalker(self.spin) if self.kind == "spin" else ScavengerWalker(self.scavenger)


@config
class PoolConfig:
    """Clips rendered once, before training, on the device that trains."""

    clips: int = 8_192
    """How many (App. A.2 has 100,000 of them)."""
    steps: int = 300
    """Of each clip (App. A.2: 80 for the rotating agent, 300 for the walking one)."""

    def __post_init__(self) -> None:
        """Refuse an empty pool."""
        require(self.clips >= 1, f"clips is {self.clips}; training needs at least 1")
        require(self.steps >= 2, f"steps is {self.steps}; a clip needs at least 2")


@config
class RoomsExperiment(Experiment):
    """Agents with a heading that walk through rooms (section 4.2)."""

    world: RoomsConfig = RoomsConfig()
    walker: RoomsWalkerConfig = RoomsWalkerConfig()
    pool: PoolConfig = PoolConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion, training = self.model.motion, self.training
        require(motion.has_heading, f"kind is {motion.kind}; an agent in rooms has a heading: use turning, for one")
        longest = training.curriculum.tau + training.curriculum.horizon
        require(
            self.pool.steps >= longest,
            f"pool.steps is {self.pool.steps}, shorter than tau + horizon = {longest}; make clips longer, or memorise "
            "and predict fewer steps",
        )
        searched = training.prospect.tau + training.prospect.horizon
        require(
            not training.curriculum.prospect or self.pool.steps >= searched,
            f"pool.steps is {self.pool.steps}, shorter than the {searched} steps that prospecting looks at; make clips "
            "longer, or lower prospect.tau and prospect.horizon",
        )
        metric = training.objective.displacement > 0
        require(
            metric == self.evaluation.metric_poses,
            "only the displacement loss teaches poses in the world's units: give --displacement 0 with "
            "--evaluation.no-metric-poses, or a weight with --evaluation.metric-poses",
        )
        require(
            metric or self.model.recall.choice == "nearest" or training.prospect.loops > 0,
            "choice is visible, which asks for poses in units of a wall's height: that needs --displacement above 0, "
            "or --prospect.loops, by which a step is about a tenth of one",
        )
        view, true = self.model.recall.field_of_view, self.world.field_of_view
        require(view == true, f"model.recall.field_of_view is {view} but the world's is {true}; give the same")


@config
class OwnExperiment(Experiment):
    """Recorded episodes of any world."""

    data: str = ""
    """The store of episodes to learn from; `gtmsm data convert` and `gtmsm record` make one."""
    hold_out: HoldOut = "places"
    """What is kept for validation and test: whole places, where there are many, or else whole episodes."""
    unit: float = 1.0
    """Length, in the units of recorded poses, that counts as 1 while learning; scores are in your units again."""
    from_start: bool = False
    """Whether clips begin where episodes do: walls are learned where they lie from the start."""

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion = self.model.motion
        require(
            motion.has_heading or motion.state_size == 2,
            f"state_size is {motion.state_size}; recorded positions have 2 numbers: leave it 2",
        )
        require(self.unit > 0, f"unit is {self.unit}; give a length above 0")
        require(self.slip == SlipConfig() and not self.evaluation.slip, "recorded steps slip or not: leave out --slip")
        require(
            self.model.landmark.form == "off",
            "landmarks are scored in walks of their own, and recordings have none; leave --model.landmark.form off",
        )
        metric = self.training.objective.displacement > 0
        require(
            metric == self.evaluation.metric_poses,
            "only the displacement loss teaches poses in your units: give --displacement 0 with "
            "--evaluation.no-metric-poses, or a weight with --evaluation.metric-poses",
        )
        require(
            metric or self.model.recall.choice == "nearest" or self.training.prospect.loops > 0,
            "choice is visible, which asks for the length of a step: that needs --displacement above 0, or "
            "--prospect.loops",
        )


def in_other_places(experiment: Experiment, plan: Plan) -> RoomsExperiment:
    """The same in places of another plan: App. C tests the walk's weights in several rooms, T = 450."""
    if not isinstance(experiment, RoomsExperiment):
        on = "is about recordings" if isinstance(experiment, OwnExperiment) else "walks over images"
        raise InputError(f"this run {on}, and no rooms can be walked with it; leave out --places")
    return replace(experiment, world=replace(experiment.world, plan=plan))


@dataclass(frozen=True)
class Places:
    """Where an experiment happens: what a run's config remembers of it."""

    name: str
    sha256: str
    train: int
    test: int
    validation: int = 0
    """None where a run is older than this: it looked at test places while learning."""


class Setting(ABC):
    """An experiment set up on a device: worlds to train, to be watched and tested in, a walker, an untrained model."""

    experiment: ImageWalkExperiment | RoomsExperiment | OwnExperiment
    device: torch.device
    walker: Walker
    places: Places
    noun: str
    """What its places are called."""
    hashed: str = "sha256"
    """What the fingerprint of its places is."""

    watched: World
    """Places for validation: looked at while training, and never trained or tested on."""
    test_world: World
    """Places that nothing was learned or chosen from."""

    @abstractmethod
    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Fresh clips to train on; with `truth` true poses are recorded also where GTM-SM does not learn from them."""

    @property
    def fitted_in(self) -> World:
        """Where it is found out how a model's poses lie in the world, by walks that are not scored."""
        return self.test_world

    def watch(self) -> Callable[[WorldModel], dict[str, float]]:
        """A quick look at validation clips, for the progress display."""
        return partial(glance, world=self.watched, walker=self.walker, settings=self.brief)

    @property
    def brief(self) -> EvaluationConfig:
        """How much is looked at while training."""
        full = self.experiment.evaluation
        return replace(full, horizon=min(64, full.horizon), clips=min(16, full.clips), seed=1)

    def build_model(self, budget: Budget | None = None) -> WorldModel:
        """Fresh weights, by the experiment's seed; within the budget of a checkpoint, where there is one."""
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
        """Walks made on the spot; with the truth only where it is learned from."""
        truth = truth or self.experiment.training.objective.displacement > 0
        return record(self.train_world, self.walker, n, steps, generator, truth)


class RoomsSetting(Setting):
    """Rooms to walk in; drawn and rendered when somebody wants them."""

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
        """Places that no model was trained on: the same for every seed, so that models are scored on the same walks."""
        return self._draw(self.world.test_places, seeds_of(0).test, self.experiment.test_slip)

    @cached_property
    def watched(self) -> World:  # type: ignore[override]
        """Others of the same kind, so that the test decides nothing."""
        return self._draw(self.world.validation_places, seeds_of(0).validation, self.experiment.test_slip)

    @cached_property
    def pool(self) -> Windows:
        """Clips to train on, the same for every process and after a resume."""
        seed, settings = seeds_of(self.experiment.seed).train, self.experiment.pool
        needed = settings.clips * settings.steps * math.prod(self.test_world.frame_shape)
        _require_memory(needed, self.device, "the pool of clips", "give fewer --pool.clips")
        world = self._draw(self.world.train_places, seed, self.experiment.slip)
        generator = torch.Generator(self.device).manual_seed(seed)
        return record_windows(world, self.walker, settings.clips, settings.steps, generator)

    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Windows of the pool, which knows the truth."""
        return self.pool(n, steps, generator)

    def _draw(self, count: int, seed: int, slip: SlipConfig) -> Rooms | Slipping:
        """Places from a seed, in which actions may slip."""
        return slipping(draw_rooms(self.world, count, seed, self.device), slip)


IN_MEMORY = 2**31
"""Bytes of frames up to which episodes are kept in memory; more are read while training."""


class OwnSetting(Setting):
    """Recorded episodes, a part of them held out."""

    hashed = "sha256"

    def __init__(self, experiment: OwnExperiment, store: Episodes, device: torch.device) -> None:
        self.experiment: OwnExperiment = experiment
        self.device, self.store, self.walker = device, store, nobody
        self.noun = experiment.hold_out
        self._parts = _require_episodes(experiment, store)
        trained, watched, tested = self._parts.counts
        self.places = Places(name_of(store), fingerprint_of(store), trained, tested, watched)
        self._failing: Failing | None = None
        if experiment.model.bumps:
            how = survey(store, self._parts.train).how
            self._failing = Failing(how.usual.to(device), how.shows.to(device))

    @cached_property
    def test_world(self) -> RecordedWorld:  # type: ignore[override]
        """Episodes that nothing was learned or chosen from."""
        return self._world(self._parts.test)

    @cached_property
    def watched(self) -> RecordedWorld:  # type: ignore[override]
        """Other held-out episodes, so that the test decides nothing."""
        return self._world(self._parts.watch)

    @property
    def fitted_in(self) -> World:
        """Episodes that are not scored; windows of the test's own would overlap with those that are."""
        return self.watched

    @cached_property
    def train_world(self) -> RecordedWorld:
        """Episodes to learn from."""
        return self._world(self._parts.train)

    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Windows of the episodes to learn from, with the poses that were recorded."""
        return self.train_world.noticed(self.train_world.replay(n, steps, generator))

    def _world(self, which: Numbers) -> RecordedWorld:
        """Some of the episodes as a world."""
        experiment, store = self.experiment, self.store
        needed = int(store.lengths[which].sum()) * math.prod(store.kind.frame_shape)
        source: Source
        if self.device.type == "cpu" and needed > IN_MEMORY:
            source = StoreWindows(store, which, experiment.unit, experiment.from_start)
        else:
            _require_memory(needed, self.device, "these episodes", "record smaller frames, or train with --device cpu")
            source = Pool.of(store, which, self.device, experiment.unit, experiment.from_start)
        longest = int(store.lengths[which].max())
        return RecordedWorld(store.kind, source, longest, self.device, experiment.unit, self._failing)


def _require_episodes(experiment: OwnExperiment, store: Episodes) -> Split:
    """Refuse what cannot be learned from these episodes, or scored on them; returns which are for what."""
    name, motion, training = name_of(store), experiment.model.motion, experiment.training
    require(len(store) > 0, f"{name} holds no episodes yet; record or convert some first")
    size, learned = store.kind.pose_size, 3 if motion.has_heading else motion.state_size
    require(
        training.objective.displacement == 0 or size == learned,
        f"displacement is above 0, but poses of {name} have {size} numbers and a {motion.kind} motion needs {learned}; "
        "give --displacement 0 --evaluation.no-metric-poses",
    )
    parts = split(store.places, store.seeds, experiment.hold_out)
    asked: list[tuple[str, Numbers, str, CurriculumConfig | EvaluationConfig | ProspectConfig]] = [
        ("train on", parts.train, "", training.curriculum),
        ("watch", parts.watch, "evaluation.", experiment.evaluation),
        ("test", parts.test, "evaluation.", experiment.evaluation),
    ]
    if training.curriculum.prospect:
        asked.append(("search for the motion", parts.train, "prospect.", training.prospect))
    for what, which, prefix, settings in asked:
        needed, longest = settings.tau + settings.horizon, int(store.lengths[which].max())
        require(
            longest >= needed,
            f"episodes of {name} to {what} have up to {longest} steps, and {prefix}tau + {prefix}horizon is {needed}; "
            f"lower --{prefix}tau and --{prefix}horizon, or record longer episodes",
        )
    return parts


def name_of(store: Episodes) -> str:
    """What a store is called."""
    return str(getattr(store, "path", "the store"))


def fingerprint_of(store: Episodes) -> str:
    """Of the episodes that a store holds."""
    known = getattr(store, "fingerprint", None)
    held = repr((store.kind, store.lengths.tolist(), list(store.places), list(store.seeds)))
    return str(known) if known else hashlib.sha256(held.encode()).hexdigest()


def open_store(path: str) -> Episodes:
    """The store at a path."""
    require(bool(path), "there is nothing to learn from; give --data PATH, a store of recorded episodes")
    from gtmsm.episodes.store import Store

    return Store.open(Path(path))


def proposed(data: str, gpu: bool, store: Episodes | None = None) -> tuple[OwnExperiment, tuple[str, ...]]:
    """An experiment for the episodes at `data`, and why; of those held out, only lengths are looked at."""
    store = store or open_store(data)
    require(len(store) > 0, f"{data} holds no episodes yet; record or convert some first")
    by = hold_out_by(store.places)
    parts = split(store.places, store.seeds, by)
    most = min(int(store.lengths[part].max()) for part in (parts.watch, parts.test))
    proposal = propose(survey(store, parts.train), gpu, most)
    return changed(OwnExperiment, {"data": data, "hold_out": by, **proposal.changes}), proposal.reasons


def _require_memory(needed: int, device: torch.device, what: str, instead: str) -> None:
    """Refuse what the device has no memory for, before minutes are spent on filling it."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    sizes = f"needs {needed / 1e9:.1f} GB and there are {free / 1e9:.1f} free"
    require(needed < free, f"{what} {sizes}; {instead}")


def set_up(
    experiment: Experiment,
    device: torch.device,
    images: str | None = None,
    picture: Path | None = None,
    data: str | None = None,
) -> ImageWalkSetting | RoomsSetting | OwnSetting:
    """Open the worlds of an experiment; on other images than its own where they are given, or on a single picture; or
    on other recorded episodes."""
    if isinstance(experiment, OwnExperiment):
        require(images is None and picture is None, "recordings have no images; leave out --images and --picture")
        return OwnSetting(experiment, open_store(data or experiment.data), device)
    require(data is None, "this run is not about recorded episodes; leave out --data")
    if isinstance(experiment, ImageWalkExperiment):
        size = experiment.world.size
        only = None if picture is None else load_picture(picture, size)[None]
        loaded = load_images(images or experiment.images, size) if only is None else ImageSet(only, only, only, "", "")
        return ImageWalkSetting(experiment, loaded, device)
    if not isinstance(experiment, RoomsExperiment):
        raise InputError(f"a {type(experiment).__name__} has no world; use a preset of `gtmsm train`")
    require(images is None, "rooms have no images; leave out --images")
    require(picture is None, f"a run that walks through rooms cannot show {picture}; leave out --picture")
    return RoomsSetting(experiment, device)
