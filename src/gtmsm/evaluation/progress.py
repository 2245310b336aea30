"""Progress of long work: counted in units of work, shown as a line with the remaining time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tell: TypeAlias = Callable[[str, float], None]
"""Called with what is being done, and the fraction of all work that is done."""
EVERY = 5.0
"""Seconds between plain lines."""


@dataclass
class Meter:
    """Counts work done out of a total."""

    total: int
    tell: Tell | None = None
    done: int = 0

    def add(self, doing: str, work: int) -> None:
        """Add `work` units, and report progress under the name `doing`."""
        self.done += work
        if self.tell is not None:
            self.tell(doing, min(1.0, self.done / self.total))


class ProgressLine:
    """A bar with an ETA on a terminal; plain lines every few seconds anywhere else."""

    def __init__(self, console: Console, verb: str = "scoring") -> None:
        self.console, self.verb = console, verb
        columns = (BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("eta"))
        self._bar = Progress(
            TextColumn(f"{verb} {{task.description}}"), *columns, TimeRemainingColumn(), console=console, transient=True
        )
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> "ProgressLine":
        """Start the bar, if the output is a terminal."""
        self._last = time.monotonic() - EVERY
        self._first: tuple[float, float] | None = None
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __call__(self, doing: str, fraction: float) -> None:
        """Show progress; see `Tell`."""
        self._bar.update(self._task, completed=fraction, description=doing)
        now = time.monotonic()
        began, done = self._first = self._first or (now, fraction)  # preparation does not count in the estimate
        if self.console.is_terminal or now - self._last < EVERY:
            return
        self._last = now
        left = f", about {(now - began) * (1 - fraction) / (fraction - done):.0f} s left" if fraction > done else ""
        self.console.print(f"{self.verb} {doing}: {fraction:.0%} done{left}", highlight=False, soft_wrap=True)

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self.console.is_terminal:
            self._bar.stop()
