"""Experiments on recorded episodes: set up on a device, and proposed from the episodes."""

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
"""Maximum bytes of frames that are kept in memory on a CPU; larger stores are read while training."""


class OwnSetting(Setting):
    """Recorded episodes, some of them held out."""

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
        """Test episodes, which neither training nor any choice has used."""
        return self._world(self._parts.test)

    @cached_property
    def watched(self) -> RecordedWorld:  # type: ignore[override]
        """Validation episodes: other held-out ones, so that the test episodes decide nothing."""
        return self._world(self._parts.watch)

    @property
    def fitted_in(self) -> World:
        """The validation episodes: windows of the test episodes would overlap with those that are scored."""
        return self.watched

    @cached_property
    def train_world(self) -> RecordedWorld:
        """Training episodes."""
        return self._world(self._parts.train)

    def source(self, n: int, steps: int, generator: torch.Generator, truth: bool = False) -> Clip:
        """Windows of the training episodes, with the recorded poses."""
        return self.train_world.noticed(self.train_world.replay(n, steps, generator))

    def _world(self, which: Numbers) -> RecordedWorld:
        """The world of some of the episodes."""
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
    """Refuse an experiment that these episodes do not suffice for; return the split into training and held-out ones."""
    name, motion, training = name_of(store), experiment.model.motion, experiment.training
    require(len(store) > 0, f"{name} holds no episodes yet; record or convert some first")
    size, learned = store.kind.pose_size, 3 if motion.has_heading else motion.state_size
    require(
        training.objective.displacement == 0 or size == learned,
        f"displacement is above 0, but poses of {name} have {size} numbers and a {motion.kind} motion needs {learned}; "
        "give recordings with such poses, or train with --displacement 0 --evaluation.no-metric-poses",
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
    """The name of a store: its path if it has one."""
    return str(getattr(store, "path", "the store"))


def fingerprint_of(store: Episodes) -> str:
    """A hash of the episodes in a store."""
    known = getattr(store, "fingerprint", None)
    held = repr((store.kind, store.lengths.tolist(), list(store.places), list(store.seeds)))
    return str(known) if known else hashlib.sha256(held.encode()).hexdigest()


def open_store(path: str) -> Episodes:
    """Open the store at a path."""
    require(bool(path), "there is nothing to learn from; give --data PATH, a store of recorded episodes")
    from gtmsm.episodes.store import Store

    return Store.open(Path(path))


def proposed(data: str, gpu: bool, store: Episodes | None = None) -> tuple[OwnExperiment, tuple[str, ...]]:
    """Propose an experiment for the episodes at `data`; return it with reasons. Of held-out episodes only lengths are
    used."""
    store = store or open_store(data)
    require(len(store) > 0, f"{data} holds no episodes yet; record or convert some first")
    by = hold_out_by(store.places)
    parts = split(store.places, store.seeds, by)
    most = min(int(store.lengths[part].max()) for part in (parts.watch, parts.test))
    proposal = propose(survey(store, parts.train), gpu, most)
    return changed(OwnExperiment, {"data": data, "hold_out": by, **proposal.changes}), proposal.reasons


def as_chosen(reasons: tuple[str, ...], proposal: Experiment, chosen: Experiment) -> tuple[str, ...]:
    """The reasons of a proposal, adjusted if the experiment chosen does not learn from displacements."""
    learns, wanted = (one.training.objective.displacement > 0 for one in (proposal, chosen))
    if wanted or not learns:
        return reasons
    why, _, sizes = reasons
    return why, "--displacement 0: your poses are not learned from, and only score what is found", sizes
