"""Verify every checksum of a store, name exactly what is damaged, and repair it by dropping nothing else."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store import BUSY, ROOT, WRITER, add_part, in_order, read_root, settle, whole_parts
from gtmsm.episodes.store_array import Damage, Layout
from gtmsm.episodes.store_manifest import MANIFEST, Manifest, Part
from gtmsm.episodes.store_part import as_json, descriptions, group, layouts, read_episode, rows_of
from gtmsm.errors import InputError
from gtmsm.files import locked, write_atomically

THREADS = 2
MOST_LINES = 20
"""Maximum lines about damages of one part; further ones are only counted."""


@dataclass
class Harm:
    """Damages of a part."""

    lines: list[str] = field(default_factory=list)
    episodes: set[int] = field(default_factory=set)
    """Its episodes that are lost, counted within the part."""
    rewrite: bool = False
    """Whether files of arrays differ from what was written."""
    descriptions: dict[str, bytes] = field(default_factory=dict)
    """Correct content of the files for zarr that are missing or changed."""


def verify(path: Path, repair: bool = False, writing: str = "") -> list[str]:
    """Return a line for each damage; `writing` is the writer, if any, that the caller has locked already.

    A repair keeps every episode whose own bytes are intact, even if the manifest has lost it.
    """
    kind, chunk = read_root(path)
    arrays, lines, first = layouts(kind, chunk), [], 0
    names = [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    for writer in sorted(filter(WRITER.fullmatch, names), key=in_order):
        folder = path / writer
        if not (folder / MANIFEST).exists() and not any(name.isdecimal() for name in os.listdir(folder)):
            continue
        with ExitStack() as held:
            idle = writer != writing
            if idle:
                try:
                    held.enter_context(locked(folder, BUSY) if os.access(folder, os.W_OK) or repair else nullcontext())
                except InputError:
                    if repair:
                        raise
                    idle = False  # parts that it does not list yet are no damage
            found, first = _verify_writer(folder, kind, arrays, repair, idle, first)
            lines += found
    return lines


def _verify_writer(
    folder: Path, kind: Kind, arrays: dict[str, Layout], repair: bool, idle: bool, first: int
) -> tuple[list[str], int]:
    """Damages in the parts of one writer, whose first episode is number `first`; and the number after its last."""
    path, lines = folder / MANIFEST, []
    manifest = Manifest.read(path, kind) if path.exists() else Manifest(path, kind, damaged=[f"{path} is missing"])
    lines += manifest.damaged
    unlisted = list(whole_parts(folder, manifest.parts, arrays)) if idle else []
    for part in unlisted:
        lines.append(f"{folder / part.folder}: whole, but {MANIFEST} does not list it: {len(part.steps)} episodes")
    known = {part.folder for part in (*manifest.parts, *unlisted)}
    for name in sorted(set(filter(str.isdecimal, os.listdir(folder))) - known) if manifest.damaged else ():
        lines.append(f"{folder / name}: neither listed nor whole; {'dropped' if repair else 'lost'}")
    if not (folder / ROOT).is_file():
        lines.append(f"{folder / ROOT} is missing: zarr needs it")
        if repair:
            write_atomically(folder / ROOT, as_json(group({})))
    parts = sorted([*manifest.parts, *unlisted], key=lambda part: part.origin) if unlisted else manifest.parts
    with ThreadPoolExecutor(THREADS) as pool:
        harms = list(pool.map(lambda part: _harm(folder, part, arrays), parts))
    kept: list[Part] = []
    for part, harm in zip(parts, harms, strict=True):
        lost = [first + nth for nth in sorted(harm.episodes)]
        lines += harm.lines[:MOST_LINES]
        if len(harm.lines) > MOST_LINES:
            lines.append(f"{folder / part.folder}: {len(harm.lines) - MOST_LINES} more such damages")
        if lost:
            lines[-1] += f"; {'dropped' if repair else 'lost'}: {_listed(lost)}"
        first += len(part.steps)
        if repair:
            kept.append(_mended(folder, part, harm, arrays))
    if repair and (manifest.damaged or kept != manifest.parts):
        manifest = Manifest.write(path, kind, kept)
        settle(folder, manifest.parts, arrays)  # removes what has been replaced
    return lines, first


def _harm(folder: Path, part: Part, arrays: dict[str, Layout]) -> Harm:
    """Read a whole part; return its damages."""
    harm, ends = Harm(), np.cumsum(part.steps)
    if not part.steps:
        return harm
    inside = folder / part.folder
    if not inside.is_dir():
        return Harm([f"{inside} is missing"], set(range(len(ends))), True)
    for name, layout in arrays.items():
        # Poses have one row more for each episode.
        more = np.arange(len(ends)) if name == "poses" else np.zeros_like(ends)
        low, high = ends - part.steps + more, ends + more + (name == "poses")
        size, checksum = part.files.get(name, (0, 0))
        try:
            for problem in layout.damages(inside / name / layout.file_name, rows_of(name, part), size, checksum):
                harm.lines += filter(None, [str(problem)])
                harm.rewrite = True
                if problem.chunk >= 0:
                    begin = problem.chunk * layout.chunk
                    harm.episodes.update(np.flatnonzero((low < begin + layout.chunk) & (high > begin)).tolist())
        except Damage as problem:  # there is no such file
            harm.lines.append(str(problem))
            harm.rewrite, harm.episodes = True, set(range(len(ends)))
    for name, said in descriptions(part, arrays).items():
        path = inside / name
        if not path.is_file() or path.stat().st_size > 2**24 or path.read_bytes() != as_json(said):
            harm.lines.append(f"{path} {'is not as it was written' if path.is_file() else 'is missing'}: zarr needs it")
            harm.descriptions[name] = as_json(said)
    return harm


def _mended(folder: Path, part: Part, harm: Harm, arrays: dict[str, Layout]) -> Part:
    """Write a part without its damaged episodes; if all are lost, a part without episodes."""
    if not harm.rewrite:
        for name, content in harm.descriptions.items():
            write_atomically(folder / part.folder / name, content)
        return part
    sizes = {name: _size(folder / part.folder / name / layout.file_name) for name, layout in arrays.items()}
    there = Part(part.number, part.steps, part.places, part.seeds, {n: [s, 0] for n, s in sizes.items()}, part.origin)
    rows = np.cumsum(part.steps) - part.steps
    whole: list[Episode] = [
        read_episode(folder, there, arrays, nth, int(rows[nth]), 0, steps)
        for nth, steps in enumerate(part.steps)
        if nth not in harm.episodes
    ]
    if not whole:
        return Part(part.number, [], [], [], {}, part.origin)
    unused = 1 + max(int(name) for name in os.listdir(folder) if name.isdecimal())
    return add_part(folder, unused, whole, arrays, part.origin)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _listed(numbers: list[int]) -> str:
    """Numbers of episodes as text: 1, 2, 3 and 7 are "episodes 1 to 3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    said = ", ".join(f"{low} to {high}" if high > low else str(low) for low, high in runs[:10])
    return f"episode{'s' if len(numbers) > 1 else ''} {said}{', …' if len(runs) > 10 else ''}"
