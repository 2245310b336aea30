"""What training tells: lines of JSON, TensorBoard, and a live display."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gtmsm.errors import InputError
from gtmsm.files import read_lines, write_atomically

METRICS = "metrics.jsonl"


class MetricsLog:
    """metrics.jsonl, one line per report, and TensorBoard where it is installed.

    `resume_at` is the update to go on from, and `prospected` whether that was after the search for the motion.
    """

    def __init__(self, folder: Path, resume_at: int | None = None, prospected: bool = False) -> None:
        self._path = folder / METRICS
        if resume_at is not None and self._path.exists():
            _forget_after(self._path, resume_at, prospected)
        self._file: TextIO = self._path.open("a" if resume_at is not None else "w")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return  # the extra `tensorboard` is not installed; the lines of JSON hold the same
        self._board = SummaryWriter(
            str(folder / "tensorboard"), purge_step=None if resume_at is None else resume_at + 1
        )

    def write(self, update: int, values: dict[str, Any]) -> None:
        """One report; what was written survives a crash."""
        try:
            self._file.write(json.dumps({"update": update, **values}) + "\n")
            self._file.flush()
        except OSError as problem:
            raise InputError(f"could not write {self._path}: {problem.strerror}") from problem
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, update)

    def close(self) -> None:
        """Flush and let go."""
        self._file.close()
        if self._board is not None:
            self._board.close()


class NoLog(MetricsLog):
    """What the other processes write where several train together: nothing."""

    def __init__(self) -> None:
        pass

    def write(self, update: int, values: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _forget_after(path: Path, update: int, prospected: bool) -> None:
    """Drop reports of what the checkpoint resumed from has not seen, and a line cut short by a crash."""
    kept = []
    for number, (line, report) in enumerate(read_lines(path), 1):
        at = report.get("update")
        if not isinstance(at, int):
            raise InputError(f"{path} line {number} names no update; mend or delete the line")
        if at <= update and not (at == update and "prospect" in report and not prospected):
            kept.append(line + b"\n")
    write_atomically(path, b"".join(kept))


class Display:
    """Progress with ETA, bound, KL, PSNR and retrieval; plain lines where nobody watches a terminal."""

    def __init__(self, total: int, console: Console) -> None:
        self.console = console
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
        """Start drawing, where there is a terminal."""
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
        """The newest numbers."""
        self._shown |= values
        self._progress.update(self._task, completed=update, stage=stage, numbers=_in_words(self._shown))
        if not self.console.is_terminal and (time.monotonic() - self._last_line > 10 or "retrieval" in values):
            self._last_line = time.monotonic()
            self.console.print(f"update {update}  {stage}  {_in_words(values)}", highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, soft_wrap=True)


def _in_words(values: dict[str, Any]) -> str:
    """The numbers worth watching."""
    return "  ".join(text for name, text in _SHOWN.items() if name in values).format(**values)


_SHOWN = {
    "elbo": "ELBO {elbo:.1f}",
    "recognition": "recognition {recognition:.2f}",
    "kl": "KL {kl:.1f}",
    "psnr": "PSNR {psnr:.1f} dB",
    "retrieval": "retrieval {retrieval:.1%}",
}
