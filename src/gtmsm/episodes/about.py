"""Describe the content of a store: a summary as text, and a contact sheet of its episodes."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image, ImageDraw, ImageFont

from gtmsm.config import require_whole
from gtmsm.episodes.episode import Episode
from gtmsm.episodes.store import Store, writers_of
from gtmsm.episodes.store_manifest import VERSION
from gtmsm.episodes.store_part import read_rows, rows_of
from gtmsm.errors import InputError, shortened
from gtmsm.files import replacing, require_writable

AXES = ("x", "y", "heading")
INK, DIM, PALE = (40, 44, 52), (110, 116, 126), (205, 209, 216)
WAY = np.array([(47, 134, 209), (150, 80, 180), (217, 138, 0)])
"""Colours of a path: its first steps, the middle, its last steps."""
GAP, LABEL, SIDE = 8, 14, 72
"""In pixels: gap between frames, height of a line of text, side to which small frames are enlarged."""
OTHERS = 16
"""Maximum number of other episodes of the same place that a map shows in the background."""


def describe(store: Store) -> str:
    """Summarise counts, actions, places and sizes of a store, a line each; all actions and poses are read."""
    lengths, kind = store.lengths, store.kind
    lines = {"store": f"{store.path}, version {VERSION}", "environment": kind.environment or "not said"}
    each = Counter(Path(folder).name for folder, part in store.parts for _ in part.steps)
    lines["episodes"] = f"{len(store):,} in {counted(len(store.parts), 'part')}"
    writers = [f"{name} ({counted(each[name], 'episode')})" for name in writers_of(store.path)]
    lines["writers"] = _some(writers)
    tall, wide, channels = kind.frame_shape
    lines["frames"] = f"{wide}x{tall} pixels, {'RGB' if channels == 3 else 'grey'}"
    if len(store):
        middle = int(np.median(lengths))
        each_has = f"{lengths.min():,} to {lengths.max():,} an episode, median {middle:,}"
        same = lengths.min() == lengths.max()
        lines["steps"] = f"{lengths.sum():,}: {f'{middle:,} in every episode' if same else each_has}"
        lines["actions"] = _actions(store)
        if kind.pose_size:
            lines["poses"] = ", ".join(_ranges("poses", store, AXES))
        counts = Counter(store.places)
        lines["places"] = f"{len(counts):,}: " + _some([f"{name or 'unnamed'} ({n:,})" for name, n in counts.items()])
        size = sum(size for _, part in store.parts for size, _ in part.files.values())
        lines["on disk"] = f"{_bytes(size)}, of {_bytes(int(lengths.sum()) * tall * wide * channels)} of frames"
    if not kind.pose_size:
        lines["poses"] = "unknown"
    return "\n".join(f"{name:<12}{line}" for name, line in lines.items())


def _actions(store: Store) -> str:
    """How often each discrete action was used, or the range of each component of continuous ones."""
    kind = store.kind
    if not kind.discrete:
        return f"vectors of {kind.action_size}: " + _some(_ranges("actions", store, ()))
    used = np.zeros(kind.action_size + 1, np.int64)
    for folder, part in store.parts:
        rows = read_rows(folder, part, "actions", store.arrays["actions"], 0, rows_of("actions", part))
        used += np.bincount(rows + 1, minlength=len(used))[: len(used)]
    names = ["none", *(kind.action_names or ())]
    order = [*range(1, len(used)), *([0] if used[0] else [])]
    return f"{kind.action_size}: " + _some([f"{names[i]} {100 * used[i] / used.sum():.1f}%" for i in order])


def _ranges(name: str, store: Store, names: tuple[str, ...]) -> list[str]:
    """Minimum and maximum of each component of an array."""
    size = store.arrays[name].row[0]
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    for folder, part in store.parts:
        rows = read_rows(folder, part, name, store.arrays[name], 0, rows_of(name, part))
        low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
    labels = names or tuple(str(i) for i in range(size))
    return [f"{label} {a:.3g} to {b:.3g}" for label, a, b in zip(labels, low, high, strict=False)]


def _some(names: list[str], most: int = 12) -> str:
    return ", ".join(shortened(name) for name in names[:most]) + (f", … {len(names):,} in all" * (len(names) > most))


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 step, 2,000 steps."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _bytes(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} TB"


def write_sheet(store: Store, out: Path, episodes: int = 8, steps: int = 10, seed: int = 0) -> str:
    """Write a contact sheet: frames of randomly chosen episodes, and maps of their paths. Return what it shows."""
    require_whole("episodes", episodes, 1, 100)
    require_whole("steps", steps, 1, 100)
    require_writable(out)
    if not len(store):
        raise InputError(f"{store.path} has no episodes yet; record or import some")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(store))[:episodes])
    rows = [_row(store, int(i), steps) for i in chosen]
    ways = "; where each went: blue its first steps, orange its last" if store.kind.pose_size else ""
    below = "; below a frame, its step and the action that led to it"
    told = f"{counted(steps, 'step')} of {len(chosen):,} of {counted(len(store), 'episode')}{below}{ways}"
    heading, font = f"{shortened(store.kind.environment or store.path.name, 40)}: {told}", ImageFont.load_default(13)
    wide = max(math.ceil(font.getlength(heading)), *(row.width for row in rows)) + 2 * GAP
    top = LABEL + 3 * GAP
    sheet = Image.new("RGB", (wide, sum(row.height for row in rows) + top), "white")
    ImageDraw.Draw(sheet).text((GAP, GAP), heading, INK, font)
    for row in rows:
        sheet.paste(row, (GAP, top))
        top += row.height
    try:
        with replacing(out) as draft:
            sheet.save(draft, format="PNG")
    except OSError as problem:
        raise InputError(f"could not write {out}: {problem.strerror or problem}") from None
    return f"{out}: {told}"


def _row(store: Store, i: int, steps: int) -> Image.Image:
    """An episode as a row of the sheet: its name, frames with step and action, and a map."""
    kind, episode = store.kind, store.episode(i)
    shown = np.unique(np.linspace(0, episode.steps - 1, min(steps, episode.steps)).round().astype(int))
    scale = max(1, round(SIDE / max(kind.frame_shape[:2])))
    tall, wide = (scale * side for side in kind.frame_shape[:2])
    cell, height = max(wide, SIDE) + GAP, max(tall, SIDE) + 3 * LABEL
    side = height if kind.pose_size else 0
    row = Image.new("RGB", (steps * cell + (side + GAP if side else 0), LABEL + height + 2 * GAP), "white")
    pen = ImageDraw.Draw(row)
    named = f"place {shortened(episode.place, 40)}" if episode.place else "place not said"
    _write(pen, (0, 0), f"episode {i:,}, {counted(episode.steps, 'step')}, {named}, seed {episode.seed:,}", INK)
    for column, step in enumerate(shown):
        frame = Image.fromarray(_rgb(episode.frames[step])).resize((wide, tall), Image.Resampling.NEAREST)
        row.paste(frame, (column * cell, LABEL + 2))
        _write(pen, (column * cell, LABEL + 4 + tall), f"{step + 1:,}", INK)
        for line, words in enumerate(_wrapped(_action(store, episode, int(step)), cell - GAP)):
            _write(pen, (column * cell, (2 + line) * LABEL + 4 + tall), words, DIM)
    if side:
        across, along = np.ptp(_way(episode), axis=0)
        row.paste(_map(store, i, episode, side), (steps * cell, LABEL + 2))
        _write(pen, (steps * cell, 0), f"went {across:.3g} by {along:.3g}", DIM)
    return row


def _wrapped(text: str, wide: int) -> list[str]:
    """The text in at most two lines of at most `wide` pixels."""
    font, lines = ImageFont.load_default(11), [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= wide or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [shortened(line, max(4, int(len(line) * wide / max(wide, font.getlength(line))))) for line in lines[:2]]


def _rgb(frame: UInt8[np.ndarray, "height width channel"]) -> UInt8[np.ndarray, "height width 3"]:
    return np.ascontiguousarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))


def _action(store: Store, episode: Episode, step: int) -> str:
    """The action of a step as a short label."""
    done, names = episode.actions[step], store.kind.action_names
    if names is None:
        return ", ".join(f"{number:.2g}" for number in done[:6])
    return names[done] if done >= 0 else "none"


def _map(store: Store, i: int, episode: Episode, side: int) -> Image.Image:
    """The path of an episode from above, y upwards, drawn over those of other episodes in the same place."""
    fine = 4  # drawn large and made smaller, for smooth lines
    picture = Image.new("RGB", (fine * side, fine * side), (247, 248, 250))
    pen = ImageDraw.Draw(picture)
    same = [other for other, place in enumerate(store.places) if place == episode.place and other != i]
    others = [_way(store.episode(other)) for other in same[:OTHERS]] if episode.place else []
    way = _way(episode)
    every = np.concatenate([way, *others])
    low, span = every.min(0), max(float(np.ptp(every, axis=0).max()), 1e-6)
    margin = 0.06 * fine * side

    def pixel(points: Float32[np.ndarray, "n 2"]) -> list[tuple[float, float]]:
        unit = (points - (low + every.max(0)) / 2) / span
        inside = fine * side / 2 + unit * (fine * side - 2 * margin) * (1, -1)
        return [(float(x), float(y)) for x, y in inside]

    for other in others:
        pen.line(pixel(other), fill=PALE, width=fine)
    points = pixel(way)
    shares = np.linspace(0, len(WAY) - 1, len(points))
    colours = np.stack([np.interp(shares, range(len(WAY)), channel) for channel in WAY.T], 1).round().astype(int)
    for ends, colour in zip(zip(points, points[1:], strict=False), colours.tolist(), strict=False):
        pen.line(ends, fill=tuple(colour), width=2 * fine)
    for (x, y), colour, r in ((points[0], WAY[0], 4 * fine), (points[-1], WAY[-1], 3 * fine)):
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tuple(colour.tolist()))
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def _way(episode: Episode) -> Float32[np.ndarray, "n 2"]:
    """Positions at the start of an episode and after each of its steps."""
    assert episode.start is not None and episode.poses is not None
    return np.concatenate([episode.start[None], episode.poses])[:, :2]


def _write(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, colour: tuple[int, int, int]) -> None:
    pen.text(at, text, fill=colour, font=ImageFont.load_default(11))
