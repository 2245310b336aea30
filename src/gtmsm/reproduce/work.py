"""Rows and seeds as a list of jobs, run one after the other or several at once."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from errno import ENOMEM
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread

import torch

from gtmsm.config import Device, require, require_seed
from gtmsm.errors import LONGEST, InputError, NoMemoryError, shortened
from gtmsm.files import read_json, require_folder
from gtmsm.reproduce.results import result_path
from gtmsm.reproduce.rows import ROWS, Row
from gtmsm.reproduce.trial import Interrupted, Trial, sweep_path
from gtmsm.training.engine import cores

GRACE = 20
"""Seconds that a training whose parent process ended has to write a checkpoint."""
NO_MEMORY = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "_STATUS_ALLOC_FAILED")
"""Words of PyTorch's errors where no memory is left: of CUDA and MPS, of CPUs (three), and of CUDA's libraries."""


@dataclass(frozen=True)
class Order:
    """Where and how results are to be made."""

    out: Path
    quick: bool = False
    device: Device = "auto"
    images: str | None = None
    workers: int = 1
    sweep: tuple[float, ...] = ()
    """Factors of the learning rate to try on validation places before seeds are trained; empty: none."""
    share: float = 1.0
    """Fraction of every row's updates."""


@dataclass(frozen=True)
class Failed:
    """A row and seed that failed, and why."""

    row: str
    seed: int
    why: str


@dataclass(frozen=True)
class _Job:
    """A row and a seed to train and score; with `factor`, only to try a learning rate."""

    row: Row
    seed: int
    factor: float | None = None
    first: bool = True
    """Whether this is the first seed of its row."""

    def makes(self, order: Order) -> Path:
        """The file that the job writes."""
        if self.factor is None:
            return result_path(order.out, self.row.name, self.seed)
        return sweep_path(order.out, self.row.name, self.factor)

    def needs(self, order: Order) -> list[Path]:
        """Files that must exist before: the result of the row whose weights it uses, and the learning rates' scores."""
        before = [result_path(order.out, self.row.needs, self.seed)] if self.row.needs else []
        if self.factor is None and not self.row.is_ablation:
            before += [sweep_path(order.out, self.row.name, factor) for factor in order.sweep]
        return before

    def make(self, order: Order) -> None:
        """Train, score and write the file."""
        how = order.out, order.quick, order.device, order.images, order.share
        trial = Trial(self.row, self.seed, *how, self.first, order.sweep)
        trial.run() if self.factor is None else trial.try_rate(self.factor)

    def require_same(self, order: Order) -> None:
        """Refuse a file that is there already if it is of another size, share or images than ordered."""
        path = self.makes(order)
        there = read_json(path, "remove it, so that it is made again")
        scored = there.get("set") or next(iter(there.get("scores") or [""]))
        updates = self.row.experiment(self.seed, order.quick, order.images, order.share).training.updates
        asked = {"toy size": order.quick, "updates": updates, "set": self.row.sets(order.images)[0]}
        found = {"toy size": there.get("quick", order.quick), "updates": there.get("updates", updates), "set": scored}
        unlike = "; ".join(f"{name} {found[name]}, not {asked[name]}" for name in asked if found[name] != asked[name])
        require(not unlike, f"{path} is of another order ({unlike}); give another --out, or remove it")

    def __str__(self) -> str:
        tried = "" if self.factor is None else f", learning rate x {self.factor:g}"
        return f"{self.row.name}, seed {self.seed}{tried}"


def reproduce(
    rows: Sequence[Row], seeds: Sequence[int] | None, order: Order, say: Callable[[str], None]
) -> list[Failed]:
    """Make the missing results; return what failed. Without `seeds`, as many as a row asks for (--quick: one)."""
    require_folder(order.out)
    require(order.workers >= 1, f"workers is {order.workers}; give at least 1")
    require(0 < order.share <= 1, f"share is {order.share}; give a share of the updates above 0, up to 1")
    for seed in seeds or ():
        require_seed(seed)
    jobs = list(_jobs(rows, seeds, order))
    there = [job for job in jobs if job.makes(order).exists()]
    left = [job for job in jobs if job not in there]
    for job in there:
        job.require_same(order)
    if there:
        say(f"{len(there)} of {len(jobs)} results are there already and stay as they are")
    (order.out / "logs").mkdir(parents=True, exist_ok=True)
    return _together(left, order, say) if order.workers > 1 else _one_by_one(left, order, say)


def lacks_memory(error: Exception) -> bool:
    """Whether an error says that no memory was left: the same may work with fewer jobs at once."""
    if isinstance(error, OSError):
        return error.errno == ENOMEM
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return said or isinstance(error, NoMemoryError | MemoryError | torch.OutOfMemoryError)


def _jobs(rows: Sequence[Row], seeds: Sequence[int] | None, order: Order) -> Iterator[_Job]:
    """Jobs seed by seed, so that a first table is complete early; a row comes after the row whose weights it uses."""
    chosen = {row.name: row for row in rows}
    for row in rows:
        if row.needs and row.needs not in chosen:
            chosen[row.needs] = ROWS[row.needs]
    ordered = sorted(chosen.values(), key=lambda row: bool(row.needs))
    counts = {row.name: range(1 if order.quick else row.seeds) if seeds is None else seeds for row in ordered}
    for row in ordered:  # a row whose weights others use is needed for their seeds, too
        if row.needs:
            counts[row.needs] = sorted({*counts[row.needs], *counts[row.name], *([0] if order.sweep else [])})
    for row in ordered:
        if not (row.needs or row.is_ablation):
            yield from (_Job(row, 0, factor) for factor in order.sweep)
    for number, seed in enumerate(sorted({seed for some in counts.values() for seed in some})):
        for row in ordered:
            if row.needs and number == 0:  # only after the row whose weights it uses
                yield from (_Job(row, 0, factor) for factor in order.sweep)
            if seed in counts[row.name]:
                yield _Job(row, seed, first=seed == min(counts[row.name]))


def _one_by_one(jobs: Sequence[_Job], order: Order, say: Callable[[str], None]) -> list[Failed]:
    """Run the jobs in this process."""
    failed: list[Failed] = []
    for number, job in enumerate(jobs):
        if missing := [path for path in job.needs(order) if not path.exists()]:
            failed.append(Failed(job.row.name, job.seed, f"it needs {missing[0].name}, which was not made"))
            continue
        began, went = time.monotonic(), ""
        try:
            job.make(order)
        except Interrupted:
            raise
        except Exception as problem:
            if not (isinstance(problem, InputError) or lacks_memory(problem)):
                raise
            failed.append(Failed(job.row.name, job.seed, _Problem.of(problem).why))
            went = "failed after "
        say(f"{job}: {went}{time.monotonic() - began:.0f} s ({number + 1} of {len(jobs)})")
    return failed


def _together(jobs: Sequence[_Job], order: Order, say: Callable[[str], None]) -> list[Failed]:
    """Run each job in a process of its own, several at once, with its output in a log file.

    A job that runs out of memory is run again, from then on with fewer jobs at once. If that happens to it twice, the
    number stays, and the job is run alone when no other can run.
    """
    waiting, failed, done, most = list(jobs), list[Failed](), 0, min(order.workers, len(jobs))
    threads = max(1, cores() // max(1, most))
    running, refused, held = list[_Running](), list[_Job](), list[_Job]()
    try:
        while waiting or running or held:
            ready = [job for job in waiting if all(path.exists() for path in job.needs(order))]
            for job in ready[: max(0, most - len(running))]:
                waiting.remove(job)
                running.append(_Running.begin(job, order, threads, most > 1))
            if held and not running:
                running.append(_Running.begin(held.pop(0), order, threads, False))
            if not running:  # the remaining jobs wait for results that failed
                failed += [Failed(job.row.name, job.seed, "a row that it is built on was not made") for job in waiting]
                break
            wait([one.process.sentinel for one in running])
            for one in [one for one in running if not one.process.is_alive()]:
                running.remove(one)
                problem = one.problem(order)
                if problem is not None and problem.no_memory and one.beside_others:
                    if one.job in refused:
                        held.append(one.job)
                        say(f"{one.job}: no memory was left again; it is made alone, after the others")
                        continue
                    most = max(1, min(most - 1, len(running)))
                    refused.append(one.job)
                    waiting.insert(0, one.job)
                    say(f"{one.job}: no memory was left; it is made again, and at most {most} at once from now on")
                    continue
                done += 1
                if problem is not None:
                    failed.append(Failed(one.job.row.name, one.job.seed, f"{problem.why} (see {_log(one.job, order)})"))
                went = "" if problem is None else "failed after "
                say(f"{one.job}: {went}{time.monotonic() - one.began:.0f} s ({done} of {len(jobs)})")
    finally:
        for one in running:
            one.process.terminate()  # a training then leaves a checkpoint
        for one in running:
            one.process.join()
    return failed


@dataclass(frozen=True)
class _Problem:
    """Why a job failed."""

    no_memory: bool
    """Whether it may succeed with fewer jobs at once."""
    why: str

    @classmethod
    def of(cls, error: Exception) -> "_Problem":
        """What an error says, short enough for a pipe: a longer message would wait there for the end of its process."""
        return cls(lacks_memory(error), shortened(str(error) or type(error).__name__, LONGEST))


@dataclass(frozen=True)
class _Running:
    """A job in a process of its own."""

    job: _Job
    process: SpawnProcess
    problems: Connection
    """Receives the `_Problem` of the job, if it fails."""
    began: float
    beside_others: bool

    @classmethod
    def begin(cls, job: _Job, order: Order, threads: int, beside_others: bool) -> "_Running":
        """Start the process: spawned, since a process that has used a GPU cannot be forked."""
        spawn = get_context("spawn")
        problems, tell = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_run, args=(job, order, threads, tell))
        process.start()
        tell.close()
        return cls(job, process, problems, time.monotonic(), beside_others)

    def problem(self, order: Order) -> _Problem | None:
        """Why the job of an ended process failed; None if it succeeded."""
        self.process.join()
        try:
            return self.problems.recv()
        except (EOFError, OSError):  # it has told of none, or was killed while it did
            code = self.process.exitcode
        if self.job.makes(order).exists():
            return None
        # The system kills a process when no memory is left.
        return _Problem(code == -signal.SIGKILL, f"its process ended with exit code {code}")


def _run(job: _Job, order: Order, threads: int, tell: Connection) -> None:
    """Run a job in this new process, with its output in the log file."""
    # Fewer threads if OMP_NUM_THREADS says so: several commands at once would otherwise each use all cores.
    torch.set_num_threads(min(torch.get_num_threads(), threads))
    Thread(target=_end_with_parent, daemon=True).start()
    with _log(job, order).open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            job.make(order)
        except Exception as problem:
            traceback.print_exc()
            with suppress(BrokenPipeError):  # the parent process has ended
                tell.send(_Problem.of(problem))


def _end_with_parent() -> None:
    """Wait for the end of the parent process, and then end this one."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # a training then leaves a checkpoint
    time.sleep(GRACE)
    os._exit(1)


def _log(job: _Job, order: Order) -> Path:
    return order.out / "logs" / f"{job.makes(order).stem}.txt"
