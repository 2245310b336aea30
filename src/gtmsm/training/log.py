"""Logs of training: lines of JSON, TensorBoard, and a live display."""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gtmsm.errors import InputError
from gtmsm.files import read_lines, write_atomically

METRICS = "metrics.jsonl"


class MetricsLog:
    """metrics.jsonl, one line per report, and TensorBoard if it is installed.

    `start` is the update to resume from, and `prospected` whether the search for the motion was already done by then.
    """

    def __init__(self, folder: Path, start: int = 0, prospected: bool = False) -> None:
        self._path = folder / METRICS
        if self._path.exists():
            _forget_after(self._path, start, prospected)
        self._board: _Board | None = None
        with suppress(ImportError):  # the extra `tensorboard` is not installed; the lines of JSON hold the same
            self._board = _Board(folder / "tensorboard", start)
        self._file: IO[Any] = self._path.open("a")

    def write(self, update: int, values: dict[str, Any]) -> None:
        """Write one report and flush it, so that it survives a crash."""
        try:
            self._file.write(json.dumps({"update": update, **values}) + "\n")
            self._file.flush()
            if self._board is not None:
                self._board.write(update, values)
        except OSError as problem:
            raise InputError(f"could not write metrics into {self._path.parent}: {problem.strerror}") from problem

    def close(self) -> None:
        """Close the files; every report has been flushed before."""
        for file in [self._file] if self._board is None else [self._file, self._board.file]:
            with suppress(OSError):
                file.close()


def read_verdict(folder: Path) -> str:
    """The verdict of a run's search for the motion; empty if metrics.jsonl has none."""
    said = ""
    with suppress(InputError):  # no metrics, or edited by hand: a report can do without the verdict
        for _, report in read_lines(folder / METRICS):
            verdict = report.get("verdict")
            said = verdict if isinstance(verdict, str) else said
    return said


class _Board:
    """Event file for TensorBoard, written synchronously: its own writer has a thread, which fails on a full disk with a
    traceback."""

    def __init__(self, folder: Path, start: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{int(now % 1 * 1e9):09d}"
        self.file = (folder / name).open("ab")
        self._records = RecordWriter(self.file)
        # This makes TensorBoard discard what an earlier attempt reported beyond `start`.
        self._put(file_version="brain.Event:2")
        self._put(step=start + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, update: int, values: dict[str, Any]) -> None:
        """Write all numbers of a report."""
        kind = self._summary.Value
        numbers = [kind(tag=name, simple_value=x) for name, x in values.items() if isinstance(x, int | float)]
        self._put(step=update, summary=self._summary(value=numbers))

    def _put(self, **what: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **what).SerializeToString())
        self._records.flush()


class NoLog(MetricsLog):
    """A log that writes nothing, for all processes but the first."""

    def __init__(self) -> None:
        pass

    def write(self, update: int, values: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _forget_after(path: Path, update: int, prospected: bool) -> None:
    """Drop reports of updates after the checkpoint that is resumed from, and a line cut short by a crash."""
    kept = []
    for number, (line, report) in enumerate(read_lines(path), 1):
        at = report.get("update")
        if not isinstance(at, int):
            raise InputError(f"{path} line {number} names no update; mend or delete the line")
        if at <= update and not (at == update and "prospect" in report and not prospected):
            kept.append(line + b"\n")
    write_atomically(path, b"".join(kept))


class Display:
    """Progress with ETA, bound, KL, PSNR and retrieval; plain lines if the output is not a terminal."""

    def __init__(self, total: int, console: Console) -> None:
        self.console, self._total = console, total
        self._shown: dict[str, Any] = {}
        self._last_line = 0.0
        self._progress = Progress(
            TextColumn("[bold]{task.fields[stage]:>9}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=False,
        )
        self._task = self._progress.add_task("train", total=total, stage="", numbers="")

    def __enter__(self) -> "Display":
        """Start drawing if the output is a terminal."""
        if self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        if self.console.is_terminal:
            self._progress.stop()

    def show(self, update: int, stage: str, values: dict[str, Any]) -> None:
        """Show the latest values; without a terminal, print a line every 10 seconds and at evaluations."""
        self._shown |= values
        self._progress.update(self._task, completed=update, stage=stage, numbers=_in_words(self._shown))
        if not self.console.is_terminal and (time.monotonic() - self._last_line > 10 or "retrieval" in values):
            self._last_line = time.monotonic()
            self.say(f"update {update} of {self._total}  {stage}  {_in_words(values)}")

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.console.print(text, highlight=False, soft_wrap=True)


def _in_words(values: dict[str, Any]) -> str:
    """The values of `_SHOWN`, formatted."""
    return "  ".join(text for name, text in _SHOWN.items() if name in values).format(**values)


_SHOWN = {
    "elbo": "ELBO {elbo:.1f}",
    "recognition": "recognition {recognition:.2f}",
    "kl": "KL {kl:.1f}",
    "psnr": "PSNR {psnr:.1f} dB",
    "retrieval": "retrieval {retrieval:.1%}",
}
