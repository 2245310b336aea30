"""Sections of a report that worlds share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.report import page, plots
from gtmsm.evaluation.report.figure_style import svg
from gtmsm.evaluation.video import comparison

CLIPS_IN_STRIPS = 3


def film(
    gallery: Gallery, clips: int, side: int, fps: int, about: str, maps: Sequence[UInt8[np.ndarray, "time s s 3"]] = ()
) -> str:
    """Truth, imagination and error, moving, views about `side` pixels wide; after a map of each clip where given."""
    some = slice(clips)
    scale = max(1, side // gallery.truth.shape[-1])
    frames = comparison(gallery.truth[some], gallery.imagined[some], gallery.seen[some], gallery.tau, scale, maps)
    caption = (
        f"The model sees no frame here, only the actions. {about}The error is the mean absolute difference over "
        "colours: black is none, white is a half or more. Below each clip: whether the place of the step was memorised."
    )
    return page.section("Truth and imagination", page.film(frames, fps), caption)


def frames(gallery: Gallery, unseen: str) -> str:
    """True above imagined frames; `unseen` says what red steps are."""
    if not gallery.strips:
        return ""
    clips = range(min(CLIPS_IN_STRIPS, len(gallery.truth)))
    figures = (svg(plots.strips(gallery, clip), f"strips {clip + 1}") for clip in clips)
    caption = f'Steps of the clip are above the frames; <b class="unseen">red</b> steps are {unseen}.'
    return page.section("Frame by frame", page.halves(*figures), caption)


def horizon(scores: Mapping[str, Any], about: str) -> str:
    """Scores at each predicted step."""
    caption = f"PSNR of the error pooled over clips, known and new places together. {about}"
    return page.section("Over the horizon", svg(plots.horizon(scores), "horizon"), caption)


def known_fraction(scores: Mapping[str, Any], where: str) -> str:
    """How much of the future could be known, in words."""
    known = scores.get("revisited_fraction")
    return "" if known is None else f"{100 * known:.0f}% of the predicted steps are {where}."
