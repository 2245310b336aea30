"""Videos: true and imagined frames side by side, as files and as arrays."""

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from gtmsm.errors import InputError
from gtmsm.files import replacing

Clips: TypeAlias = Float[np.ndarray, "clips time channel height width"]
Film: TypeAlias = Float[np.ndarray, "time _ _ _"] | UInt8[np.ndarray, "time _ _ 3"]
SUFFIXES = (".mp4", ".gif")
INK, PAPER = 230, 26


def require_video_name(path: Path) -> None:
    """Refuse a file name without a known video suffix, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f'cannot write a video as "{path.name}"; end its name with {" or ".join(SUFFIXES)}')


def write_video(path: Path | str, frames: UInt8[np.ndarray, "time height width 3"], fps: int | float) -> None:
    """Write frames to a video: H.264 that plays anywhere (.mp4), or an endless loop (.gif)."""
    path = Path(path)
    require_video_name(path)
    if len(frames) == 0 or not fps > 0:
        raise InputError(f"a video needs frames and a positive fps; got {len(frames)} frames at {fps} fps")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        if path.suffix.lower() == ".gif":
            # MAXCOVERAGE does not weigh colours by area, so that a small arrow on a large map keeps its colour.
            first, *rest = (Image.fromarray(f).quantize(256, Image.Quantize.MAXCOVERAGE) for f in frames)
            first.save(draft, "GIF", save_all=True, append_images=rest, duration=1000 / fps, loop=0)
        else:
            _write_mp4(draft, frames, fps)


def side_by_side(
    columns: Sequence[Film], labels: Sequence[str], scale: int, captions: Sequence[str] | None = None, letters: int = 0
) -> UInt8[np.ndarray, "time tall wide 3"]:
    """Videos in a row, with a label above each and a caption per step below.

    Videos of floats (channels first) are enlarged by `scale`; videos of bytes (channels last) are shown as they are.
    `letters` is the height of text in pixels; 0: derived from `scale`.
    """
    lengths = {len(column) for column in columns} | ({len(captions)} if captions is not None else set())
    if len(lengths) != 1 or len(labels) != len(columns):
        raise InputError(
            f"films side by side need one length and a label each; "
            f"got lengths {sorted(lengths)} and {len(labels)} labels for {len(columns)} films"
        )
    # By default the text grows with the scale, but stays legible.
    size, gap = letters or max(12, min(28, scale)), max(4, scale // 4)
    films = [column if column.dtype == np.uint8 else _enlarged(column, scale) for column in columns]
    widths = [max(film.shape[2], _text_width(label, size)) for film, label in zip(films, labels, strict=True)]
    wide, line = sum(widths) + gap * (len(widths) - 1), 2 * size
    tall = line + max(film.shape[1] for film in films) + (line if captions is not None else 0)
    canvas = np.full((len(columns[0]), tall, wide, 3), PAPER, np.uint8)
    left = 0
    for film, label, width in zip(films, labels, widths, strict=True):
        canvas[:, :line, left : left + width] = _text(label, width, size)
        inset = left + (width - film.shape[2]) // 2
        canvas[:, line : line + film.shape[1], inset : inset + film.shape[2]] = film
        left += width + gap
    for frame, caption in zip(canvas, captions or (), strict=captions is not None):
        frame[-line:] = _text(caption, wide, size)
    return canvas


def comparison(
    truth: Clips,
    imagined: Clips,
    seen: Bool[np.ndarray, "clips time"] | None,
    tau: int,
    scale: int,
    maps: Sequence[Film] = (),
) -> UInt8[np.ndarray, "time tall wide 3"]:
    """Truth | imagined | error of each clip, captioned with the step and, if known, whether its place was seen before.

    Two clips share a row; with `maps`, a map is set before each clip, and every clip has a row of its own.
    """
    across = 1 if maps else min(2, len(truth))
    steps, clips = tau + truth.shape[1], []
    for i, (x, y) in enumerate(zip(truth, imagined, strict=True)):
        error = np.abs(x - y).mean(1, keepdims=True) / 0.5  # 0.5 is white: with 1 the error would be hard to see
        known = [] if seen is None else seen[i].tolist()
        words = [": seen before" if k else ": never seen" for k in known] or [""] * len(x)
        captions = [f"step {tau + 1 + t} of {steps}{word}" for t, word in enumerate(words)]
        columns, labels = [x, y, error], ["truth", "imagined", "error"]
        if maps:
            columns, labels = [maps[i], *columns], ["where it is", *labels]
        clips.append(side_by_side(columns, labels, scale, captions, letters=24))  # legible on a phone
    time, tall, wide, _ = clips[0].shape
    tall, wide = tall + scale, wide + 2 * scale
    canvas = np.full((time, -(-len(clips) // across) * tall, across * wide, 3), PAPER, np.uint8)
    for i, clip in enumerate(clips):
        top, left = i // across * tall, i % across * wide + scale
        canvas[:, top : top + clip.shape[1], left : left + clip.shape[2]] = clip
    return canvas


def _write_mp4(path: Path, frames: UInt8[np.ndarray, "time height width 3"], fps: int | float) -> None:
    """Write H.264 in yuv420p, which needs even sizes: the last row or column is repeated if they are odd."""
    _, height, width, _ = frames.shape
    if height % 2 or width % 2:
        frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    size = f"{frames.shape[2]}x{frames.shape[1]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    # One thread gives the same bytes everywhere; with faststart a browser plays before it has read the whole file.
    codec = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "26", "-tune", "animation", "-threads", "1"]
    target = ["-pix_fmt", "yuv420p", "-movflags", "+faststart", "-y", str(path)]
    # ffmpeg itself, since the writer of imageio-ffmpeg leaves its pipes open.
    command = [_ffmpeg(), "-v", "error", *source, *codec, *target]
    # Errors go to a file rather than a pipe, so that all frames can be written in one call without a deadlock.
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints) as ffmpeg:
            assert ffmpeg.stdin is not None
            with suppress(BrokenPipeError):  # ffmpeg ended early; its error is raised below
                ffmpeg.stdin.write(np.ascontiguousarray(frames).data.cast("B"))
                ffmpeg.stdin.close()
        if ffmpeg.returncode:
            complaints.seek(0)
            raise OSError(f"ffmpeg could not write {path.name}: {complaints.read().decode(errors='replace').strip()}")


def _ffmpeg() -> str:
    """Path of ffmpeg: imageio-ffmpeg bundles it for common platforms, and finds the system's."""
    try:
        return str(get_ffmpeg_exe())
    except RuntimeError:
        hint = "install ffmpeg, or set IMAGEIO_FFMPEG_EXE to where it is"
        raise InputError(f"a film needs ffmpeg, and there is none on this machine; {hint}") from None


def _enlarged(film: Float[np.ndarray, "time C h w"], scale: int) -> UInt8[np.ndarray, "time tall wide 3"]:
    """Enlarge every pixel to a square of `scale` pixels; grey becomes three equal channels."""
    pixels = (film.clip(0, 1) * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(scale, axis=1).repeat(scale, axis=2)


@lru_cache(maxsize=4096)  # captions repeat from step to step
def _text(words: str, width: int, size: int) -> UInt8[np.ndarray, "tall wide 3"]:
    """A line of text, centred on a strip twice as tall as the letters."""
    strip = Image.new("L", (width, 2 * size), PAPER)
    ImageDraw.Draw(strip).text((width / 2, size), words, fill=INK, font=_font(size), anchor="mm")
    return np.asarray(strip.convert("RGB"))


def _text_width(words: str, size: int) -> int:
    """Width of a line of text in pixels, with a margin."""
    return int(_font(size).getlength(words)) + size


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """The font bundled with Pillow, so that every machine draws the same."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font
