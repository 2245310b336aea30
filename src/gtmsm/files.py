"""Writing files so that a crash or a full disk never leaves half a file, nor loses the one before."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gtmsm.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, of the same suffix, that takes its place if the block succeeds."""
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


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step; on failure what was there before stays."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as problem:
        raise InputError(f"could not write {path}: {problem.strerror or problem}; nothing was changed") from problem
