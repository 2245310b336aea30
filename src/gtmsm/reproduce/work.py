"""Rows and seeds as a list of work: done one after the other, or by several processes."""

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

GRACE = 20
"""Seconds in which a training that lost its parent may save itself."""
NO_MEMORY = (NoMemoryError, torch.OutOfMemoryError, BrokenProcessPool)
"""Errors of trainings that may succeed beside fewer others; who takes too much of the machine's memory is killed."""


@dataclass(frozen=True)
class Order:
    """What is to be made, and how."""

    out: Path
    quick: bool = False
    device: Device = "auto"
    images: str | None = None
    workers: int = 1
    sweep: tuple[float, ...] = ()
    """Factors of the learning rate that are tried on validation places before seeds are trained; empty: none."""
    share: float = 1.0
    """Of the updates of every row."""


@dataclass(frozen=True)
class Failed:
    """A row that could not be made."""

    row: str
    seed: int
    why: str


@dataclass(frozen=True)
class _Job:
    """A row and a seed to be made; with a factor, only a learning rate to be tried by them."""

    row: Row
    seed: int
    factor: float | None = None
    first: bool = True
    """Whether no other seed of the row comes before it."""

    def makes(self, order: Order) -> Path:
        """The file that is there once it is done."""
        if self.factor is None:
            return result_path(order.out, self.row.name, self.seed)
        return sweep_path(order.out, self.row.name, self.factor)

    def needs(self, order: Order) -> list[Path]:
        """Files that must be there before: of the row whose weights it needs, and of learning rates that are tried."""
        before = [result_path(order.out, self.row.needs, self.seed)] if self.row.needs else []
        if self.factor is None and not self.row.is_ablation:
            before += [sweep_path(order.out, self.row.name, factor) for factor in order.sweep]
        return before

    def make(self, order: Order) -> None:
        """Train, score and write the result."""
        how = order.out, order.quick, order.device, order.images, order.share
        trial = Trial(self.row, self.seed, *how, self.first)
        trial.run() if self.factor is None else trial.try_rate(self.factor)

    def __str__(self) -> str:
        tried = "" if self.factor is None else f", learning rate x {self.factor:g}"
        return f"{self.row.name}, seed {self.seed}{tried}"


def reproduce(
    rows: Sequence[Row], seeds: Sequence[int] | None, order: Order, say: Callable[[str], None]
) -> list[Failed]:
    """Make the results that are not there yet; returns what failed. Without `seeds`, as many as a row asks for."""
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
    """Seed by seed, so that a table is there early; before each row what it is built on."""
    chosen = {row.name: row for row in rows}
    for row in rows:
        if row.needs and row.needs not in chosen:
            chosen[row.needs] = ROWS[row.needs]
    ordered = sorted(chosen.values(), key=lambda row: bool(row.needs))
    counts = {row.name: range(1 if order.quick else row.seeds) if seeds is None else seeds for row in ordered}
    for row in ordered:  # a row that others are built on is needed for their seeds, too
        if row.needs:
            counts[row.needs] = sorted({*counts[row.needs], *counts[row.name], *([0] if order.sweep else [])})
    for row in ordered:
        if not (row.needs or row.is_ablation):
            yield from (_Job(row, 0, factor) for factor in order.sweep)
    for number, seed in enumerate(sorted({seed for some in counts.values() for seed in some})):
        for row in ordered:
            if row.needs and number == 0:  # its weights are there only now
                yield from (_Job(row, 0, factor) for factor in order.sweep)
            if seed in counts[row.name]:
                yield _Job(row, seed, first=seed == min(counts[row.name]))


def _one_by_one(jobs: Sequence[_Job], order: Order, say: Callable[[str], None]) -> list[Failed]:
    """In this process."""
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
    """By processes, each of which makes one result after the other and writes what is said to a log.

    Where memory runs out, a result is made again beside fewer others.
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
                except BrokenProcessPool:  # one was killed just now: those at work tell of it below
                    pool = pool if running else _processes(order)
                    break
                waiting.remove(job)
                running[future] = job, time.monotonic(), most > 1
            if not (running or ready):  # what is left waits for results that nobody makes
                failed += [Failed(job.row.name, job.seed, "a row that it is built on was not made") for job in waiting]
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                if future not in running:
                    continue  # it ended with another
                job, began, beside_others = running.pop(future)
                problem, again, beside = future.exception(), [job], len(running)
                if isinstance(problem, BrokenProcessPool):  # one was killed, and all others end with it
                    again, beside = [job, *(other for other, *_ in running.values())], most
                    running.clear()
                    pool.shutdown()
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
    """Spawned, since a process that has used a GPU cannot be forked."""
    return ProcessPoolExecutor(order.workers, get_context("spawn"), _begin, (order.workers,))


def _begin(workers: int) -> None:
    """A process that shares the cores with the others, and ends with the one that started it."""
    # Or fewer, as OMP_NUM_THREADS says: several commands beside each other would take all cores each.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // workers)))
    started_by = parent_process()

    def follow() -> None:
        if started_by is not None:
            started_by.join()
            os.kill(os.getpid(), signal.SIGTERM)  # a training then leaves a checkpoint ...
            time.sleep(GRACE)
            os._exit(1)  # ... and nobody is there to give this process more to do

    Thread(target=follow, daemon=True).start()


def _logged(job: _Job, order: Order) -> None:
    """Make one result in another process."""
    with _log(job, order).open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            job.make(order)
        except Exception:
            traceback.print_exc()
            raise
        finally:
            gc.collect()
            torch.cuda.empty_cache()  # other processes need what this one does not use any more


def _log(job: _Job, order: Order) -> Path:
    return order.out / "logs" / f"{job.makes(order).stem}.txt"
