"""Results on disk: one JSON file for each row and seed."""

import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.files import read_json, write_json
from gtmsm.reproduce.rows import ROWS

FORMAT = 1
DIGITS = 5
"""Significant digits of numbers in lists, which are curves to be drawn."""


@dataclass(frozen=True)
class Result:
    """The result of one training of a row."""

    row: str
    seed: int
    facts: dict[str, Any]
    """Contents of the file: date, commit, device, times, parameters, and scores by set."""


def result_path(out: Path, row: str, seed: int) -> Path:
    """Path of the result of a row and seed."""
    return out / f"{row.replace('/', '.')}.seed{seed}.json"


def write_result(out: Path, row: str, seed: int, facts: dict[str, Any]) -> None:
    """Write a result atomically, with its provenance."""
    plain = {"format": FORMAT, "row": row, "seed": seed, **provenance(), **facts}
    write_json(result_path(out, row, seed), _brief(plain))


def read_results(folder: Path) -> list[Result]:
    """All results in a folder, sorted by row and seed."""
    require(folder.is_dir(), f"{folder} is no folder of results; make one with `gtmsm reproduce --out {folder}`")
    return sorted(_read(folder), key=lambda result: (result.row, result.seed))


def _read(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.glob("*.seed*.json")):
        facts = read_json(path, "make it again with `gtmsm reproduce`")
        made = isinstance(facts.get("row"), str) and isinstance(facts.get("seed"), int)
        if not (made and isinstance(facts.get("scores"), dict) and facts.get("format") == FORMAT):
            raise InputError(f"{path} is no result of `gtmsm reproduce` of this version; remove it and make it again")
        if facts["row"] not in ROWS:
            raise InputError(f'{path} is of row "{facts["row"]}", which this version does not have; remove it')
        yield Result(facts["row"], facts["seed"], facts)


def provenance() -> dict[str, Any]:
    """Day (UTC), version, commit, PyTorch version and machine that something is made on and with."""
    from gtmsm import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "version": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "machine": gpu or f"{torch.get_num_threads()} threads of a {platform.machine()} CPU",
    }


def _commit() -> str | None:
    """Commit of the repository of this package, with a plus if its files differ from it; None outside a repository."""

    def git(*words: str) -> str:
        package = Path(__file__).parents[1]
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", "__init__.py")  # fails if installed inside another repository
        return git("rev-parse", "--short=7", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _brief(value: Any) -> Any:
    """Round floats in lists to few digits, so that files are small enough to be committed."""
    if isinstance(value, dict):
        return {name: _brief(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [float(f"{part:.{DIGITS}g}") if isinstance(part, float) else _brief(part) for part in value]
    return value
