"""Worker processes that record in parallel; one that crashes or hangs costs a clip and is replaced.

A worker holds one end of a pipe whose other end is its parent's: when the parent ends, in whatever way, the worker does
too. It also holds the parent's lock on the recording, so that no process continues it while an orphan still writes. It
leads a process group of its own, which is killed with it: engines such as ViZDoom are processes, too.
"""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from gtmsm.episodes.clips import Clips, Job, Outcome, stored_clips
from gtmsm.episodes.engines import said
from gtmsm.errors import InputError

END = -1
"""Sent instead of a seed: there is no more work."""
POLL = 0.2
"""Seconds between checks of the clock and of signals."""
FALSE_STARTS = 3
"""Number of workers in a row that end before they are ready, after which recording is given up."""
GOODBYE = 5.0
"""Seconds that workers are given to finish and to end."""


def record_side_by_side(
    job: Job, seeds: Iterable[int], writers: list[str], limit: float, lock: int, stopped: Callable[[], bool]
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each clip as soon as it is known; a clip without progress for `limit` seconds is dropped."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # the library is imported once, not by each worker
    waiting, false_starts, until = deque(seeds), 0, math.inf
    team = [_Worker(context, job, writer, lock) for writer in writers[: len(waiting)]]
    try:
        while (waiting or any(worker.given for worker in team)) and time.monotonic() < until:
            if stopped() and until == math.inf:
                waiting.clear()
                until = time.monotonic() + GOODBYE  # time to finish and store clips
            wait([worker.pipe for worker in team], timeout=POLL)
            for i, worker in enumerate(team):
                yield from worker.heard()
                if (trouble := worker.trouble(limit)) is not None:
                    false_starts = 0 if worker.is_ready else false_starts + 1
                    if false_starts == FALSE_STARTS:
                        raise InputError(f"{job.source.environment} cannot be made: {trouble}")
                    worker.end(0)
                    there = stored_clips(job, worker.writer)
                    for seed in worker.given:
                        if seed in there:  # stored, but not reported
                            yield Outcome(seed, there[seed])
                        elif seed == worker.seed:
                            yield Outcome(seed, reason=trouble)
                        else:
                            waiting.appendleft(seed)
                    team[i] = worker = _Worker(context, job, worker.writer, lock)
                if worker.is_free:
                    worker.give(waiting.popleft() if waiting else None)
    finally:
        for worker in team:
            worker.end(GOODBYE if worker.is_free else 0)


class _Worker:
    """A process that records one clip after another, as its parent sees it."""

    def __init__(self, context: Any, job: Job, writer: str, lock: int) -> None:
        self.writer, self.is_ready, self._is_gone = writer, False, False
        self.seed: int | None = None
        """Seed of the clip that it is recording."""
        self.given: list[int] = []
        """Seeds of clips that were given to it and whose outcome is not known yet."""
        self._stores = False
        self._beat = context.RawValue("d", time.monotonic())
        self.pipe, theirs = context.Pipe()
        their_lifeline, self.lifeline = context.Pipe(duplex=False)
        held = Connection(os.dup(lock))
        arguments = (job, writer, theirs, self._beat, their_lifeline, held)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        for end in (theirs, their_lifeline, held):
            end.close()

    @property
    def is_free(self) -> bool:
        """Whether it waits for a clip."""
        return self.is_ready and self.seed is None and not self._stores

    def heard(self) -> list[Outcome]:
        """Outcomes reported since the last call; an error that concerns all clips is raised."""
        try:
            message = self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            self._is_gone, message = True, None
        if isinstance(message, InputError):
            raise message
        if message is None:
            return []
        self.is_ready, self.seed, self._stores = True, None, False
        settled = {outcome.seed for outcome in message}
        self.given = [seed for seed in self.given if seed not in settled]
        return message

    def give(self, seed: int | None) -> None:
        """Send the seed of the next clip; None: there is none, so the clips that wait are to be stored."""
        if seed is not None:
            self.given.append(seed)
        elif not self.given:
            return
        self.seed, self._stores, self._beat.value = seed, seed is None, time.monotonic()
        with suppress(OSError):  # it has ended, which `heard` notices
            self.pipe.send(seed)

    def trouble(self, limit: float) -> str | None:
        """What is wrong with the worker; None if nothing is."""
        if self._is_gone:
            self._process.join(GOODBYE)
            code = self._process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return f"its process ended ({how})"
        busy = not self.is_free
        if busy and time.monotonic() - self._beat.value > limit:
            return f"nothing happened for {limit:g} s"
        return None

    def end(self, patience: float) -> None:
        """End the worker and the processes that it started; what it has appended is stored, whatever it is doing."""
        with suppress(OSError):
            self.pipe.send(END)
        self._process.join(patience)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.pipe.close()
        self.lifeline.close()


def _work(job: Job, writer: str, pipe: Connection, beat: Any, lifeline: Connection, lock: Connection) -> None:
    """Main function of a worker; `lock` is held open and never used."""
    os.setpgid(0, 0)  # Ctrl-C does not reach it: the parent decides
    for descriptor in range(3, 1024):
        with suppress(OSError):
            os.set_inheritable(descriptor, False)  # an engine that outlives it must not hold the lock
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    os.dup2(2, 1)  # keeps prints of environments out of the command's output

    def note() -> None:
        beat.value = time.monotonic()

    try:
        clips = Clips(job, writer, note)
        pipe.send([])
        while (seed := pipe.recv()) != END:
            pipe.send(clips.store() if seed is None else clips.record(seed))
        clips.end()
    except InputError as problem:
        pipe.send(problem)
    except (EOFError, OSError):
        pass
    except BaseException as problem:
        pipe.send(InputError(f"{job.source.environment}: {said(problem)}"))
    sys.stderr.flush()


def _end_with_parent(lifeline: Connection) -> None:
    """Wait for the other end to close; then kill this process and all that the environment has started."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os.killpg(0, signal.SIGKILL)
