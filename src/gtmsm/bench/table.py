"""Speeds in the terminal: what, how large, how fast, and how far from what the device could do."""

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gtmsm.bench.measure import Report
from gtmsm.bench.profile import Share
from gtmsm.bench.task import Goal, Row

SHORT = {"memory": "mem", "float32": "fp32", "tf32": "tf32", "bfloat16": "bf16"}
"""What a floor comes from, in four letters."""
WIDE = 116
"""Characters that all columns take."""
EXPLAIN_THE_FLOOR = {"FLOP", "bytes", "at"}
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float) -> str:
    """Three digits that count.

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


def speeds_table(report: Report, width: int = WIDE) -> Group:
    """A row for each speed, what it was held against below, and below that what the device does at its best.

    A terminal that is too narrow for all columns goes without those that explain the floor.
    """
    left_out = set() if width >= WIDE else EXPLAIN_THE_FLOOR
    cells = [
        {
            "time": duration(row.seconds),
            "rate": scaled(row.rate, f"{row.unit}/s"),
            "FLOP": scaled(row.flops, ""),
            "bytes": scaled(row.bytes, "B"),
            "floor": duration(row.floor),
            "at": SHORT[row.bound],
            "× floor": digits(row.times_floor),
        }
        for row in report.rows
    ]
    shown = [name for name in (cells[0] if cells else ()) if name not in left_out]
    table = _table(shown, "work", "size")
    for row, numbers in zip(report.rows, cells, strict=True):
        table.add_row(row.work, row.size, *(numbers[name] for name in shown))
    notes = [note for row in report.rows for note in (_held_against(row), row.note) if note]
    return Group(table, "", *(Text(line) for line in (*notes, *_about(report))))


def goals_table(rows: Sequence[Row]) -> Table:
    """What was meant to be reached on one H200, and whether it was."""
    table = _table(("goal", "here", ""), "work", "size")
    for row in rows:
        if row.goal is not None and row.reached is not None:
            asked, here = (_in_words(row.goal, value, row.unit) for value in (row.goal.bound, row.reached))
            than = {"times the FLOP floor": " the FLOP floor", "times the reference": _name_of_reference(row)}
            asked = f"{'at most' if row.goal.at_most else 'at least'} {asked}{than.get(row.goal.kind, '')}"
            table.add_row(row.work, row.size, asked, here, "met" if row.met else "not met")
    return table


def profile_table(name: str, shares: Sequence[Share]) -> Table:
    """Which kernels take the time of an update."""
    table = _table(("calls", "time", "share"), f"an update of {name}, by kernel")
    for share in shares:
        kernel = Text(share.kernel, overflow="ellipsis", no_wrap=True)
        table.add_row(kernel, f"{share.calls:g}", duration(share.seconds), f"{100 * share.share:.1f}%")
    return table


def _table(numbers: Sequence[str], *words: str) -> Table:
    """Words to the left, numbers to the right, as close together as can be read."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _held_against(row: Row) -> str:
    """How much faster than the other way, and with how much memory."""
    if row.against is None or row.times_reference is None:
        return ""
    told = f"{row.work}, {row.size}: {digits(row.times_reference)} times as fast as {row.against.name}"
    if row.peak_bytes is not None and row.against.peak_bytes is not None:
        told += f", with {scaled(row.peak_bytes, 'B')} of memory beside its inputs instead of "
        told += scaled(row.against.peak_bytes, "B")
    return told


def _in_words(goal: Goal, value: float, unit: str) -> str:
    """A value of the goal's kind."""
    if goal.kind == "milliseconds":
        return f"{digits(value)} ms"
    return scaled(value, f"{unit}/s") if goal.kind == "rate" else f"{digits(value)} ×"


def _name_of_reference(row: Row) -> str:
    """What it is meant to be faster than."""
    return "" if row.against is None else f" {row.against.name}"


def _about(report: Report) -> list[str]:
    """What the columns mean, and on which device: elsewhere they are other numbers."""
    best = report.ceilings
    arithmetic = ", ".join(f"{name} {scaled(rate, 'FLOP/s')}" for name, rate in best.flops.items())
    launch = "" if best.launch is None else f"; {duration(best.launch)} a kernel in a graph"
    return [
        f"device:   {report.device}; gtmsm {report.gtmsm}, torch {report.torch}; medians, which elsewhere are others",
        f"ceilings: memory {scaled(best.bandwidth, 'B/s')}; {arithmetic}{launch}",
        "floor:    what FLOP (at fp32, tf32, bf16) or bytes (at mem) take at the ceilings, if nothing is moved twice",
    ]
