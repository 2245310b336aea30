"""Poses and results of localisation as text."""

import math
from collections.abc import Sequence

from gtmsm.model.localisation import PoseMixture

DOUBTFUL = 0.5
"""A picture whose probability of `unknown` exceeds this is reported as never seen."""


def pose_in_words(pose: Sequence[float]) -> str:
    """A pose as text: row and column, or x, y and heading."""
    if len(pose) == 2:
        return f"row {_signed(pose[0])}, column {_signed(pose[1])}"
    x, y, heading = pose
    degrees = (math.degrees(heading) + 180) % 360 - 180
    return f"x {_signed(x)}, y {_signed(y)}, heading {_signed(degrees, 0)}°"


def told(where: PoseMixture, has_heading: bool, metric: bool) -> str:
    """The answer for one picture, with a line for each pose that `worth_telling` chooses."""
    unknown = float(where.unknown[0])
    units = "wall heights ahead and to the left" if has_heading else "cells down and to the right"
    units = f"{units} of the start" if metric else "from the start, in the model's own units"
    places = []
    for i in worth_telling(where):
        spread = where.variance[0, i].sqrt().tolist()
        sure = f"± {spread[0]:.1f}" + (f" and {math.degrees(spread[1]):.0f}°" if len(spread) > 1 else "")
        unit = f" ({units})" if i == 0 else ""
        places.append(
            f"at {pose_in_words(where.pose[0, i].tolist())}{unit} {sure} with probability {where.weight[0, i]:.2f}, "
            f"most like step {where.entry[0, i] + 1}"
        )
    if unknown > DOUBTFUL:
        return "\n".join([f"never seen (unknown {unknown:.2f})", f"if it was, then {places[0]}"])
    first, *others = places
    return "\n".join([f"seen {first}; unknown {unknown:.2f}", *(f"or {place}" for place in others)])


def headline(where: PoseMixture, metric: bool) -> str:
    """The answer in a few words."""
    unknown = f"unknown {where.unknown[0]:.2f}"
    if where.unknown[0] > DOUBTFUL:
        return f"never seen ({unknown})"
    if not metric:
        return f"seen near step {where.entry[0, 0] + 1}; {unknown}"  # the model's own units mean nothing to readers
    return f"seen at {pose_in_words(where.pose[0, 0].tolist())} from the start; {unknown}"


def worth_telling(where: PoseMixture) -> list[int]:
    """Indices of the most likely pose, and of at most two others that are not negligible."""
    return [i for i, w in enumerate(where.weight[0, :3].tolist()) if i == 0 or w >= 0.01]


def _signed(number: float, digits: int = 1) -> str:
    """A number with its sign, but 0 without."""
    said = f"{number:+.{digits}f}"
    return said.lstrip("+-") if float(said) == 0 else said
