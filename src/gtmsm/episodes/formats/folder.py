"""A folder of MP4s, or of numbered pictures, with a CSV of the actions.

`walk.mp4` with `walk.csv` beside it is an episode; so is a folder of pictures (`000.png`, `001.png`, ...) and one CSV.
A folder may hold many of either. The CSV has a head line with `action` (an integer or a word for each; or a real
number) or `action_0`, `action_1`, ... (a vector), and may have `x`, `y` and `heading` (radians).

Row t belongs to frame t and the action that followed it. The last row may be missing, or its action empty.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gtmsm.config import require
from gtmsm.episodes import pictures
from gtmsm.episodes.episode import MOST_NUMBERS, Episode, Kind
from gtmsm.episodes.formats import video
from gtmsm.episodes.formats.rows import (
    MOST_ROWS,
    about,
    as_actions,
    episode_of_rows,
    frame_shape,
    numbered,
    require_fits,
)
from gtmsm.errors import InputError, shortened, shown
from gtmsm.files import opened

NAME = "folder"
PICTURES = (".png", ".jpg", ".jpeg")
MOST_LINE = 2**17
"""Maximum bytes of a line of CSV."""
POSE = ("x", "y", "heading")


@dataclass(frozen=True)
class _Walk:
    """Files of an episode: its video or its pictures, and the CSV of its actions."""

    seen: Path | tuple[Path, ...]
    done: Path

    @property
    def name(self) -> Path:
        return self.seen if isinstance(self.seen, Path) else self.done


def fits(path: Path) -> bool:
    """Whether a folder, or one directly inside it, holds a CSV with videos or pictures."""
    return path.is_dir() and any(_is_walk(folder) for folder in (path, *filter(Path.is_dir, path.iterdir())))


def _is_walk(folder: Path) -> bool:
    names = [file.suffix.lower() for file in folder.iterdir()]
    return ".csv" in names and any(name in (*PICTURES, *video.SUFFIXES) for name in names)


def read(path: Path, size: int | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the episodes and an iterator over them. Reads all CSVs first: any may have a new action."""
    walks = list(_walks(path))
    require(bool(walks), f"{path}: no videos or numbered pictures with a CSV in it")
    first = walks[0]
    stored = video.shape_of(first.seen) if isinstance(first.seen, Path) else pictures.of_file(first.seen[0]).shape
    with about(path):
        columns, known = _columns(first.done), _Known()
        for walk in walks:
            same = _columns(walk.done) == columns
            require(same, f"{walk.done.name} has other columns than {first.done.name}: expected {', '.join(columns)}")
            for number, row in _rows(walk.done, columns):
                if "action" in columns:
                    known.add(row[columns.index("action")], f"{walk.done.name} line {number}")
        poses = sum(name in columns for name in POSE)
        vector = sum(name.startswith("action_") for name in columns)
        names = None if vector else known.names()
        kind = Kind(frame_shape(stored, size), names, vector or len(names or (0,)), poses, NAME)
    return kind, _episodes(walks, kind, columns)


class _Known:
    """The actions found so far."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.largest, self.whole, self.real = 0, True, True

    def add(self, word: str, where: str) -> None:
        """Add an action; an empty word means that there is none."""
        number = _number(word) if word else -1.0
        self.real = self.real and (number is not None or word == "")
        is_whole = number is not None and number == number // 1 and -1 <= number < MOST_NUMBERS
        self.whole = self.whole and is_whole
        self.largest = max(self.largest, int(number)) if is_whole and number is not None else self.largest
        if word and len(self.words) <= MOST_NUMBERS:
            self.words.add(word)
        require(self.real or len(self.words) <= MOST_NUMBERS, f"{where}: more than {MOST_NUMBERS} different actions")

    def names(self) -> tuple[str, ...] | None:
        """Names of discrete actions; None if they are real numbers."""
        if self.whole:
            return numbered(self.largest + 1)
        return None if self.real else tuple(sorted(self.words))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _walks(path: Path) -> Iterator[_Walk]:
    """The episodes of a folder, in the order of their names."""
    for folder in (path, *sorted(filter(Path.is_dir, path.iterdir()))):
        files = sorted(file for file in folder.iterdir() if file.is_file())
        films = [file for file in files if file.suffix.lower() in video.SUFFIXES]
        for film in films:
            done = film.with_suffix(".csv")
            require(done.is_file(), f"{film}: no {done.name} beside it; expected a line for each frame in it")
            yield _Walk(film, done)
        frames = [file for file in files if file.suffix.lower() in PICTURES]
        if frames and not films:
            tables = [file for file in files if file.suffix.lower() == ".csv"]
            require(len(tables) == 1, f"{folder}: {len(tables)} CSVs beside its pictures; expected one")
            yield _Walk(_in_order(folder, frames), tables[0])


def _in_order(folder: Path, frames: list[Path]) -> tuple[Path, ...]:
    """Sort pictures by the last number in their names; refuse gaps."""
    found: dict[int, Path] = {}
    for frame in frames:
        digits = re.findall(r"\d+", frame.stem)
        require(
            bool(digits) and len(digits[-1]) < 16, f"{frame}: no number in its name; expected 000.png, 001.png, ..."
        )
        number = int(digits[-1])
        require(number not in found, f"{frame} and {found.get(number, frame).name} have the same number")
        found[number] = frame
    for missing in range(min(found), min(found) + len(found)):
        require(missing in found, f"{folder}: picture {missing} is missing; actions and frames would not agree")
    return tuple(found[number] for number in sorted(found))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a CSV with their numbers; a line that is too long is refused."""
    with opened(path) as file:
        for number in range(1, MOST_ROWS):
            line = file.readline(MOST_LINE + 1)
            if not line:
                return
            require(len(line) <= MOST_LINE, f"{path.name} line {number} has more than {MOST_LINE:,} bytes")
            try:
                fields = next(csv.reader([line.decode("utf-8-sig")]), [])
            except (UnicodeDecodeError, csv.Error) as problem:
                raise InputError(f"{path.name} line {number} is no CSV ({problem})") from None
            if fields:
                yield number, [field.strip() for field in fields]


def _columns(path: Path) -> tuple[str, ...]:
    """Read the column names of the head line; those that are not used become empty."""
    head = next(_lines(path), (0, []))[1]
    known = [name.lower() for name in head]
    numbers = sorted(int(name[7:]) for name in known if re.fullmatch(r"action_\d{1,4}", name))
    held = shortened(", ".join(head), 200) or "nothing"
    fix = "expected a head line with action, or action_0, action_1, ..."
    plain = "action" in known
    require(plain or numbers == list(range(len(numbers))) != [], f"{path.name} has columns {held}; {fix}")
    require(not (plain and numbers), f"{path.name} has both action and action_0; {fix}")
    used = {"action", *(f"action_{number}" for number in numbers)}
    if "x" in known and "y" in known:
        used |= set(POSE)
    for name in used:
        require(known.count(name) <= 1, f"{path.name} has {known.count(name)} columns called {name}")
    return tuple(name if name in used else "" for name in known)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines below the head line."""
    lines = _lines(path)
    next(lines, None)
    for number, row in lines:
        fits_in = len(row) == len(columns)
        require(fits_in, f"{path.name} line {number} has {len(row)} columns; the head line has {len(columns)}")
        yield number, ["" if field.lower() == "nan" else field for field in row]


def _episodes(walks: list[_Walk], kind: Kind, columns: tuple[str, ...]) -> Iterator[Episode]:
    for walk in walks:
        with about(walk.name):
            if isinstance(walk.seen, tuple):
                blocks: Iterator[np.ndarray] = (pictures.of_file(frame)[None] for frame in walk.seen)
                count = len(walk.seen)
            else:
                blocks = video.frames(walk.seen)
                count = video.count(walk.seen)
            require_fits(count, kind)
            actions, poses = _done(walk.done, kind, columns, count)
            rows = len(actions)
            fix = "expected one for each, or one action fewer"
            require(count in (rows, rows + 1), f"{rows} actions for {count} frames; {fix}")
            if count < 2:
                continue
            episode = episode_of_rows(kind, blocks, actions[: count - 1], poses, place="", seed=0)
        yield episode


def _done(path: Path, kind: Kind, columns: tuple[str, ...], most: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Read actions and poses, at most `most` rows of them."""
    where = [i for i, name in enumerate(columns) if name.startswith("action")]
    where.sort(key=lambda i: int(columns[i][7:] or 0))
    posed = [columns.index(name) for name in POSE if name in columns]
    words = {name: number for number, name in enumerate(kind.action_names or ())}
    actions: list[list[float]] = []
    poses: list[list[float]] = []
    for number, row in _rows(path, columns):
        require(len(actions) < most, f"{path.name} has more than {most} rows; expected one for each frame")
        values = [row[i] for i in where]
        if kind.discrete:
            known = words.get(values[0])  # words; numbers may be written differently, such as 1.0
            actions.append([_real(values[0] or "-1", path, number) if known is None else known])
        else:
            actions.append([_real(value, path, number) for value in values])
        poses.append([_real(row[i], path, number) for i in posed])
    done = np.asarray(actions, np.float64).reshape(len(actions), len(where))
    return as_actions(done, kind), np.asarray(poses, np.float64) if posed else None


def _real(text: str, path: Path, line: int) -> float:
    """Parse a number; NaN if the field is empty."""
    number = _number(text) if text else float("nan")
    require(number is not None, f"{path.name} line {line}: {shown(text)} is no number")
    assert number is not None
    return number
