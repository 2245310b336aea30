"""Sections of a report that do not depend on the kind of world, those on landmarks included."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.long_walks import found_in_rooms
from gtmsm.evaluation.report import landmark_plots, page, plots
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.video import comparison

EQUAL_FRAMES = (
    "Dash and dot: a control that learns nothing. It is told how far each action moves, and takes an equal frame "
    "within two steps of its plan for the place where it was seen; the last share has also been told how successive "
    "frames overlap, pixel by pixel, and how steps slip. "
)


def film(
    gallery: Gallery, clips: int, side: int, fps: int, about: str, maps: Sequence[UInt8[np.ndarray, "time s s 3"]] = ()
) -> str:
    """Film of true frames, imagined frames and errors, each about `side` pixels wide; with a map per clip if given."""
    some = slice(clips)
    scale = max(1, side // gallery.truth.shape[-1])
    seen = None if gallery.seen is None else gallery.seen[some]
    frames = comparison(gallery.truth[some], gallery.imagined[some], seen, gallery.tau, scale, maps)
    below = "" if seen is None else " Below each clip: whether the place of the step was memorised."
    caption = (
        f"The model sees no frame here, only the actions. {about}The error is the mean absolute difference over "
        f"colours: black is none, white is a half or more.{below}"
    )
    return page.section("Truth and imagination", page.film(frames, fps), caption)


def frames(gallery: Gallery, unseen: str) -> str:
    """Section with true above imagined frames; `unseen` says what red steps are."""
    if not gallery.strips:
        return ""
    clips = range(min(3, len(gallery.truth)))
    figures = (svg(plots.strips(gallery, clip), f"strips {clip + 1}") for clip in clips)
    red = "" if gallery.seen is None else f'; <b class="unseen">red</b> steps are {unseen}'
    caption = f"Steps of the clip are above the frames{red}."
    return page.section("Frame by frame", page.halves(*figures), caption)


def horizon(scores: Mapping[str, Any], about: str) -> str:
    """Section with the scores at each predicted step."""
    caption = f"PSNR of the error pooled over clips, known and new places together. {about}"
    return page.section("Over the horizon", svg(plots.horizon(scores), "horizon"), caption)


def known_fraction(scores: Mapping[str, Any], where: str) -> str:
    """The fraction of predicted steps at memorised places, in words."""
    known = scores.get("revisited_fraction")
    return "" if known is None else f"{100 * known:.0f}% of the predicted steps are {where}."


def landmarks(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Sections on long walks, unknown starts and single pictures; none if the model has no landmarks."""
    found = scores.get("landmarks")
    return (_long_walks(found), _localisation(found)) if found else ()


def _long_walks(landmarks: Mapping[str, Any]) -> str:
    """Section with errors over long walks."""
    steps = len(landmarks["slip"][0]["landmarks"]["within_by_step"])
    told = []
    for name, _, walks in landmark_plots.kinds(landmarks):
        ways = ("landmarks", "closing_loops", "loops_closed", "dead_reckoning", "equal_frames", "equal_overlaps")
        shares = [_percent(walks[way].get("within")) for way in ways if way in walks]
        told.append(f"{name} {', '.join(shares[:-1])} and {shares[-1]}")
    return page.section(
        "Landmarks: knowing where you are over a long walk",
        svg(landmark_plots.long_walks(landmarks), "landmarks over time"),
        f"Means over {landmarks['walks']} walks of {steps} steps from a known start. A slip is an action that is done "
        "twice or not at all, and nobody is told. Solid: poses corrected by places that are recognised; short "
        "dashes: and loops closed on the way; dotted: and by what is recognised later, on the map of the end; dashed: "
        "by the actions alone. "
        f"{EQUAL_FRAMES if 'equal_frames' in landmarks['slip'][0] else ''}"
        f"Fraction of steps {landmarks['right']}, in this order: "
        f"{'; '.join(told)}. Curves are means over the last {landmark_plots.SMOOTHED} steps. "
        f"{found_in_rooms(landmarks).capitalize()}",
    )


def _localisation(landmarks: Mapping[str, Any]) -> str:
    """Section on unknown starts and single pictures, with the numbers in words."""
    lost, looks = landmarks["unknown_start"], landmarks["localise"]
    steps = len(lost["within_by_step"])
    error = looks["reliability"]["expected_calibration_error"]
    return page.section(
        "Landmarks: put anywhere, and shown a single picture",
        svg(landmark_plots.localisation(landmarks), "localisation"),
        f"Above: agents put anywhere into a place of which {landmarks['memorised']} steps were memorised. After "
        f"{steps} steps {_percent(lost['within'])} know where they are, of those then at a memorised place "
        f"{_percent(lost['within_at_memorised'])}; {_percent(lost['within_on_own_map'])} of these are where their own "
        "map has it: what lies between the two are errors of the map. Below: single pictures. At places that were "
        "visited the first guess "
        f"is right for {_percent(looks['top1_visited'])} of {looks['visited']}, and for "
        f"{_percent(looks['top1_visited_on_own_map'])} if errors of the map itself are not counted"
        f"{_by_pixels(looks)}; "
        f"{_percent(looks['false_known'])} of {looks['foreign']} pictures of other places are taken for known. Is a "
        "guess right, as it lies from what was recognised, as often as the model says? On the dashed line it is; below "
        f"it the model is too sure of itself. On average it is off by {_percent(error)} (expected calibration error, "
        f"over visited, unvisited and foreign pictures); hollow dots stand for fewer than {landmark_plots.FEW}.",
    )


def _by_pixels(looks: Mapping[str, Any]) -> str:
    """The control's score in words; empty for scores of version 0.1, which lack it."""
    found = looks.get("nearest_pixels_visited")
    return "" if found is None else f" (the place of the memorised frame with the nearest pixels: {_percent(found)})"


def _percent(fraction: float | None) -> str:
    """A fraction in percent; a dash for None."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"
