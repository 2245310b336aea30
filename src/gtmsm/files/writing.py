"""Files written whole or not at all, folders locked while a process works in them, and checks before work begins."""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtmsm.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

LOCK = ".gtmsm-lock"
OURS = re.compile(r"\.gtmsm-(lock.*|[0-9a-f]{8}(\..*)?)", re.DOTALL)
"""Names of files that are there only while a process of ours works, or since it was killed."""
TEMPORARY: set[Path] = set()
"""What this process has to remove before it leaves, even where it leaves all of a sudden."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, of the same suffix, that takes its place if the block succeeds."""
    require_plain(path)
    _sweep(path.parent)
    with _held(path.with_name(f".gtmsm-{secrets.token_hex(4)}{path.suffix}"), wait=True) as (temporary, _):
        yield temporary
        sync(temporary)
        temporary.replace(path)


@contextmanager
def _held(path: Path, wait: bool, busy: str = "") -> Iterator[tuple[Path, int]]:
    """A file that is locked as long as the block, or else this process, lasts; removed at the end."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            by = os.pread(handle, 20, 0).decode(errors="replace").strip()
            os.close(handle)
            raise InputError(busy.format(folder=path.parent, by=by)) from None
        except OSError:
            pass  # a file system without locks
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # the process that held it has removed it meanwhile
    TEMPORARY.add(path)
    try:
        yield path, handle
    finally:
        path.unlink(missing_ok=True)
        TEMPORARY.discard(path)
        os.close(handle)


TRAINED = "{folder} is being trained by process {by}; wait until it has ended, or choose another --run"


@contextmanager
def locked(folder: Path, busy: str = TRAINED, name: str = LOCK) -> Iterator[int]:
    """Refuse a folder that another process has locked; the lock ends with the block, or with this process.

    It lasts longer only where another process was given the open file, whose descriptor this is.
    """
    require_folder(folder)
    with _held(folder / name, wait=False, busy=busy) as (_, handle):
        with suppress(OSError):  # on a full disk nobody learns who it is
            os.pwrite(handle, str(os.getpid()).encode().ljust(20), 0)
        yield handle


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left there; a living one holds a lock on its file."""
    names = os.listdir(folder) if os.access(folder, os.R_OK) else []
    for path in (folder / name for name in names if OURS.fullmatch(name) and not name.startswith(LOCK)):
        with suppress(OSError):  # it is held, or somebody else's, or already gone
            handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


def as_path(path: str | Path) -> Path:
    """A path that a user gave, if it is one."""
    if not isinstance(path, str | Path) or "\0" in str(path) or max(map(len, Path(path).parts), default=0) > 255:
        raise InputError(f"{shown(path)} is no path; give the name of a file or folder")
    return Path(path)


def require_folder(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or that cannot be written into, before any work is done."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise InputError(f"cannot write into {folder}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {folder}: {there} is not writable")


def require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    require_folder(path.parent)
    require_plain(path)


def require_plain(path: Path) -> None:
    """Refuse to replace a folder, a pipe or a device by a file."""
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is a {'folder' if path.is_dir() else 'device or pipe'}; name a file")


def sync(path: Path) -> None:
    """Make what is in a file, or the names in a folder, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step; on failure what was there before stays."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode(errors="surrogateescape") if isinstance(content, str) else content)
    except OSError as problem:
        kept = "; the one before is kept" if path.exists() else ""
        raise InputError(f"could not write {path}: {problem.strerror or problem}{kept}") from problem


def write_json(path: Path, said: Mapping[str, Any]) -> None:
    """Replace `path` by what is said by name: a line for each name, and lists of numbers or words on one line."""
    write_atomically(path, _as_json(said) + "\n")


def _as_json(value: Any, margin: str = "\n") -> str:
    """JSON, indented as deep as there are names in it."""
    inside = margin + " "
    if isinstance(value, Mapping) and value:
        parts = [f"{json.dumps(str(name))}: {_as_json(part, inside)}" for name, part in value.items()]
        return "{" + inside + ("," + inside).join(parts) + margin + "}"
    if isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value):
        return "[" + inside + ("," + inside).join(_as_json(part, inside) for part in value) + margin + "]"
    return json.dumps(value, allow_nan=False)


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], about: Mapping[str, Any]) -> None:
    """A safetensors file, atomically, with a description of ours inside."""
    import torch  # late: recording and looking at recordings do without it
    from safetensors.torch import save

    # A copy of each, wherever it is: safetensors refuses tensors that share memory.
    whole = {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    write_atomically(path, save(whole, {"gtmsm": json.dumps(about)}))
