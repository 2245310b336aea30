"""Read untrusted HDF5 files: a dataset is used only if it is as large as it declares, and stored in that file.

HDF5 can point into other files, compute a dataset from others and declare sizes for which nothing is stored. All of
these are refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gtmsm.config import require
from gtmsm.episodes.formats.rows import INFLATED, MOST_ROWS, library
from gtmsm.errors import shortened, shown
from gtmsm.files import ANYHOW, opened, refusing

MAGIC = b"\x89HDF\r\n\x1a\n"
MOST_CHUNK = 2**28
"""Maximum bytes of a chunk, which is always unpacked as a whole."""
MOST_ATTRIBUTE = 2**16


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Open an HDF5 file to read; any error inside becomes a message of one line."""
    h5py = library("h5py")
    with suppress(ImportError):
        import_module("hdf5plugin")  # more compression filters, if it is installed
    with opened(path) as file:
        require(file.read(len(MAGIC)) == MAGIC, f"{path}: not an HDF5 file; is it whole?")
    with (
        refusing(f"{path}: cannot be read as HDF5", "is it whole? Packed by a plugin: pip install hdf5plugin"),
        h5py.File(path, "r", locking=False) as content,
    ):
        yield content


def names(group: Any) -> list[str]:
    """Names in a group, at most 100,000 of them."""
    return [name for name, _ in zip(group, range(100_000), strict=False)]


def member(group: Any, name: str) -> Any:
    """Return a group or dataset of this name that lies in the same file, or None."""
    h5py = library("h5py")
    link = group.get(name, getlink=True)
    if link is None:
        return None
    require(isinstance(link, h5py.HardLink), f"{shown(name)} is a link to elsewhere; copy the data into the file")
    return group[name]


def dataset(group: Any, name: str, packed: bool = False) -> Any:
    """Return a dataset of plain numbers (or, `packed`, of byte strings of any length) after checking it, or None."""
    h5py = library("h5py")
    found = member(group, name)
    if found is None:
        return None
    require(isinstance(found, h5py.Dataset), f"{shown(name)} is a group; expected an array")
    elsewhere = found.is_virtual or found.external is not None
    require(not elsewhere, f"{shown(name)} lies in other files; copy the data into this one")
    varying = h5py.check_vlen_dtype(found.dtype)
    plain = found.dtype.kind in "biufS" or (packed and varying == np.uint8)
    require(plain, f"{shown(name)} holds {shortened(str(found.dtype))}; expected plain numbers")
    require(found.ndim > 0 and found.shape[0] <= MOST_ROWS, f"{shown(name)} has shape {found.shape}; expected rows")
    stored = min(found.id.get_storage_size(), found.file.id.get_filesize())
    said = f"{shown(name)} declares {found.dtype} of shape {found.shape}"
    require(found.nbytes <= max(ANYHOW, INFLATED * stored), f"{said}, and stores {stored:,} bytes; is the file whole?")
    unpacked = int(np.prod(found.chunks or (1,), dtype=object)) * found.dtype.itemsize
    require(unpacked <= MOST_CHUNK, f"{said} in chunks of {unpacked:,} bytes; give chunks of at most {MOST_CHUNK:,}")
    return found


def attribute(group: Any, name: str) -> Any:
    """Parse the JSON of an attribute that `annotate` wrote; None if there is none."""
    if name not in group.attrs:
        return None
    held = group.attrs.get_id(name)
    if held.dtype.kind != "S" or held.shape != () or held.get_storage_size() > MOST_ATTRIBUTE:
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(group.attrs[name])
    return None


def annotate(group: Any, name: str, value: Any) -> None:
    """Write an attribute as JSON, in bytes of a fixed length: its size is then known before it is read."""
    group.attrs[name] = np.bytes_(json.dumps(value))
