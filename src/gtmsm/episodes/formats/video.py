"""Read MP4s frame by frame, and no other file that they refer to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gtmsm.config import require
from gtmsm.episodes.episode import LONGEST_SIDE
from gtmsm.episodes.formats.rows import library
from gtmsm.errors import shown
from gtmsm.files import opened, refusing

SUFFIXES = (".mp4", ".m4v", ".mov")
CODECS = {"h264", "hevc", "av1", "vp9", "vp8", "mpeg4", "mjpeg", "png", "ffv1"}
MOST_UNSEEN = 10_000
"""Maximum number of frames that are decoded in search of a time."""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open an MP4 and its video stream; FFmpeg gets the open file, so that it can open no other."""
    av = library("av")
    av.logging.set_level(None)
    with (
        opened(path) as file,
        refusing(f"{path}: cannot be read as an MP4", "is it whole?"),
        av.open(file, format="mov", metadata_errors="ignore") as container,
    ):
        require(len(container.streams.video) > 0, f"{path}: has no pictures in it")
        stream = container.streams.video[0]
        context = stream.codec_context
        codec = context.codec.canonical_name
        require(codec in CODECS, f"{path}: coded as {shown(codec)}; expected one of {', '.join(sorted(CODECS))}")
        fits = 0 < context.width <= LONGEST_SIDE and 0 < context.height <= LONGEST_SIDE
        require(fits, f"{path}: frames of {context.width}x{context.height} pixels; expected up to {LONGEST_SIDE}")
        context.options = {"max_pixels": str(LONGEST_SIDE**2)}
        context.thread_count = 1
        yield container, stream


def shape_of(path: Path) -> tuple[int, int, int]:
    """Height, width and number of colours of the frames."""
    with _opened(path) as (_, stream):
        return stream.codec_context.height, stream.codec_context.width, 3


def count(path: Path) -> int:
    """Count the frames without decoding any."""
    with _opened(path) as (container, stream):
        return sum(packet.size > 0 for packet in container.demux(stream))


def frames(path: Path) -> Iterator[np.ndarray]:
    """Yield all frames, in blocks of one."""
    with _opened(path) as (container, stream):
        for frame in container.decode(stream):
            yield _pixels(frame)


def frames_from(path: Path, start: float, rate: float, count: int) -> Iterator[np.ndarray]:
    """Yield `count` frames from `start` (in seconds) on, `rate` of them per second, in blocks of one."""
    with _opened(path) as (container, stream):
        container.seek(int(max(0.0, start - 0.5 / rate) / stream.time_base), stream=stream)
        expected = unseen = 0
        for frame in container.decode(stream):
            if expected == count:
                return
            number = round((float(frame.time or 0) - start) * rate)
            if number < expected:  # between the key frame that was sought and the start
                unseen += 1
                require(unseen <= MOST_UNSEEN, f"{path}: no frame at {start:.2f} s")
                continue
            at = start + expected / rate
            require(number == expected, f"{path}: no frame at {at:.2f} s; {rate:g} a second were expected")
            yield _pixels(frame)
            expected += 1
        require(expected == count, f"{path}: ends after {expected} of {count} frames from {start:.2f} s on")


def _pixels(frame: Any) -> np.ndarray:
    """Decode a frame to RGB; one larger than `LONGEST_SIDE` is refused, whatever size the stream declares."""
    fits = frame.width <= LONGEST_SIDE and frame.height <= LONGEST_SIDE
    require(fits, f"a frame of {frame.width}x{frame.height} pixels; expected up to {LONGEST_SIDE}")
    return frame.to_ndarray(format="rgb24")[None]
