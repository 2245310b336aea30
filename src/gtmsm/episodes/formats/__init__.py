"""Readers of recordings in common formats: one module for each, with `fits`, `read` and, in some, `write`."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gtmsm.config import require
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats import folder, lerobot, minari, npz, store, worldmodel
from gtmsm.errors import InputError, did_you_mean, shortened
from gtmsm.files import as_path

FORMATS: dict[str, ModuleType] = {module.NAME: module for module in (store, npz, worldmodel, minari, lerobot, folder)}
"""By name, in the order in which they are tried."""
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".npy")


def format_named(name: str) -> ModuleType:
    """Return a format by its name."""
    require(name in FORMATS, f'no format "{shortened(name)}"; {did_you_mean(name, FORMATS)}')
    return FORMATS[name]


def open_any(
    path: str | Path, size: int | None = None, format: str | None = None, camera: str | None = None
) -> tuple[Kind, Iterator[Episode]]:
    """Open a recording in any known format: return the kind of its episodes, and an iterator over them."""
    path = as_path(path)
    require(path.exists(), f"{path}: no such file or folder")
    module = format_named(format) if format else _format_of(path)
    if camera is None:
        return module.read(path, size)
    require(module is lerobot, f"--camera chooses among those of a LeRobot folder; {path} is {module.NAME}")
    return lerobot.read(path, size, camera)


def _format_of(path: Path) -> ModuleType:
    """Detect the format of a path."""
    if path.suffix.lower() in PICKLES:
        raise InputError(f"{path}: may be a pickle, which can run anything; save plain arrays: numpy.savez(...)")
    for module in FORMATS.values():
        if module.fits(path):
            return module
    known = "a store, .npz, .h5, a folder of Minari, of LeRobot v3, or of MP4s or pictures with a CSV"
    raise InputError(f"{path}: {_found(path)}; expected {known}")


def _found(path: Path) -> str:
    """Describe what is at a path, for an error message."""
    if path.is_dir():
        names = sorted(entry.name for entry, _ in zip(path.iterdir(), range(1_000), strict=False))
        return f"a folder of {shortened(', '.join(names), 120) or 'nothing'}"
    return f"a file that ends with {path.suffix}" if path.suffix else "a file without an ending"
