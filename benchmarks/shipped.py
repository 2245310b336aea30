"""Shipped weights and controls on fixed sets of which `gtmsm reproduce` has no row: docs/measured/35-sets.json.

.venv/bin/python benchmarks/shipped.py --out docs/measured/35-sets.json
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gtmsm import WorldModel
from gtmsm.evaluation.controls import control_forecasters
from gtmsm.evaluation.forecaster import ModelForecaster
from gtmsm.evaluation.forecasts import score_forecasters
from gtmsm.evaluation.sets import named_set
from gtmsm.files import write_json
from gtmsm.reproduce.results import provenance

SETS = {
    "image-walk/builtin": ("image-walk", "image-walk-celeba"),
    "image-walk/obstacles": ("obstacles-free", "obstacles-celeba"),
    **{f"rooms/return-{n}": ("rotate",) for n in (0, 30, 100, 300)},
}
"""Sets, and the shipped weights that are scored on each."""
CONTROLS = ("best_copy", "mean_frame", "last_frame")
COLUMNS = {"psnr_pooled": "all frames", "psnr_revisited": "memorised places", "psnr_unseen": "never seen"}
ABOUT = (
    "Shipped weights on [fixed sets](protocol.md#the-sets) of which `gtmsm reproduce` has no row. All places are held "
    "out. `obstacles-free` and `obstacles-celeba` imagine by the motion alone, which does not know the obstacles. Of "
    "returns after N steps elsewhere (`rooms/return-N`), only frames back at the start are scored. *Best copy* is the "
    "memorised frame most similar to the answer."
)


def rows_of(name: str, weights: tuple[str, ...], quick: bool) -> list[dict[str, Any]]:
    """Rows of the table: the weights and the controls on one set."""
    controls = control_forecasters()
    forecasters = {f"`{each}`": ModelForecaster(WorldModel.load(each)) for each in weights}
    forecasters |= {control.replace("_", " "): controls[control] for control in CONTROLS}  # type: ignore[misc]
    scores = score_forecasters(forecasters, named_set(name, quick=quick))
    return [{"name": f"`{name}`: {row}", "values": [one.get(key) for key in COLUMNS]} for row, one in scores.items()]


def main() -> None:
    """Score all sets, and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="small sets")
    given = parser.parse_args()
    made = provenance()
    rows = [row for name, weights in SETS.items() for row in rows_of(name, weights, given.quick)]
    write_json(given.out, {
        "section": "Shipped weights on fixed sets",
        "about": ABOUT,
        "command": ["python benchmarks/shipped.py --out docs/measured/35-sets.json"],
        "commit": made["commit"],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": f"{made['machine']}, PyTorch {made['torch']}",
        "columns": [[column, "dB", 2] for column in COLUMNS.values()],
        "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
