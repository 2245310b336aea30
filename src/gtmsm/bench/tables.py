"""Measurements as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gtmsm.bench.clock import Share
from gtmsm.bench.measure import Report
from gtmsm.bench.tasks import Goal
from gtmsm.evaluation.table import narrow_table

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Three significant digits.

    >>> digits(3.14159), digits(31.4159), digits(314.159), digits(3141.59)
    ('3.14', '31.4', '314', '3,142')
    """
    if 0 < value < 0.0995:
        return f"{value:.2g}"
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def scaled(value: float, unit: str) -> str:
    """A number with the prefix that makes it short.

    >>> scaled(2.5e6, "frames/s"), scaled(12, "B")
    ('2.50 M frames/s', '12.0 B')
    """
    for size, prefix in PREFIXES:
        if value >= 0.9995 * size:
            # A prefix is part of a symbol, but not of a word.
            return f"{digits(value / size)} {prefix}{' ' if len(unit) > 6 else ''}{unit}"
    return f"{digits(value)} {unit}".rstrip()


def duration(seconds: float) -> str:
    """A time in the unit that makes it short.

    >>> duration(0.00031), duration(2e-6), duration(0.012)
    ('310 µs', '2.00 µs', '12.0 ms')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(1e9 * seconds)} ns"


def speeds_table(report: Report, goals: bool = False) -> Group:
    """A row for each task, with its goal on one H200 if asked for; below them comparisons and the device."""
    table = narrow_table(("work", "size"), ("time", "rate", "× floor", *(("goal", "") if goals else ())))
    notes = []
    for row in report.rows:
        times_floor = "" if row.floor is None else digits(row.seconds / row.floor)
        cells = [row.work, row.size, duration(row.seconds), scaled(row.rate, f"{row.unit}/s"), times_floor]
        if goals and row.goal is not None:
            cells += [_goal_in_words(row.goal, row.unit), "met" if row.met else "not met"]
        table.add_row(*cells)
        if row.times_reference is not None:
            notes.append(f"{row.work}, {row.size}: {digits(row.times_reference)} times as fast as {row.reference}")
    arithmetic = ", ".join(f"{name} {scaled(rate, 'FLOP/s')}" for name, rate in report.ceilings.flops.items())
    notes += [
        f"device:   {report.device}; gtmsm {report.gtmsm}, torch {report.torch}; times are medians",
        f"ceilings: memory {scaled(report.ceilings.bandwidth, 'B/s')}; {arithmetic}",
        "floor:    the time of its matrix products and convolutions at the ceiling of their precision",
    ]
    return Group(table, "", *map(Text, notes))


def _goal_in_words(goal: Goal, unit: str) -> str:
    """The goal for one H200, in words."""
    if goal.kind == "milliseconds":
        return f"≤ {digits(goal.bound)} ms"
    return f"≥ {scaled(goal.bound, f'{unit}/s') if goal.kind == 'rate' else f'{digits(goal.bound)} × reference'}"


def profile_table(name: str, shares: Sequence[Share]) -> Table:
    """The time of an update by kernels, as a table."""
    table = narrow_table([f"an update of {name}, by kernel"], ("calls", "time", "share"))
    for share in shares:
        kernel = Text(share.kernel, overflow="ellipsis", no_wrap=True)
        table.add_row(kernel, f"{share.calls:g}", duration(share.seconds), f"{100 * share.share:.1f}%")
    return table
