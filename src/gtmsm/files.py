"""Writing files so that a crash or a full disk never leaves half a file, nor loses the one before."""

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gtmsm.errors import InputError, shown


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, of the same suffix, that takes its place if the block succeeds."""
    if path.exists() and not path.is_file():  # root could replace even /dev/null
        raise InputError(f"cannot write {path}: it is a folder, a device or a pipe; give a file")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 is for secrets
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
        raise InputError(f"cannot write into {folder}: {there} belongs to another user")


def require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    require_folder(path.parent)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step; on failure what was there before stays."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise InputError(f"could not write {path}: {problem.strerror or problem}; nothing was changed") from problem


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """A safetensors file, atomically, with a description of ours inside."""
    # A copy of each, wherever it is: safetensors refuses tensors that share memory.
    whole = {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    write_atomically(path, save(whole, {"gtmsm": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors that `write_tensors` wrote; nothing is ever unpickled."""
    try:
        with safe_open(path, framework="pt") as content:
            about = (content.metadata() or {}).get("gtmsm")
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as problem:
        raise InputError(f"{path} cannot be read as a safetensors file ({problem}); is it whole?") from None
    if about is None:
        raise InputError(f"{path} holds weights of another program: gtmsm's own description is missing in it")
    return json.loads(about), tensors


def read_arrays(path: Path, names: Iterable[str], fix: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays called `names` of an .npz, where they are there, and all names that it holds; nothing is unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = list(getattr(archive, "files", ()))
            return {name: archive[name] for name in names if name in found}, ", ".join(found) or "nothing by name"
    except (OSError, ValueError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error):
        problem = "not a readable .npz of plain arrays (damaged, or another kind of file?)"
        raise InputError(f"{path}: {problem}; {fix}") from None
