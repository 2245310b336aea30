"""A run that may be harmed."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copied(toy_run: Path, tmp_path: Path) -> Path:
    """A run folder to do harm to."""
    return Path(shutil.copytree(toy_run, tmp_path / "run"))
