"""Results on disk: one file of JSON for each row and seed."""

import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.files import read_json, write_json
from gtmsm.reproduce.rows import ROWS

FORMAT = 1
DIGITS = 5
"""Significant digits of numbers in lists: curves are looked at, not computed with."""


@dataclass(frozen=True)
class Result:
    """What one training of a row has shown."""

    row: str
    seed: int
    facts: dict[str, Any]
    """All that the file says: commit, device, times, parameters, and scores by set."""


def result_path(out: Path, row: str, seed: int) -> Path:
    """Where the result of a row and seed belongs."""
    return out / f"{row.replace('/', '.')}.seed{seed}.json"


def write_result(out: Path, row: str, seed: int, facts: dict[str, Any]) -> None:
    """Write a result whole or not at all."""
    plain = {"format": FORMAT, "row": row, "seed": seed, **provenance(), **facts}
    write_json(result_path(out, row, seed), _brief(plain))


def read_results(folder: Path) -> list[Result]:
    """All results of a folder, by row and seed."""
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
    """By which code, and where, something was made."""
    from gtmsm import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "version": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "machine": gpu or f"{torch.get_num_threads()} threads of a {platform.machine()} CPU",
    }


def _commit() -> str | None:
    """Of the repository that this package is in, with a plus where its files differ from it; None: it is in none."""

    def git(*words: str) -> str:
        package = Path(__file__).parents[1]
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", "__init__.py")  # or it is installed inside of another repository
        return git("rev-parse", "--short=7", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _brief(value: Any) -> Any:
    """Floats in lists with few digits, so that files stay small enough to be kept."""
    if isinstance(value, dict):
        return {name: _brief(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [float(f"{part:.{DIGITS}g}") if isinstance(part, float) else _brief(part) for part in value]
    return value
