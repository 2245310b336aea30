"""Record any Gymnasium environment in several processes. Clips depend on their seeds only; recording is resumable."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtmsm.config import require, require_whole
from gtmsm.episodes.clips import Clips, Job, Outcome, stored_clips
from gtmsm.episodes.environment import Source
from gtmsm.episodes.own_loop import FEWEST, Recorder
from gtmsm.episodes.walkers import require_walker
from gtmsm.episodes.workers import record_side_by_side
from gtmsm.errors import InputError, shown
from gtmsm.files import LOCK, as_path, locked, require_folder
from gtmsm.interruption import interruptible

__all__ = ["Recorded", "Recorder", "record_environment"]

MOST_CLIPS = 10**6
"""Maximum clips of one seed: clip n of seed s has the environment's seed s * MOST_CLIPS + n."""
ALIKE = 5
"""Recording ends if the first clips, as many as this, fail for the same reason."""
LAST_SEED = 2**31 // MOST_CLIPS - 1
"""Largest seed: environments take seeds of 31 bits."""
BUSY = "{folder} is being recorded by process {by}; wait until it has ended, or choose another --out"
ORPHANS = 3.0
"""Seconds within which workers end after their parent was killed."""


@dataclass
class Recorded:
    """Result of a recording."""

    asked: int
    """Clips of this shard."""
    already: int = 0
    """Clips that were stored before."""
    stored: int = 0
    steps: int = 0
    dropped: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    signal: int = 0
    """The signal that interrupted it; 0: none."""
    note: str = ""
    """What is worth knowing about the environment."""
    in_vain: bool = False
    """Whether the first clips all failed for one reason, so that the others were not tried."""

    def add(self, outcome: Outcome) -> None:
        """Count the outcome of one more clip."""
        self.note = self.note or outcome.note
        if outcome.reason:
            self.dropped.append(outcome)
        else:
            self.stored, self.steps = self.stored + 1, self.steps + outcome.steps

    def fails_alike(self, seeds: Sequence[int]) -> bool:
        """Whether the clips of these seeds all failed for the same reason, other than that they were too short."""
        failed = {outcome.seed: outcome.reason for outcome in self.dropped if not outcome.steps}
        return set(seeds) <= set(failed) and len({failed[seed] for seed in seeds}) == 1

    @property
    def code(self) -> int:
        """Exit code: 0; 1 if a clip was dropped; 2 if all were; 128 + its number after a signal."""
        everything = bool(self.dropped) and not self.stored and not self.already
        return 128 + self.signal if self.signal else 2 if everything else 1 if self.dropped else 0

    def __str__(self) -> str:
        """Summary in a few lines."""
        rate = f", {self.steps / self.seconds:,.0f} steps a second" if self.seconds and self.steps else ""
        before = f", {self.already} were there already" if self.already else ""
        lines = [f"{self.stored} of {self.asked} clips recorded{before}: {self.steps:,} steps{rate}"]
        for reason, count in Counter(outcome.reason for outcome in self.dropped).most_common(5):
            alike = [outcome for outcome in self.dropped if outcome.reason == reason]
            lengths = [outcome.steps for outcome in alike if outcome.steps]
            lasted = f"; they lasted {min(lengths)} to {max(lengths)} steps" if lengths else ""
            lines.append(f"dropped {count}: {reason}{lasted} (first with seed {alike[0].seed})")
        if self.in_vain:
            lines.append(f"the first {ALIKE} clips failed alike, so the others were not tried")
        if self.note:
            lines.append(f"note: {self.note}")
        if self.signal:
            lines.append("interrupted; the same command again goes on")
        return "\n".join(lines)


def record_environment(
    env_id: str,
    out: Path | str,
    walker: str = "explore",
    clips: int = 100,
    steps: int = 300,
    shortest: int = 0,
    size: int = 32,
    workers: int = 1,
    shard: str = "0/1",
    env_kwargs: Mapping[str, Any] | None = None,
    pixels: str = "",
    pose: str = "",
    actions: tuple[str, ...] = (),
    seed: int = 0,
    limit: float = 60.0,
    tell: Callable[[str, float], None] | None = None,
) -> Recorded:
    """Record clips of an environment into the store at `out`; called again, continue where it stopped.

    A clip depends on its seed only, not on `workers`, `shard` or the clips before it. A clip is dropped and counted if
    the environment or the walker fails, if it ends before `shortest` steps (0: before `steps`), or if nothing happens
    for `limit` seconds; then the next one is recorded. With `workers` of 0, this process records: that starts faster,
    but a hang cannot be ended.
    """
    for name, value, least, most in (
        ("clips", clips, 1, MOST_CLIPS), ("steps", steps, FEWEST, 10**6), ("size", size, 0, 1024),
        ("shortest", shortest or FEWEST, FEWEST, steps),
        ("workers", workers, 0, 1024), ("seed", seed, 0, LAST_SEED),
    ):  # fmt: skip
        require_whole(name, value, least, most)
    require_walker(walker)
    require(limit > 0, f"limit is {limit}; give a number of seconds above 0")
    part, parts = _shard(shard)
    path = as_path(out)
    source = Source(env_id, dict(env_kwargs or {}), size, pixels, pose, tuple(actions), steps)
    job = Job(source, walker, path, shortest or steps)
    seeds = [seed * MOST_CLIPS + n for n in range(part, clips, parts)]
    done, began = Recorded(len(seeds)), time.monotonic()

    def stopped() -> bool:
        return asked.signal != 0 or done.in_vain

    with _alone(path, part, parts) as lock, interruptible() as asked:
        there = stored_clips(job, f"{part}-*")
        missing = [one for one in seeds if one not in there]
        done.already = len(seeds) - len(missing)
        first = missing[:ALIKE] if len(missing) > ALIKE and not done.already else []
        writers = [f"{part}-{i}" for i in range(max(workers, 1))]
        if workers:
            outcomes = record_side_by_side(job, missing, writers, limit, lock, stopped)
        else:
            outcomes = _record_here(job, missing, writers[0], stopped)
        with closing(outcomes):
            for count, outcome in enumerate(outcomes, 1):
                done.add(outcome)
                if tell is not None:
                    dropped = f", {len(done.dropped)} dropped" if done.dropped else ""
                    tell(f"clip {done.already + count} of {done.asked}{dropped}", count / len(missing))
                if outcome.seed in first:
                    done.in_vain = done.fails_alike(first)
        done.signal, done.seconds = asked.signal, time.monotonic() - began
    return done


def _record_here(
    job: Job, seeds: list[int], writer: str, stopped: Callable[[], bool]
) -> Generator[Outcome, None, None]:
    """Record one clip after another in this process."""
    clips = Clips(job, writer)
    try:
        for seed in seeds:
            if stopped():
                break
            yield from clips.record(seed)
        yield from clips.store()
    finally:
        clips.end()


def _shard(text: str) -> tuple[int, int]:
    """Parse a shard, such as "0/3" for the first of three."""
    first, _, second = str(text).partition("/")
    fits = first.isdecimal() and second.isdecimal() and len(text) < 12 and int(first) < int(second)
    require(fits, f'shard is {shown(text)}; give i/n, as "0/3" for the first of three')
    return int(first), int(second)


@contextmanager
def _alone(path: Path, part: int, parts: int) -> Iterator[int]:
    """Lock this shard against other processes; the workers of a process that was killed are given time to end."""
    require_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + ORPHANS
    with ExitStack() as held:
        held.callback(_remove_empty, path)
        while True:
            try:
                lock = held.enter_context(locked(path, BUSY, f"{LOCK}-recording-{part}-of-{parts}"))
                break
            except InputError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        yield lock


def _remove_empty(folder: Path) -> None:
    """Remove a folder into which nothing was recorded."""
    with suppress(OSError):
        folder.rmdir()
