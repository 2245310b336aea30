"""An experiment on recorded episodes, set up on a device, and one proposed for them."""

import hashlib
import math
from functools import cached_property
from pathlib import Path

import torch

from gtmsm.config import changed, require
from gtmsm.data.clip import Clip, Source
from gtmsm.episodes.pool import Episodes, Pool
from gtmsm.episodes.propose import propose
from gtmsm.episodes.recorded import Failing, RecordedWorld, nobody
from gtmsm.episodes.split import Numbers, Split, hold_out_by, split
from gtmsm.episodes.survey import survey
from gtmsm.episodes.windows import StoreWindows
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments.experiment import Experiment, OwnExperiment
from gtmsm.experiments.setting import Places, Setting, require_memory
from gtmsm.training.curriculum import CurriculumConfig
from gtmsm.training.prospect import ProspectConfig
from gtmsm.worlds.world import World

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
            require_memory(needed, self.device, "these episodes", "record smaller frames, or train with --device cpu")
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


def as_chosen(reasons: tuple[str, ...], proposal: Experiment, chosen: Experiment) -> tuple[str, ...]:
    """The reasons of a proposal, but for what is no longer so: whoever wants no displacements is not told of any."""
    learns, wanted = (one.training.objective.displacement > 0 for one in (proposal, chosen))
    if wanted or not learns:
        return reasons
    why, _, sizes = reasons
    return why, "--displacement 0: your poses are not learned from, and only score what is found", sizes
