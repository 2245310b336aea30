"""Rows and seeds as a list of jobs, run one after the other or by several worker processes."""

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import torch

from gtmsm.config import Device, require, require_seed
from gtmsm.errors import InputError, NoMemoryError
from gtmsm.files import require_folder
from gtmsm.reproduce.results import result_path
from gtmsm.reproduce.rows import ROWS, Row
from gtmsm.reproduce.trial import Interrupted, Trial, sweep_path
from gtmsm.training.engine import cores

GRACE = 20
"""Seconds that a training whose parent process ended has to write a checkpoint."""
NO_MEMORY = (NoMemoryError, torch.OutOfMemoryError, BrokenProcessPool)
"""Errors of trainings that may succeed with fewer worker processes; the system may kill one that runs out of memory."""


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
        trial = Trial(self.row, self.seed, *how, self.first)
        trial.run() if self.factor is None else trial.try_rate(self.factor)

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
    left = [job for job in jobs if not job.makes(order).exists()]
    if len(left) < len(jobs):
        say(f"{len(jobs) - len(left)} of {len(jobs)} results are there already and stay as they are")
    (order.out / "logs").mkdir(parents=True, exist_ok=True)
    return _together(left, order, say) if order.workers > 1 else _one_by_one(left, order, say)


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
        began = time.monotonic()
        try:
            job.make(order)
        except Interrupted:
            raise
        except (InputError, *NO_MEMORY) as problem:
            failed.append(Failed(job.row.name, job.seed, str(problem)))
        say(f"{job}: {time.monotonic() - began:.0f} s ({number + 1} of {len(jobs)})")
    return failed


def _together(jobs: Sequence[_Job], order: Order, say: Callable[[str], None]) -> list[Failed]:
    """Run the jobs in worker processes, with the output of each job in a log file.

    A job that runs out of memory is run again, from then on with fewer jobs at once.
    """
    waiting, failed, done, most = list(jobs), list[Failed](), 0, order.workers
    running: dict[Future[None], tuple[_Job, float, bool]] = {}
    pool = _processes(order)
    try:
        while waiting or running:
            ready = [job for job in waiting if all(path.exists() for path in job.needs(order))]
            for job in ready[: max(0, most - len(running))]:
                try:
                    future = pool.submit(_logged, job, order)
                except BrokenProcessPool:  # a worker process was just killed: handled below, by the running jobs
                    if not running:
                        pool.shutdown()
                        pool = _processes(order)
                    break
                waiting.remove(job)
                running[future] = job, time.monotonic(), most > 1
            if not (running or ready):  # the remaining jobs wait for results that failed
                failed += [Failed(job.row.name, job.seed, "a row that it is built on was not made") for job in waiting]
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                if future not in running:
                    continue  # removed with another future of a broken pool
                job, began, beside_others = running.pop(future)
                problem, again, beside = future.exception(), [job], len(running)
                if isinstance(problem, BrokenProcessPool):  # one worker process was killed, which ends all others
                    pool.shutdown()
                    ended = [other for other in running if other.exception() is not None]  # others succeeded
                    again, beside = [job, *(running.pop(other)[0] for other in ended)], most
                    pool = _processes(order)
                if isinstance(problem, NO_MEMORY) and beside_others:
                    most = max(1, min(most - 1, beside))
                    waiting[:0] = again
                    say(f"{job}: no memory was left; it is made again, and at most {most} at once from now on")
                    continue
                done += 1
                if problem is not None:
                    failed.append(Failed(job.row.name, job.seed, f"{problem} (see {_log(job, order)})"))
                say(f"{job}: {time.monotonic() - began:.0f} s ({done} of {len(jobs)})")
    finally:
        pool.shutdown()
    return failed


def _processes(order: Order) -> ProcessPoolExecutor:
    """A pool of worker processes; spawned, since a process that has used a GPU cannot be forked."""
    pool = ProcessPoolExecutor(order.workers, get_context("spawn"), _begin, (order.workers,))
    for _ in range(order.workers):  # start all now: the pool does not notice when the latest one is killed
        pool.submit(os.getpid)
    return pool


def _begin(workers: int) -> None:
    """Initialise a worker process: share the cores with the others, and end with the parent process."""
    # Fewer threads if OMP_NUM_THREADS says so: several commands at once would otherwise each use all cores.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() // workers)))
    started_by = parent_process()

    def follow() -> None:
        if started_by is not None:
            started_by.join()
            os.kill(os.getpid(), signal.SIGTERM)  # a training then leaves a checkpoint ...
            time.sleep(GRACE)
            os._exit(1)  # ... and there is no parent left to send more jobs

    Thread(target=follow, daemon=True).start()


def _logged(job: _Job, order: Order) -> None:
    """Run a job in a worker process, with its output in the log file."""
    with _log(job, order).open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            job.make(order)
        except Exception:
            traceback.print_exc()
            raise
        finally:
            gc.collect()
            torch.cuda.empty_cache()  # leave the memory to the other processes


def _log(job: _Job, order: Order) -> Path:
    return order.out / "logs" / f"{job.makes(order).stem}.txt"
