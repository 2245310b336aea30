"""Record clips of one environment, one for each seed: each is checked and stored, or dropped with a reason."""

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from gtmsm.config import require
from gtmsm.episodes.engines import said
from gtmsm.episodes.environment import Environment, Source
from gtmsm.episodes.episode import Episode
from gtmsm.episodes.own_loop import FEWEST, Recorder
from gtmsm.episodes.store import ROOT, Store, writers_of
from gtmsm.episodes.walkers import make_walker
from gtmsm.errors import InputError

MOST_BYTES = 2**25
"""Maximum bytes of frames that wait to be stored."""
SOONEST, LATEST = 0.5, 10.0
"""Bounds, in seconds, of the time that clips wait to be stored: a twentieth of the time so far."""


@dataclass(frozen=True)
class Job:
    """Settings of a process that records."""

    source: Source
    walker: str
    out: Path
    shortest: int = FEWEST
    """Steps below which a clip is dropped."""


@dataclass(frozen=True)
class Outcome:
    """Result of recording a clip."""

    seed: int
    steps: int = 0
    reason: str = ""
    """Why it was dropped; empty if it was stored."""
    note: str = ""
    """What is worth knowing about the environment, once it has been seen."""


class Clips:
    """Records clips in an environment of its own, as one writer of the store.

    Clips are stored several at a time, so that a store of many has few files: at first twice a second, later every few
    seconds or when there are `MOST_BYTES`. If the process is killed, those that wait are lost, and recorded again.
    """

    def __init__(self, job: Job, writer: str, beat: Callable[[], None] = lambda: None) -> None:
        """`beat` is called before anything that may hang."""
        self.job, self.writer, self.beat = job, writer, beat
        self._recorder: Recorder | None = None
        self._walked: list[Episode] = []
        self._note = ""
        self._began = self._stored = time.monotonic()
        beat()
        self._environment: Environment | None = Environment(job.source)
        make_walker(job.walker, self._environment.actions)  # refuse one that cannot be loaded before any clip

    def record(self, seed: int) -> list[Outcome]:
        """Record the clip of a seed; return the outcomes that are final by now.

        An error in the environment or the walker costs this clip only.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the environment or the walker
                steps = self._walk(seed)
        except _StoreError as problem:
            raise InputError(str(problem)) from None
        except Exception as problem:
            self.close()  # its state is unknown
            return [Outcome(seed, reason=f"{said(problem)}{_raised_in(problem)}")]
        if steps < self.job.shortest:
            return [Outcome(seed, steps, f"it ended after fewer than {self.job.shortest} steps (--shortest)")]
        now, waiting = time.monotonic(), sum(episode.frames.nbytes for episode in self._walked)
        patience = min(max((now - self._began) / 20, SOONEST), LATEST)
        return self.store() if waiting > MOST_BYTES or now - self._stored > patience else []

    def store(self) -> list[Outcome]:
        """Store the clips that wait; return their outcomes."""
        walked, self._walked, self._stored = self._walked, [], time.monotonic()
        if walked and self._recorder is not None:
            self.beat()
            self._recorder.store.append(*walked)
        return [Outcome(episode.seed, episode.steps, note=self._note) for episode in walked]

    def _walk(self, seed: int) -> int:
        """Walk until the episode ends or is long enough; return its number of steps."""
        self.beat()
        environment = self._environment = self._environment or Environment(self.job.source)
        walker, rng = make_walker(self.job.walker, environment.actions), np.random.default_rng([seed, 1])
        seen = environment.reset(seed)
        self._note = environment.note
        recorder = self._ready(environment, seen.frame)
        recorder.reset(seen.frame, seen.pose, place=seen.place, seed=seed)
        steps = 0
        while steps < self.job.source.steps and not seen.ended:
            self.beat()
            action = environment.actions.taken(walker(seen.observation, seen.frame, rng))
            seen = environment.step(action)
            if not seen.blank:
                recorder.step(environment.actions.stored(action), seen.frame, seen.pose)
                steps += 1
        if (episode := recorder.finished()) is not None and steps >= self.job.shortest:
            episode.require(recorder.kind)
            self._walked.append(episode)
        return steps

    def _ready(self, environment: Environment, frame: np.ndarray) -> Recorder:
        """Return the recorder. It is made with the first frame, which determines what all clips share."""
        if self._recorder is None:
            try:
                kind = environment.kind(frame)
                self._recorder = Recorder(Store.create(self.job.out, kind, self.writer), kind)
            except Exception as problem:
                raise _StoreError(said(problem)) from problem
        self._recorder.finished()  # discard what a failed clip has left
        return self._recorder

    def close(self) -> None:
        """Close the environment."""
        if self._environment is not None:
            self.beat()
            self._environment.close()
        self._environment = None

    def end(self) -> None:
        """Close the environment and the store."""
        self.close()
        if self._recorder is not None:
            self._recorder.store.close()


def stored_clips(job: Job, writers: str) -> dict[int, int]:
    """Steps of each clip of a store by its seed, after listing what `writers`, such as "0-*", left unlisted.

    A process that is killed between its last two writes leaves a complete clip that no manifest lists yet.
    """
    path = job.out
    if not (path / ROOT).exists():
        return {}
    store = Store.open(path)
    there, asked = store.kind.environment, job.source.name
    require(there == asked, f"{path} holds clips of {there}, not of {asked}; choose another --out")
    for writer in writers_of(path):
        if fnmatch(writer, writers):
            Store.create(path, store.kind, writer).close()
    store.refresh()
    return dict(zip(map(int, store.seeds), map(int, store.lengths), strict=True))


def _raised_in(problem: BaseException) -> str:
    """File and line in which an error was raised; empty for errors of ours, which say what is wrong."""
    steps = traceback.extract_tb(problem.__traceback__)
    if isinstance(problem, InputError) or not steps:
        return ""
    return f", in {Path(steps[-1].filename).name}:{steps[-1].lineno}"


class _StoreError(Exception):
    """The store cannot be written: this concerns all clips, so recording cannot continue."""
