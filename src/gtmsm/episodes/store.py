"""Episodes on disk: a store that can grow while it is read, has several writers, and loses nothing that was appended.

    PATH/zarr.json               version and kind; the store is a hierarchy of zarr 3
    PATH/WRITER/manifest.jsonl   what the writer has appended; only this counts (`store_manifest`)
    PATH/WRITER/000012/          a part: the episodes of one call of `append` (`store_part`)

A part is written under a temporary name, flushed to disk and renamed; then its line is added to the manifest. Writers
share nothing but PATH/zarr.json, so folders of writers on other machines can be copied into one store.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from gtmsm.config import require, require_whole
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store_array import Layout
from gtmsm.episodes.store_manifest import MANIFEST, VERIFY, VERSION, Manifest, Part, require_version
from gtmsm.episodes.store_part import (
    MOST_CHUNK,
    as_json,
    chunk_of,
    find_part,
    group,
    layouts,
    read_episode,
    write_part,
)  # fmt: skip
from gtmsm.errors import InputError, shown
from gtmsm.files import LOCK, OURS, as_path, locked, read_json, require_folder, sync, write_atomically

ROOT = "zarr.json"
WRITER = re.compile(r"[A-Za-z0-9_-]{1,64}")
BUSY = "{folder} is being written by process {by}; wait until it has ended, or be another writer"


class Store:
    """A store of episodes (see the module): `create` to write, `open` to read. A `with` block or `close` closes it."""

    def __init__(self, path: Path, kind: Kind, chunk: int) -> None:
        self.path, self.kind, self.chunk = path, kind, chunk
        self.arrays = layouts(kind, chunk)
        self.manifests: dict[str, Manifest] = {}
        self._writer, self._closing = "", ExitStack()

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store to read, also while others write to it; only its manifests are read now."""
        store = cls(as_path(path), *read_root(as_path(path)))
        store.refresh()
        return store

    @classmethod
    def create(cls, path: Path, kind: Kind, writer: str = "0") -> "Store":
        """Open a store to append to. It is created if there is none; `writer` is a new one, or one that continues."""
        path = as_path(path)
        named = isinstance(writer, str) and WRITER.fullmatch(writer) is not None
        require(named, f"writer is {shown(writer)}; give a name of letters, digits, - and _")
        _make_root(path, kind)
        there, chunk = read_root(path)
        _require_same(path, there, kind)
        store = cls(path, kind, chunk)
        store._write_as(writer)
        store.refresh()
        return store

    def _write_as(self, writer: str) -> None:
        """Lock a writer's folder until this store is closed or its process ends; list what a crash left unlisted."""
        folder = self.path / writer
        folder.mkdir(exist_ok=True)
        self._closing.enter_context(locked(folder, BUSY))
        self._writer = writer
        if not (folder / ROOT).exists():
            write_atomically(folder / ROOT, as_json(group({})))
        if not (folder / MANIFEST).exists():
            if any(name.isdecimal() for name in os.listdir(folder)):
                how = f"list what is there with: {VERIFY.format(path=self.path)} --repair"
                raise InputError(f"{folder / MANIFEST} is missing; restore it, or {how}")
            Manifest.write(folder / MANIFEST, self.kind)
        manifest = self.manifests[writer] = Manifest.read(folder / MANIFEST, self.kind)
        require_whole_manifest(manifest)
        for part in settle(folder, manifest.parts, self.arrays):
            manifest.append(part)

    def close(self) -> None:
        """Release the lock of the writer."""
        self._closing.close()
        self._writer = ""

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.lengths)

    def append(self, *episodes: Episode) -> None:
        """Append episodes, all or none. Once this returns they are on disk, and readers that open or refresh see them.

        Each call makes a part, which costs some ten files and milliseconds, so give several episodes at once.
        """
        require(self._writer != "", "this store is open to read; Store.create opens it to append")
        for episode in episodes:
            episode.require(self.kind)
        if not episodes:
            return
        manifest, folder = self.manifests[self._writer], self.path / self._writer
        number = 1 + max((part.number for part in manifest.parts), default=-1)
        try:
            part = add_part(folder, number, episodes, self.arrays, number)
            try:
                manifest.append(part)
            except OSError:
                shutil.rmtree(folder / part.folder, ignore_errors=True)
                raise
        except OSError as problem:
            raise InputError(
                f"could not append to {folder}: {problem.strerror or problem}; nothing was added"
            ) from None
        self.__dict__.pop("_table", None)

    def refresh(self) -> None:
        """Read what was written since. Episodes are renumbered if any writer but the last in order has appended."""
        for writer in writers_of(self.path):
            if writer not in self.manifests:
                self.manifests[writer] = Manifest.read(self.path / writer / MANIFEST, self.kind)
            elif writer != self._writer:
                self.manifests[writer].read_on()
            require_whole_manifest(self.manifests[writer])
        self.__dict__.pop("_table", None)

    def episode(self, i: int) -> Episode:
        """Read a whole episode."""
        return self.window(i, 0, int(self.lengths[self._number(i)]))

    def window(self, i: int, first: int, steps: int, frames: np.ndarray | None = None) -> Episode:
        """Read `steps` steps of an episode from step `first` (counted from 0); its start is the pose before that step.

        `frames`: contiguous memory of their shape to read frames into, instead of a new array.
        """
        length = int(self.lengths[self._number(i)])
        require_whole("first", first, 0, length - 1)
        require_whole("steps", steps, 1, length - first)
        shape = steps, *self.kind.frame_shape
        if frames is not None and not (
            frames.dtype == np.uint8 and frames.shape == shape and frames.flags.c_contiguous
        ):
            given = f"{frames.dtype} of shape {frames.shape}"
            raise InputError(f"frames are {given}; expected contiguous uint8 of shape {shape}")
        table = self._table
        folder, part = table.parts[table.part[i]]
        return read_episode(folder, part, self.arrays, int(table.nth[i]), int(table.row[i]), first, steps, frames)

    def verify(self, repair: bool = False) -> list[str]:
        """Read everything, and return a line for each damage. `repair` drops damaged episodes, and only those."""
        from gtmsm.episodes.store_verify import verify

        lines = verify(self.path, repair, self._writer)
        if self._writer:
            self.manifests[self._writer].read_on()
        self.refresh()
        return lines

    def _number(self, i: int) -> int:
        if not -1 < i < len(self):
            raise IndexError(f"episode {i} of {len(self)}")
        return i

    @cached_property
    def _table(self) -> "_Table":
        """Index of all episodes, built on demand."""
        order = sorted(self.manifests, key=in_order)
        return _Table([(f"{self.path}/{name}", part) for name in order for part in self.manifests[name].parts])

    @property
    def lengths(self) -> Int64[np.ndarray, "episodes"]:
        """Steps of each episode, sorted by writer, then in the order in which they were appended."""
        return self._table.lengths

    @property
    def places(self) -> list[str]:
        """The place of each episode."""
        return self._table.places

    @property
    def seeds(self) -> Int64[np.ndarray, "episodes"]:
        """The seed of each episode."""
        return self._table.seeds

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of kind, lengths, places, seeds and checksums of all episodes, in their order."""
        held = [[part.steps, part.places, part.seeds, part.files] for _, part in self.parts]
        return hashlib.sha256(json.dumps([asdict(self.kind), held], sort_keys=True).encode()).hexdigest()

    @property
    def parts(self) -> list[tuple[str, Part]]:
        """All parts, and the folders of their writers, in the order of their episodes."""
        return self._table.parts


class _Table:
    """The part, the number in it and the row of each episode."""

    def __init__(self, parts: list[tuple[str, Part]]) -> None:
        self.parts = [(folder, part) for folder, part in parts if part.steps]
        self.lengths = np.array([steps for _, part in self.parts for steps in part.steps], np.int64)
        self.places = [place for _, part in self.parts for place in part.places]
        self.seeds = np.array([seed for _, part in self.parts for seed in part.seeds], np.int64)
        counts = np.array([len(part.steps) for _, part in self.parts], np.int64)
        every = np.arange(len(self.lengths))
        self.part = np.repeat(np.arange(len(counts)), counts)
        self.nth = every - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.cumsum(self.lengths) - self.lengths
        self.row = begins - begins[every - self.nth]


def in_order(writer: str) -> tuple[int, str]:
    """Sort key of writers that puts "2" before "10"."""
    return len(writer), writer


def writers_of(path: Path) -> list[str]:
    """Names of the writers of a store, in order."""
    names = (entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    return sorted((n for n in names if WRITER.fullmatch(n) and (path / n / MANIFEST).exists()), key=in_order)


def read_root(path: Path) -> tuple[Kind, int]:
    """Read the kind of a store, and the number of frames in its chunks."""
    root = path / ROOT
    if not root.is_file():
        what = f"not a store of episodes: there is no {ROOT} in it" if path.is_dir() else "not a store, but a file"
        fix = f"record one, or make one of other recordings: gtmsm data convert {path} OUT"
        raise InputError(f"{path}: {f'{what}; {fix}' if path.exists() else 'no such folder'}")
    said = read_json(root, "restore it from a copy")
    about = said.get("attributes", {}).get("gtmsm", {}) if isinstance(said.get("attributes"), dict) else {}
    if not isinstance(about, dict) or "store" not in about:
        raise InputError(f"{path} is not a store of episodes: {root} does not say so")
    require_version(about["store"], str(root))
    chunk: Any = about.get("chunk")
    require_whole(f"{root}: chunk", chunk, 1, MOST_CHUNK)
    try:
        kind = Kind(**about["kind"])
        require(chunk <= max(1, 2 * chunk_of(kind)), f"chunk is {chunk}, too many for frames of {kind.frame_shape}")
        return kind, int(chunk)
    except (TypeError, LookupError):
        raise InputError(f"{root} does not describe the kind of episodes; restore it from a copy") from None
    except InputError as problem:
        raise InputError(f"{root}: {problem}") from None


def _make_root(path: Path, kind: Kind) -> None:
    """Create an empty store, unless there is one; writers that do so at the same time write the same bytes."""
    require_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    if (path / ROOT).exists():
        return
    foreign = [name for name in os.listdir(path) if not name.startswith(".gtmsm-")]
    if foreign and not (path / ROOT).exists():
        raise InputError(f"{path} is no store, and holds {shown(foreign[0])}; give a new or empty folder")
    about = {"store": VERSION, "chunk": chunk_of(kind), "kind": asdict(kind)}
    write_atomically(path / ROOT, as_json(group(about)))
    sync(path)


def _require_same(path: Path, there: Kind, kind: Kind) -> None:
    """Refuse episodes of another kind than those of the store."""
    for name, value in asdict(there).items():
        given = f"{name} is {shown(value)} there, {shown(getattr(kind, name))} here"
        require(value == getattr(kind, name), f"{path} holds episodes of another kind ({given}); give another path")


def require_whole_manifest(manifest: Manifest) -> None:
    """Refuse a damaged manifest: episodes that it no longer lists would be missing without notice."""
    if manifest.damaged:
        raise InputError(f"{manifest.damaged[0]}; see: {VERIFY.format(path=manifest.path.parent.parent)}")


def add_part(
    folder: Path, number: int, episodes: tuple[Episode, ...] | list[Episode], arrays: dict[str, Layout], origin: int
) -> Part:
    """Write a new part into the folder of its writer, complete or not at all; the manifest does not list it yet."""
    draft = folder / f".gtmsm-{secrets.token_hex(4)}"
    try:
        part = write_part(draft, number, episodes, arrays, origin)
        draft.rename(folder / part.folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(folder)
    return part


def whole_parts(folder: Path, parts: list[Part], arrays: dict[str, Layout]) -> Iterator[Part]:
    """Complete parts that the manifest does not list: `append` was killed before its last write."""
    numbers, origins = {part.number for part in parts}, {part.origin for part in parts if part.steps}
    for name in sorted(os.listdir(folder)):
        part = find_part(folder / name, arrays) if name.isdecimal() else None
        if part and part.number not in numbers and part.origin not in origins:
            yield part


def settle(folder: Path, parts: list[Part], arrays: dict[str, Layout]) -> list[Part]:
    """Clean up after a crash: return the `whole_parts`, to be listed, and remove everything else that was left."""
    found = list(whole_parts(folder, parts, arrays))
    keep = {part.folder for part in (*parts, *found) if part.steps}
    for name in os.listdir(folder):
        left = name.isdecimal() and name not in keep
        if (left or OURS.fullmatch(name) and name != LOCK) and (folder / name).is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
    return found
