"""Shipped weights and controls on fixed sets of which `gtmsm reproduce` has no row, as sections of docs/results.md.

.venv/bin/python benchmarks/shipped.py --out docs/measured    # 35-sets.json, 36-returns.json
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gtmsm import WorldModel
from gtmsm.evaluation.controls import control_forecasters
from gtmsm.evaluation.forecaster import ModelForecaster
from gtmsm.evaluation.forecasts import score_forecasters
from gtmsm.evaluation.sets import named_set
from gtmsm.files import write_json
from gtmsm.reproduce.results import provenance

WALKS = {
    "image-walk/builtin": ("image-walk", "image-walk-celeba"),
    "image-walk/obstacles": ("obstacles-free", "obstacles-celeba"),
}
"""Sets, and the shipped weights that are scored on each."""
ELSEWHERE = (0, 30, 100, 300)
"""Steps elsewhere before an agent comes back, by the sets `rooms/return-N`."""
CONTROLS = ("best_copy", "mean_frame", "last_frame")
COLUMNS = {"psnr_pooled": "all frames", "psnr_revisited": "memorised places", "psnr_unseen": "never seen"}
ABOUT = {
    "35-sets.json": (
        "Shipped weights on two [fixed sets](protocol.md#the-sets) of which [the tables](#rivals) have no row: views "
        "of photographs, 500 walks, 256 steps memorised, 256 predicted. `obstacles-free` and `obstacles-celeba` "
        "predict by the motion alone, which does not know the obstacles. *Best copy* is the memorised frame most "
        "similar to the answer; at memorised places it is exact."
    ),
    "36-returns.json": (
        "The shipped weights `rotate` in test rooms (`rooms/return-N` of the [fixed sets](protocol.md#the-sets)): an "
        "agent looks around, turns to and fro elsewhere for N steps, and comes back; 50 walks. Only the frames that it "
        "sees back at the start are scored. An exact copy counts 100 dB."
    ),
}
TITLES = {
    "35-sets.json": "Shipped weights on image walks", "36-returns.json": "Coming back in rooms, with shipped weights"
}  # fmt: skip


def scored(name: str, weights: Sequence[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Scores of shipped weights and of controls on one set, by their names in the table."""
    controls = control_forecasters()
    forecasters: dict[str, Any] = {f"`{each}`": ModelForecaster(WorldModel.load(each)) for each in weights}
    forecasters |= {control.replace("_", " "): controls[control] for control in CONTROLS}
    return score_forecasters(forecasters, named_set(name, quick=quick))


def write(folder: Path, name: str, columns: Sequence[str], rows: dict[str, list[float | None]]) -> None:
    """Write one section as a file that `make results` reads."""
    made = provenance()
    write_json(folder / name, {
        "section": TITLES[name],
        "about": ABOUT[name],
        "command": ["python benchmarks/shipped.py --out docs/measured"],
        "commit": made["commit"],
        "date": made["date"],
        "device": f"{made['machine']}, PyTorch {made['torch']}",
        "columns": [[column, "dB", 2] for column in columns],
        "rows": [{"name": row, "values": values} for row, values in rows.items()],
    })  # fmt: skip


def main() -> None:
    """Score all sets, and write two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--quick", action="store_true", help="small sets")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    walks = {name: scored(name, weights, given.quick) for name, weights in WALKS.items()}
    rows = {
        f"`{name}`: {row}": [one[key] for key in COLUMNS] for name, all_ in walks.items() for row, one in all_.items()
    }
    write(given.out, "35-sets.json", list(COLUMNS.values()), rows)
    returns = [scored(f"rooms/return-{n}", ("rotate",), given.quick) for n in ELSEWHERE]
    rows = {row: [one[row]["psnr_pooled"] for one in returns] for row in returns[0]}
    write(given.out, "36-returns.json", [f"back after {n}" for n in ELSEWHERE], rows)


if __name__ == "__main__":
    main()
