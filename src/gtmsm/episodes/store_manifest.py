"""The manifest of a writer: a line of JSON for each part that it appended, with a checksum, never changed afterwards.

    ["3f9a01c2", {"part": 12, "origin": 12, "steps": [300, 280], "places": ["a", "b"], "seeds": [1, 2],
                  "files": {"frames": [52311, 1838201], "actions": [...], "poses": [...]}}]

A part exists once its line does, with its line break; a line that a crash has truncated does not count. The first line
has the version and the kind of the episodes. `files` has the size of each file and the checksum of its index. `origin`
is the part that this one replaces after a repair, else itself. A part without episodes has been dropped.
"""

import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gtmsm.episodes.episode import LONGEST_NAME, MOST_STEPS, Kind
from gtmsm.episodes.store_array import checksum_of
from gtmsm.errors import InputError, shown
from gtmsm.files import opened, sync, write_atomically

VERSION = 1
MANIFEST = "manifest.jsonl"
MOST_BYTES = 2**30
"""Maximum bytes of a manifest: some millions of episodes."""
VERIFY = "gtmsm data verify {path}"


@dataclass(frozen=True, slots=True)
class Part:
    """Episodes that were appended together."""

    number: int
    steps: list[int]
    places: list[str]
    seeds: list[int]
    files: dict[str, list[int]]
    """For each array, the size of its file and the checksum of its index."""
    origin: int

    @property
    def folder(self) -> str:
        """Name of its folder in that of its writer."""
        return f"{self.number:06d}"

    def said(self) -> dict[str, Any]:
        """The part as it is written to the manifest."""
        said = asdict(self)
        return {"part": said.pop("number"), **said}

    @classmethod
    def of(cls, said: Any, source: str) -> "Part":
        """Read a part as `said` writes it; anything else is refused."""
        try:
            part = cls(said["part"], said["steps"], said["places"], said["seeds"], said["files"], said["origin"])
            many = len(part.steps)
            fits = (
                type(part.number) is type(part.origin) is int
                and 0 <= part.number < 10**9
                and len(part.places) == len(part.seeds) == many
                and all(type(n) is int and 0 < n <= MOST_STEPS for n in part.steps)
                and all(type(name) is str and len(name) <= LONGEST_NAME and name.isprintable() for name in part.places)
                and all(type(seed) is int and -(2**63) <= seed < 2**63 for seed in part.seeds)
                and all(type(size) is type(crc) is int and 0 <= size < 2**62 for size, crc in part.files.values())
            )
        except (TypeError, LookupError, AttributeError, ValueError):
            fits = False
        if not fits:
            raise InputError(f"{source} does not describe a part of a store")
        return part


@dataclass
class Manifest:
    """A manifest, as far as it has been read."""

    path: Path
    kind: Kind
    parts: list[Part] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Damages, a line for each."""
    end: int = 0
    """Bytes that have been read, in whole lines."""
    inode: int = 0

    @classmethod
    def read(cls, path: Path, kind: Kind) -> "Manifest":
        """Read all that there is now; damage is noted in `damaged`, not raised."""
        manifest = cls(path, kind)
        manifest.read_on()
        return manifest

    @classmethod
    def write(cls, path: Path, kind: Kind, parts: Sequence[Part] = ()) -> "Manifest":
        """Write a new manifest, which replaces any that exists."""
        lines = [_line({"manifest": VERSION, "kind": asdict(kind)}), *(_line(part.said()) for part in parts)]
        write_atomically(path, b"".join(lines))
        sync(path.parent)
        return cls.read(path, kind)

    def read_on(self) -> None:
        """Read what was appended since."""
        with opened(self.path) as file:
            about = os.fstat(file.fileno())
            if about.st_size > MOST_BYTES:
                raise InputError(f"{self.path} was not written by gtmsm: it has more than {MOST_BYTES:,} bytes")
            if about.st_ino != self.inode or about.st_size < self.end:  # it was repaired meanwhile
                self.parts, self.damaged, self.end, self.inode = [], [], 0, about.st_ino
            file.seek(self.end)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        first = self.end == 0
        self.end += len(whole)
        if first and not whole:
            self.damaged.append(f"{self.path} is empty")
        with _nothing_collected():
            self._take(whole, first)

    def _take(self, whole: bytes, first: bool) -> None:
        """Parse whole lines; `first`: they begin with the first line of the file."""
        for number, said in enumerate(_parse(whole)):
            source = f"{self.path} line {number + 1}" if first else f"{self.path}: a new line"
            if said is None:
                self.damaged.append(f"{source} fails its checksum")
            elif first and number == 0:
                self._require_head(said)
            else:
                try:
                    self.parts.append(Part.of(said, source))
                except InputError as problem:
                    self.damaged.append(str(problem))

    def append(self, part: Part) -> None:
        """Add a part; it is on disk when this returns. On failure the manifest is as before."""
        line = _line(part.said())
        handle = os.open(self.path, os.O_WRONLY)
        try:
            os.ftruncate(handle, self.end)  # a truncated line
            if os.pwrite(handle, line, self.end) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, self.end)
            raise
        finally:
            os.close(handle)
        self.end += len(line)
        self.parts.append(part)

    def _require_head(self, said: Any) -> None:
        """Refuse a manifest of a later version, or of episodes of another kind."""
        version = said.get("manifest") if isinstance(said, dict) else None
        require_version(version, str(self.path))
        if said.get("kind") != json.loads(json.dumps(asdict(self.kind))):
            raise InputError(f"{self.path} lists episodes of another kind: {shown(said.get('kind'))}")


def require_version(version: Any, source: str) -> None:
    """Refuse files of a later gtmsm, or of another program."""
    if type(version) is int and version > VERSION:
        raise InputError(
            f"{source} was written by a later gtmsm: version {shown(version)}, this one knows {VERSION}; "
            "install a newer gtmsm"
        )
    if version != VERSION:
        raise InputError(f"{source} was not written by gtmsm: its version is {shown(version)}")


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Pause garbage collection while hundreds of thousands of objects are made: it takes longer than making them."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _line(said: dict[str, Any]) -> bytes:
    """A line of the manifest: a checksum, and the JSON that it is of."""
    body = json.dumps(said).encode()
    return b'["%08x", %b]\n' % (checksum_of(body), body)


def _parse(lines: bytes) -> list[Any]:
    """Parse whole lines; None for each one that is damaged."""
    each = lines.split(b"\n")[:-1]
    checked = [line if line[2:10] == b"%08x" % checksum_of(line[13:-1]) else b"[0, null]" for line in each]
    try:  # a single call is several times as fast
        return [said for _, said in json.loads(b"[%b]" % b",".join(checked))]
    except (ValueError, TypeError, RecursionError):
        return [_parse_line(line) for line in checked]


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)[1]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
