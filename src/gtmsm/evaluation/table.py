"""Tables of scores in the terminal: of a run and its controls, and of several runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gtmsm.evaluation.columns import (
    COPY,
    EVERY_COLUMN,
    KNOWN_STEPS,
    Column,
    columns_of,
    gap,
    has,
    has_colours,
    of_control,
    rows,
    shown,
)
from gtmsm.evaluation.long_walks import found_in_rooms
from gtmsm.evaluation.metrics import CONVERGED, PSNR_CAP, converged

OVER_IMAGES = ("psnr_revisited", "psnr_unseen", "retrieval_revisited", "retrieval_revisited_last16", "pose_r2")
AMONG_OBSTACLES = (
    "psnr_unhindered", "psnr_revisited", "retrieval_revisited", "position_within_half_cell_memorised",
    "position_within_half_cell_predicted",
)  # fmt: skip
CELLS_BY = {"dead_reckoning_": "by actions alone", "equal_frames_": "by equal frames and true moves"}
"""Controls of finding the right cell: prefix of their scores, and words."""
PLACED_BY = {
    "standing_still_position_error_relative": "standing still",
    "at_the_mean_position_error_relative": "always at the mean of the walk",
}
"""Controls of positions in rooms: key of the score, and words."""
IN_A_ROOM = ("psnr_pooled", "psnr_revisited", "psnr_unseen", "heading_error", "position_error_relative")
IN_SEVERAL_ROOMS = (
    "psnr_pooled", "psnr_unseen", "heading_error", "position_error_relative", "floor_colour_error", "wall_colour_error",
)  # fmt: skip
"""Columns for comparing runs of one kind of world, within 80 characters; the VAE ceiling of the first one is added."""


def scores_table(scores: Mapping[str, Any]) -> Table:
    """A table of the scores of a model and, below, of its controls."""
    # Columns that do not fit into 80 characters are left to the report.
    left_out = {"psnr_frames", "retrieval_revisited_last16"} | ({"ssim"} if has_colours(scores) else set())
    columns = [column for column in columns_of(scores) if column.key not in left_out]
    table = narrow_table([""], _heads(columns), _caption(scores, {column.key for column in columns}))
    for name, row, values in rows(scores):
        cells, first = [shown(values.get(column.key), column) for column in columns], name == "imagined"
        table.add_row(Text(row.label), *cells, style="bold" if first else None, end_section=first)
    return table


def headline(scores: Mapping[str, Any]) -> str:
    """A summary of the scores in one line, and of landmarks in rooms in a few more."""
    if has(scores, "heading_error"):
        landmarks = scores.get("landmarks")
        late = "\n" + told if landmarks and (told := found_in_rooms(landmarks)) else ""
        return f"{_way_found(scores)}; {_quality(scores)}{late}"
    if has(scores, KNOWN_STEPS.key):
        return f"{known_steps(scores)}{_cells_found(scores)}{_slips_noticed(scores)}"
    retrieval, r2 = scores["retrieval_revisited"], scores.get("pose_r2")
    if "pose_r2" not in scores:  # recordings without poses
        again = "" if retrieval is None else f"; right view retrieved at {100 * retrieval:.1f}% of those that came back"
        return f"{_quality(scores)}{again}"
    found = "–" if retrieval is None else f"{100 * retrieval:.2f}%"
    return (
        f"right place retrieved at {found} of revisited steps, R² of position {'–' if r2 is None else f'{r2:.4f}'}, "
        f"{100 * scores['revisited_fraction']:.0f}% of the predicted steps were at memorised places"
        f"{_cells_found(scores)}{_slips_noticed(scores)}"
    )


def known_steps(scores: Mapping[str, Any]) -> str:
    """For worlds where steps can fail: PSNR at the steps that can be known, and its distance from the ceiling."""
    distance = gap(scores, "vae_ceiling", KNOWN_STEPS.key)
    versus = "" if distance is None else f", {_above_or_below(distance, 2)} the VAE ceiling"
    return f"{scores[KNOWN_STEPS.key]:.2f} dB at revisited places until the first obstacle or slip{versus}"


def comparison_table(runs: Mapping[str, Mapping[str, Any]]) -> Group:
    """Several runs, one per row, in a table for each kind of world, since these have few scores in common."""
    over_images = {name: scores for name, scores in runs.items() if not has(scores, "heading_error")}
    in_rooms = {name: scores for name, scores in runs.items() if has(scores, "heading_error")}
    of_rooms = IN_SEVERAL_ROOMS if any(map(has_colours, in_rooms.values())) else IN_A_ROOM
    with_cells = any(has(scores, "position_within_half_cell_memorised") for scores in over_images.values())
    of_images = AMONG_OBSTACLES if with_cells else OVER_IMAGES
    kinds = ((over_images, of_images), (in_rooms, of_rooms))
    tables = [_compared(alike, keys) for alike, keys in kinds if alike]
    return Group(*tables[:1], *(part for table in tables[1:] for part in ("", table)))


def unlike_walks(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """How many walks of which length each run was scored on, if these numbers differ; else empty."""
    found = {}
    for name, scores in runs.items():
        of = scores.get("protocol")
        found[name] = (
            tuple(of.get(key) for key in ("clips", "tau", "horizon")) if isinstance(of, Mapping) else (None,) * 3
        )
    if len(set(found.values())) < 2:
        return ""
    told = (f"{name}: {clips} walks of {tau} + {horizon} steps" for name, (clips, tau, horizon) in found.items())
    return f"scored on different walks: {'; '.join(told)}"


def _compared(runs: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> Table:
    """A table of runs of one kind of world, and how many of them converged if that is defined."""
    columns = [EVERY_COLUMN[key] for key in keys]
    ceiling = replace(columns[0], label=columns[0].label.replace("PSNR", "VAE ceiling,"))
    table = narrow_table(["run"], _heads([*columns, ceiling]), _how_many_converged(runs))
    for name, scores in runs.items():
        cells = [shown(scores.get(column.key), column) for column in columns]
        table.add_row(_RunName(name), *cells, shown(of_control(scores, "vae_ceiling", ceiling.key), ceiling))
    return table


@dataclass(frozen=True)
class _RunName:
    """A path that is shortened by dropping its first folders, since the last ones identify a run."""

    path: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(self.shortened(1)), len(self.path))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.shortened(options.max_width), overflow="fold")

    def shortened(self, width: int) -> str:
        """The path with as many of its last folders as fit into `width`, but at least the last.

        >>> _RunName("runs/may/walk/rooms").shortened(14)
        '…/walk/rooms'
        """
        folders = PurePath(self.path).parts
        endings = ("…/" + "/".join(folders[start:]) for start in range(1, len(folders)))
        fitting = (ending for ending in (self.path, *endings) if len(ending) <= width)
        return next(fitting, folders[-1] if folders else self.path)


def narrow_table(words: Sequence[str], numbers: Sequence[str], caption: str | None = None) -> Table:
    """An empty table with left-aligned columns of words and right-aligned columns of numbers, with little padding."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, caption=caption)
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _heads(columns: Sequence[Column]) -> list[str]:
    """Headings of columns, one word per line."""
    return [column.label.replace(" ", "\n") for column in columns]


def _caption(scores: Mapping[str, Any], keys: set[str]) -> str:
    """Caption that explains the columns of the table."""
    parts = (
        ("psnr_pooled" in keys, "PSNR in dB, of the mean error"),
        ("retrieval_revisited" in keys, "retrieval at revisited places"),
        ("psnr_unhindered" in keys, "until obstacle: revisited, before a step failed"),
        (has(scores, "heading_error"), "unseen: far from every memorised pose"),
        ("floor_colour_error" in keys, "rooms seen: while memorising; late: after step 400"),
        ("floor_colour_error" in keys, "colours: mean error in rooms entered again, of 255"),
    )
    return "; ".join(text for there, text in parts if there)


def _cells_found(scores: Mapping[str, Any]) -> str:
    """How often the position was within half a cell, for the model and its controls; empty without such scores."""
    parts = []
    for phase, when in (("memorised", "while memorising"), ("predicted", "while predicting, until a step failed")):
        found = {way: scores.get(f"{way}position_within_half_cell_{phase}") for way in ("", *CELLS_BY)}
        if (mine := found.pop("")) is not None:
            others = [f"{CELLS_BY[way]} {100 * share:.1f}%" for way, share in found.items() if share is not None]
            parts.append(f"{100 * mine:.1f}% {when}" + (f" ({', '.join(others)})" if others else ""))
    return f"; in the right cell at {', '.join(parts)}" if parts else ""


def _slips_noticed(scores: Mapping[str, Any]) -> str:
    """Fraction of steps of the long walk with most slips at which the pose estimate was right, and the control's; empty
    without such scores."""
    slips = (scores.get("landmarks") or {}).get("slip") or [{}]
    walks = max(slips, key=lambda walks: walks.get("probability", 0.0))
    if not ("closing_loops" in walks and "equal_frames" in walks):
        return ""
    steps, often = len(walks["closing_loops"]["within_by_step"]), 100 * walks["probability"]
    mine, theirs = (100 * walks[way]["within"] for way in ("closing_loops", "equal_frames"))
    return (
        f"; of {steps:,} steps of which {often:.0f}% slip believed there at {mine:.1f}% with loops closed on the way "
        f"(equal frames and true moves {theirs:.1f}%)"
    )


def _only_turns(scores: Mapping[str, Any]) -> bool:
    """Whether the agent only turned on the spot: hardly any error in position, and many poses revisited."""
    off, back = scores.get("position_error_relative") or 0.0, scores.get("revisited_fraction", 1.0)
    return off < 5e-4 and back > 0.2  # widths of a room; an exact walk through a room revisits fewer poses


def _way_found(scores: Mapping[str, Any]) -> str:
    """Errors of the model's poses at the last step, and of controls that ignore actions."""
    steps = len(scores.get("heading_error_by_step") or ())
    after = f" after {steps} steps" if steps else ""
    heading = f"heading {scores['heading_error']:.1f}° off{after}"
    if _only_turns(scores):
        return heading
    controls = [f"{words} {100 * scores[way]:.1f}%" for way, words in PLACED_BY.items() if way in scores]
    beside = f" ({', '.join(controls)})" if controls else ""
    return f"{heading}, position {100 * scores['position_error_relative']:.1f}% of the room's width{beside}"


def _quality(scores: Mapping[str, Any]) -> str:
    """PSNR, and its distance from the controls."""
    psnr = scores["psnr_pooled"]
    parts = ["– dB" if psnr is None else f"{psnr:.1f} dB"]
    to_memory, to_mean = gap(scores, "true_pose_memory"), gap(scores, "mean_frame")
    if to_memory is not None:
        parts.append(f"{_above_or_below(to_memory)} the memory at true poses")
    elif to_mean is not None:
        parts.append(f"{_above_or_below(to_mean)} the mean frame")
    # An agent that only turns sees exactly equal frames again: a model can beat copying only at frames never seen.
    key, where = ("psnr_unseen", " at unseen headings") if _only_turns(scores) else ("psnr_pooled", "")
    if gap(scores, COPY, key) is None:
        key, where = "psnr_pooled", ""
    to_copy = gap(scores, COPY, key)
    if to_copy is not None:
        is_exact = (of_control(scores, COPY, key) or 0.0) >= PSNR_CAP
        versus = "copying is exact" if is_exact else f"{_above_or_below(to_copy)} copying the nearest frame"
        parts.append(versus + where)
    return ", ".join(parts)


def _above_or_below(distance: float, digits: int = 1) -> str:
    """A difference in dB, in words."""
    return f"{abs(distance):.{digits}f} {'above' if round(distance, digits) > 0 else 'below'}"


def _how_many_converged(runs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """How many runs converged, of those for which that is defined; None if there are none."""
    judged = [verdict for scores in runs.values() if (verdict := converged(scores)) is not None]
    if not judged:
        return None
    bars = " and ".join(f"{name} at least {bar}" for name, bar in CONVERGED.items())
    return f"{sum(judged)} of {len(judged)} converged ({bars}, at steps that can be known)"
