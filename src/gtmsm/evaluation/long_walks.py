"""Scores of landmarks in rooms as text: errors late in long walks, unknown initial poses and single pictures."""

from collections.abc import Iterator, Mapping
from typing import Any

WAYS = (
    ("closing_loops", "loops closed on the way"),
    ("landmarks", "never closed"),
    ("loops_closed", "on the map of the end"),
    ("dead_reckoning", "by actions alone"),
)
"""Ways to infer poses that are reported, in this order: key in the scores, and words."""


def kinds_of_walks(landmarks: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and scores of each kind of long walk, beginning with those that slip."""
    careful = landmarks.get("careful")
    for walks in landmarks["slip"]:
        name = f"{100 * walks['probability']:g}% slip" if walks["probability"] else "no slip"
        yield f"{name}, bumps" if careful else name, walks
    if landmarks.get("bump"):
        yield "bumps, no slip", landmarks["bump"]
    if careful:
        yield "no slip, no bumps", careful


def found_in_rooms(landmarks: Mapping[str, Any]) -> str:
    """Errors of position and heading over the last steps, a line per kind of walk; then unknown starts and pictures."""
    first = landmarks["slip"][0]["landmarks"]
    if "position_error_relative_late" not in first:
        return ""
    ways = [(key, name) for key, name in WAYS if key in landmarks["slip"][0]]
    parts = [f"{name} {', '.join(_off(walks[key]) for key, _ in ways)}" for name, walks in kinds_of_walks(landmarks)]
    steps = len(first["within_by_step"])
    return (
        f"last {late(steps)} of {steps:,} steps, position in % of the room's width and heading, "
        f"{', '.join(name for _, name in ways)}:\n  " + ";\n  ".join([*parts, *_recognised(landmarks)])
    )


def late(steps: int) -> int:
    """The number of last steps over which errors are averaged: 300 of 1,000."""
    return max(1, 3 * steps // 10)


def _off(way: Mapping[str, Any]) -> str:
    """Errors of position and heading as text."""
    return f"{100 * way['position_error_relative_late']:.1f}% {way['heading_error_late']:.1f}°"


def _recognised(landmarks: Mapping[str, Any]) -> Iterator[str]:
    """Scores of unknown starts and single pictures as text, for walkers that bump and those that do not."""
    for scores, where in ((landmarks, ""), (landmarks.get("careful"), " without bumps")):
        if not scores:
            continue
        start, looks = scores["unknown_start"], scores["localise"]
        steps = len(start["within_by_step"])
        yield f"unknown starts known after {steps} steps{where}: {_percent(start['within'])} of {start['trials']}"
        yield f"pictures of visited places placed{where}: {_percent(looks['top1_visited'])} of {looks['visited']}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"
