"""Results of `gtmsm reproduce` as trials write them, with scores that are made up."""

from pathlib import Path
from typing import Any

from gtmsm.reproduce import ROWS
from gtmsm.reproduce.results import write_result

STEPS = 12


def scored(psnr: float, **more: Any) -> dict[str, Any]:
    """Scores as a set gives them, the same at every step."""
    return {
        "set": "image-walk/builtin", "sha256": "0" * 64, "clips": 4, "tau": 16, "horizon": STEPS,
        "psnr_by_step": [psnr] * STEPS, "psnr_band": {"mean": [psnr] * STEPS, "error": [0.1] * STEPS},
        "psnr_pooled": psnr, "psnr_frames": psnr, "psnr_revisited": psnr, "psnr_unseen": psnr, "ssim": 0.5, **more,
    }  # fmt: skip


def put(out: Path, row: str, seed: int, psnr: float, **facts: Any) -> None:
    """A result as a trial writes it."""
    out.mkdir(exist_ok=True)
    scores = {"image-walk/builtin": scored(psnr)}
    updates = ROWS[row].experiment(seed, True, None).training.updates
    known = {"quick": True, "updates": updates, "learning_rate": 1e-3, "swept": {}, "parameters": 10, "seconds": 1.0}
    write_result(
        out, row, seed, known | {"privileges": [], "scores": scores, "controls": {}, "converged": None} | facts
    )
