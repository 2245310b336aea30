"""What tests of the command line have in common."""

from pathlib import Path

import numpy as np

TRAIN = ("train", "image-walk-small")


def files_below(folder: Path) -> dict[Path, bytes]:
    """Every file there is, to see whether anything was written."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def images(n: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, *shape)).astype(dtype)
