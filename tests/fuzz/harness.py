"""Cases in processes of their own: what is allowed, within which bounds, and a table of how it went.

Case n of a seed is always the same. Allowed are an answer, an InputError and exit code 2. Anything else is a failure: a
traceback, numbers that are none in an answer, a warning about numbers, a refusal longer than a person would read, more
than 10 seconds of computing, 30 of waiting in which nothing is computed, or more than 1 GB.
"""

import contextlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from fuzz import material, recordings
from fuzz.targets import CALLS, FILES

from gtmsm import InputError

SECONDS, WAITING, GIGABYTE = 10, 30, 1 << 30
WORDS = 1_500
"""Characters of the longest refusal."""
BATCH = 100
"""Cases for which a process lives."""
OURS = 70
"""Exit code of a process in which the fuzzer itself fails."""
TABLES: dict[str, list[Any]] = {"file": FILES, "call": CALLS, "recording": recordings.RECORDINGS}
Case = tuple[str, int]


@dataclass(frozen=True)
class Result:
    """How a case ended."""

    case: Case
    target: str
    outcome: str
    """answered, refused or failed."""
    why: str = ""
    call: str = ""
    seconds: float = 0.0
    memory: int = 0


class LateError(BaseException):
    """The case took too long."""


# ---- one case


def play(case: Case, seed: int, good: Path, folder: Path) -> Result:
    """Prepare a case in `folder`, a copy of `good`, and see how it ends."""
    rng = Random(f"{seed} {case}")
    table = TABLES[case[0]]
    # Each target once, and then by shares.
    target = table[case[1]] if case[1] < len(table) else rng.choices(table, [each.share for each in table])[0]
    shutil.copytree(good, folder)
    os.chdir(folder)
    call, words = target.prepare(rng)
    before, started = _fresh_peak(), time.monotonic()
    outcome, why = _outcome(call)
    seconds, used = time.monotonic() - started, max(0, _memory("VmHWM") - before)
    if used > GIGABYTE and outcome != "failed":
        outcome, why = "failed", "took more than 1 GB"
    return Result(case, target.name, outcome, why, words[:400], seconds, used)


def _outcome(call: Callable[[], Any]) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        _set_clocks(SECONDS, WAITING)
        try:
            answer = call()
            outcome, why = "answered", _not_finite(answer)
        except InputError as refusal:
            outcome, why = "refused", "" if len(str(refusal)) < WORDS else "a refusal of many words"
        except SystemExit as end:
            outcome, why = _ended(end.code, out.getvalue(), err.getvalue())
        except LateError:
            outcome, why = "failed", f"more than {SECONDS} s"
        except BaseException as problem:
            outcome, why = "failed", _place_of(problem)
        finally:
            _set_clocks(0, 0)
    numbers = [str(warning.message) for warning in warned if issubclass(warning.category, RuntimeWarning)]
    why = why or (f"warned: {numbers[0][:80]}" if numbers else "")
    return ("failed" if why else outcome), why


def _late(*_: object) -> None:
    raise LateError


def _idle(*_: object) -> None:
    """Late, unless it has been computing meanwhile: a busy machine is no failure."""
    global _computed
    if time.process_time() - _computed < 1:
        raise LateError
    _computed = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, WAITING)


_computed = 0.0


def _set_clocks(computing: int, waiting: int) -> None:
    global _computed
    _computed = time.process_time()
    for clock, alarm, seconds, end in (
        (signal.ITIMER_PROF, signal.SIGPROF, computing, _late),
        (signal.ITIMER_REAL, signal.SIGALRM, waiting, _idle),
    ):
        signal.signal(alarm, end)
        signal.setitimer(clock, seconds)


def _ended(code: object, out: str, err: str) -> tuple[str, str]:
    """What a command said when it ended."""
    if "LateError" in err:
        return "failed", f"more than {SECONDS} s"
    if "Traceback" in err:
        return "failed", f"printed a traceback: {err.strip().splitlines()[-1][:80]}"
    if code in (0, None):
        out = re.sub(r"left out: .*", "", out)  # folders called nan
        return "answered", "printed nan or inf" if re.search(r"(?i)(?<![\w[/])-?(nan|inf)\b(?!\w)", out) else ""
    if code != 2 or "gtmsm: " not in err:
        return "failed", f"exit code {code}"
    return "refused", "" if len(err) < 2 * WORDS else "a refusal of many words"


def _place_of(problem: BaseException) -> str:
    """An exception in a line: what, and the last place of ours."""
    ours = [frame for frame in traceback.extract_tb(problem.__traceback__) if "gtmsm" in frame.filename]
    where = f"{ours[-1].filename.split('gtmsm/')[-1]}:{ours[-1].name}" if ours else "?"
    return f"{type(problem).__name__} in {where}: {' '.join(str(problem).split())[:80]}"


def _not_finite(answer: Any) -> str:
    """Says so if a number in an answer is none."""
    for number in _numbers(answer):
        if not bool(np.isfinite(number).all()):
            return "an answer that is not finite"
    return ""


def _numbers(thing: Any) -> Iterator[Any]:
    """Every float in an answer."""
    if isinstance(thing, torch.Tensor):
        thing = thing.detach().double().numpy() if thing.device.type == "cpu" and not thing.is_complex() else None
    if isinstance(thing, float | np.ndarray) and np.asarray(thing).dtype.kind in "fc":
        yield thing
    elif isinstance(thing, dict | list | tuple):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from _numbers(part)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            yield from _numbers(getattr(thing, field.name, None))


def _memory(which: str) -> int:
    """Bytes of this process, by their name in /proc; 0 where there is none."""
    with contextlib.suppress(OSError):
        found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else 0
    return 0


def _fresh_peak() -> int:
    """Forget the largest size so far; returns the size now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


# ---- many cases


@dataclass
class Worker:
    """A process that plays a batch of cases, and what it has not told yet."""

    process: int
    pipe: int
    left: deque[Case]
    since: float
    heard: bytes = b""


def play_all(cases: Iterable[Case], seed: int, good: Path, scratch: Path, kept: Path, workers: int) -> Iterator[Result]:
    """All cases, `workers` at a time; folders of failures go to `kept`."""
    todo, busy = deque(cases), list[Worker]()
    while todo or busy:
        while todo and len(busy) < workers:
            batch = deque(todo.popleft() for _ in range(min(BATCH, len(todo))))
            busy.append(_start(batch, seed, good, scratch, kept))
        ready, _, _ = select.select([worker.pipe for worker in busy], [], [], 1)
        for worker in list(busy):
            more = os.read(worker.pipe, 1 << 16) if worker.pipe in ready else None
            if more:
                *lines, worker.heard = (worker.heard + more).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    worker.left.popleft()
                    worker.since = time.monotonic()
                    yield Result(**told | {"case": tuple(told["case"])})
            hangs = time.monotonic() - worker.since > 6 * WAITING
            if more == b"" or hangs:
                os.kill(worker.process, signal.SIGKILL)
                _, status = os.waitpid(worker.process, 0)
                os.close(worker.pipe)
                busy.remove(worker)
                if os.waitstatus_to_exitcode(status) == OURS:
                    sys.exit("the fuzzer itself is wrong")
                if worker.left:
                    why = "hangs, and no signal ends it" if hangs else f"the process died, status {status}"
                    yield Result(worker.left.popleft(), "?", "failed", why)
                    todo.extendleft(reversed(worker.left))


def _start(batch: deque[Case], seed: int, good: Path, scratch: Path, kept: Path) -> Worker:
    """A new process, with bounds of its own."""
    ear, mouth = os.pipe()
    process = os.fork()
    if process:
        os.close(mouth)
        return Worker(process, ear, batch, time.monotonic())
    os.close(ear)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + 5 * GIGABYTE // 4 or resource.RLIM_INFINITY,) * 2)
        for case in batch:
            folder = scratch / f"{os.getpid()}-{case[0]}-{case[1]}"
            result = play(case, seed, good, folder)
            os.chdir(scratch)
            if result.outcome == "failed":
                kept.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(place := kept / f"{seed}-{case[0]}-{case[1]}", ignore_errors=True)
                shutil.move(folder, place)
            shutil.rmtree(folder, ignore_errors=True)
            os.write(mouth, json.dumps(asdict(result)).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
        os._exit(OURS)
    os._exit(0)


def make_material(folder: Path, makers: tuple[Callable[[], None], ...] = (material.make, recordings.make)) -> None:
    """What cases begin with, made by a process of its own: threads that training starts must not be forked."""
    folder.mkdir(parents=True)
    if (process := os.fork()) == 0:
        try:
            os.chdir(folder)
            with contextlib.redirect_stdout(io.StringIO()):
                for make in makers:
                    make()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        sys.exit("the material of the cases could not be made")


# ---- the table


def table(results: list[Result]) -> str:
    """Markdown: a row for each target, and a last one for all."""
    lines = ["| | cases | answered | refused | failed | slowest | most memory |", "|---|---|---|---|---|---|---|"]
    groups = {name: [result for result in results if result.target == name] for name in _order(results)}
    for name, group in (groups | {"**all**": results}).items():
        counts = (sum(result.outcome == way for result in group) for way in ("answered", "refused", "failed"))
        slowest, most = max(result.seconds for result in group), max(result.memory for result in group)
        lines.append(f"| {name} | {len(group)} | {' | '.join(map(str, counts))} | {slowest:.1f} s | {most >> 20} MB |")
    return "\n".join(lines)


def _order(results: list[Result]) -> list[str]:
    listed = [target.name for rows in TABLES.values() for target in rows]
    there = {result.target for result in results}
    return [name for name in dict.fromkeys([*listed, "?"]) if name in there]


def failures(results: list[Result], seed: int, kept: Path) -> Iterator[str]:
    """A line for each class of failure, with the command that repeats its first case."""
    classes: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "failed":
            classes.setdefault((result.target, result.why.split(": ")[0]), []).append(result)
    for (target, _), group in sorted(classes.items(), key=lambda item: -len(item[1])):
        name = "{}-{}".format(*group[0].case)
        again = f'make fuzz ARGS="--seed {seed} --case {name}"  # {kept}/{seed}-{name}'
        yield f"{len(group)} x {target}: {group[0].why}\n    {group[0].call}\n    {again}"
