"""Scores of anything that forecasts frames, on a fixed set."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.data.clip import Clip
from gtmsm.errors import InputError
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine import Examiner, examiner_for
from gtmsm.evaluation.examine.examiner import Masks, joined
from gtmsm.evaluation.forecaster import Forecaster, Guess, Guessing, ModelForecaster, Oracle, given_to
from gtmsm.evaluation.score import SSIM_EVERY, ScoredFrames, errors_of, only_numbers, summary_of
from gtmsm.evaluation.sets import Digest, FixedSet

LOW, HIGH = 0.1, 0.9
"""Quantiles over clips that bound the band of a curve."""
FLIP_EVERY, FLIP_PER_DEGREE = SSIM_EVERY, 16
"""FLIP scores the same steps as SSIM, and assumes 16 pixels per degree of the viewer: single pixels are visible."""
BEYOND = 1e-3
"""Maximum excess of frames over [0, 1]: tolerates rounding errors, but not another scale."""
PROTOCOL = {
    "psnr": "frames in [0, 1], data range 1; pooled = PSNR of the mean squared error over all frames, frames = mean of "
    f"the PSNRs of frames, each at most {metrics.PSNR_CAP:.0f} dB; by_step is pooled over clips, band is over clips",
    "ssim": f"uniform {metrics.SSIM_WINDOW}x{metrics.SSIM_WINDOW} window, every {SSIM_EVERY}th step",
    "flip": f"LDR, {FLIP_PER_DEGREE} pixels to a degree, every {FLIP_EVERY}th step; null without flip-evaluator",
}


@dataclass
class _Batches:
    """Errors, masks and frames of the batches scored so far."""

    errors: list[dict[str, Tensor]] = field(default_factory=list)
    masks: list[Masks] = field(default_factory=list)
    frames: ScoredFrames = field(default_factory=ScoredFrames)


@torch.no_grad()
def score_forecaster(
    forecaster: Any,
    fixed_set: FixedSet,
    *,
    device: torch.device | str = "cpu",
    name: str = "",
    write: str | Path | None = None,
) -> dict[str, Any]:
    """Scores of a `Forecaster` on all clips of a set, ready for JSON; `device` is the device of its inputs.

    With `write`, predicted and true frames are written to a .npz as float32, so that others can score them.
    """
    require(write is None or Path(write).suffix == ".npz", f"cannot write frames as {write}; end its name with .npz")
    scores, tallies = _score_all({name: forecaster}, fixed_set, torch.device(device), keep=write is not None)
    if write is not None:
        tallies[name].frames.write(Path(write), set=fixed_set.name)
    return scores[name]


@torch.no_grad()
def score_forecasters(
    forecasters: Mapping[str, Any], fixed_set: FixedSet, *, device: torch.device | str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Scores of several forecasters, by name (see `score_forecaster`); the clips are drawn once for all of them."""
    return _score_all(forecasters, fixed_set, torch.device(device), keep=False)[0]


def _score_all(
    forecasters: Mapping[str, Any], fixed_set: FixedSet, device: torch.device, keep: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, _Batches]]:
    """Scores by name, and the data they were computed from; with `keep` also the frames."""
    for forecaster in forecasters.values():
        if not isinstance(forecaster, Forecaster):
            lacks = "it needs needs_poses, privileges and forecast"
            raise InputError(f"a {type(forecaster).__name__} is no forecaster; {lacks}")
    size, digest = fixed_set.size, Digest()
    examiners = {name: _examiner(forecaster, fixed_set) for name, forecaster in forecasters.items()}
    tallies = {name: _Batches() for name in forecasters}
    for clip in fixed_set.clips():
        digest.add(clip)
        for name, forecaster in forecasters.items():
            guess = _guess(forecaster, examiners[name].prepared(clip), size.tau, device)
            _score_batch(tallies[name], examiners[name], clip, guess, size.skip, keep)
    found = digest.checksum
    about = {
        "set": fixed_set.name,
        "split": fixed_set.split,
        "quick": fixed_set.quick,
        "sha256": found.sha256,
        "differs": fixed_set.check(found) or None,
        "clips": size.clips,
        "tau": size.tau,
        "horizon": size.horizon,
        "skipped": size.skip,
        "protocol": PROTOCOL,
    }
    scores = {
        name: only_numbers(_about(name, forecaster) | about | _scores(tallies[name], examiners[name]))
        for name, forecaster in forecasters.items()
    }
    return scores, tallies


def _about(name: str, forecaster: Forecaster) -> dict[str, Any]:
    """Name, privileges and number of parameters of a forecaster."""
    return {
        "forecaster": name or type(forecaster).__name__,
        "privileges": list(forecaster.privileges),
        "parameters": _parameters(forecaster),
    }


def _examiner(forecaster: Forecaster, fixed_set: FixedSet) -> Examiner:
    """The examiner of a forecaster; calibrated if that is a world model, to compare poses in the world's frame."""
    size = fixed_set.size
    examiner = examiner_for(fixed_set.world, size.tau, getattr(forecaster, "metric", False))
    if isinstance(forecaster, ModelForecaster):
        steps, seed = size.tau + size.horizon, fixed_set.seed + 6
        examiner.calibrate(forecaster.model, fixed_set.walker, steps, seed, fixed_set.elsewhere)
    return examiner


def _guess(forecaster: Forecaster, clip: Clip, tau: int, device: torch.device) -> Guess:
    """The prediction of one batch; frames of another shape or scale are refused."""
    given, truth = given_to(forecaster, clip, tau, device), clip.x[:, tau:]
    if isinstance(forecaster, Oracle):
        forecaster = forecaster.told(truth.to(device))
    guess = forecaster.guess(*given) if isinstance(forecaster, Guessing) else Guess(forecaster.forecast(*given), None)
    frames, said = guess.frames, f"a {type(forecaster).__name__}"
    expected = tuple(truth.shape)
    require(tuple(frames.shape) == expected, f"{said} made frames of shape {tuple(frames.shape)}; expected {expected}")
    low, high = (float(end) for end in frames.float().aminmax())
    fits = -BEYOND <= low <= high <= 1 + BEYOND
    require(fits, f"{said} made frames from {low:.3g} to {high:.3g}; expected [0, 1], for which PSNR is defined here")
    return Guess(frames.float().clamp(0, 1), guess.retrieved, guess.walk, guess.reckoned)


def _score_batch(tally: _Batches, examiner: Examiner, clip: Clip, guess: Guess, skip: int, keep: bool) -> None:
    """Add one batch without the first `skip` predicted steps; errors are computed on the device of the prediction."""
    there = replace(clip, x=clip.x.to(guess.frames.device), true_pose=clip.true_pose.to(guess.frames.device))
    errors, every = errors_of(there, guess, examiner), -(-skip // SSIM_EVERY)
    truth, frames = clip.x[:, examiner.tau + skip :], guess.frames[:, skip:].cpu()
    if has_flip() and frames.shape[2] == 3:
        errors["flip"] = flip(truth[:, ::FLIP_EVERY], frames[:, ::FLIP_EVERY])
    first = {"ssim": every, "flip": 0}
    tally.errors.append({name: error[:, first.get(name, skip) :] for name, error in errors.items()})
    masks = {"revisited": examiner.revisited(clip)} | examiner.masks(clip)
    tally.masks.append({name: mask[:, skip:] for name, mask in masks.items()})
    if guess.walk is not None:
        examiner.note(clip, guess.walk.cpu(), guess.frames, None if guess.reckoned is None else guess.reckoned.cpu())
    if keep:
        tally.frames.add(frames, truth, tally.masks[-1]["revisited"])


def _scores(tally: _Batches, examiner: Examiner) -> dict[str, Any]:
    """Scores over all batches."""
    errors, masks = joined(tally.errors), joined(tally.masks)
    seen, flips, mse = masks.pop("revisited"), errors.pop("flip", None), errors["mse"]
    by_frame = metrics.psnr(mse.double())
    scores = {
        **summary_of(errors, seen, masks),
        "psnr_frames_revisited": metrics.psnr_frames(mse, seen),
        "psnr_frames_unseen": metrics.psnr_frames(mse, ~seen),
        "revisited_fraction": seen.double().mean().item(),
        "flip": None if flips is None else flips.double().mean().item(),
        "psnr_band": band(by_frame),
        "psnr_frames_error": _error(by_frame.mean(1)).item(),
        "psnr_by_clip": by_frame.mean(1).tolist(),
        "mse_by_clip": mse.double().mean(1).tolist(),
        "psnr_late_by_clip": metrics.psnr_late_by_clip(mse).tolist(),
    }
    if examiner.has_noted:
        scores |= {**examiner.scores(), "poses": examiner.poses}
    return scores


def band(by_frame: Float[Tensor, "clips time"]) -> dict[str, list[float]]:
    """For each step, over clips: the mean PSNR, its standard error, and the quantiles `LOW` and `HIGH`."""
    low, high = by_frame.quantile(torch.tensor([LOW, HIGH], dtype=by_frame.dtype), dim=0)
    parts = {"mean": by_frame.mean(0), "error": _error(by_frame), "low": low, "high": high}
    return {name: part.tolist() for name, part in parts.items()}


def _error(values: Float[Tensor, "clips *time"]) -> Float[Tensor, "*time"]:
    """Standard error of the mean over clips; NaN for a single clip."""
    if len(values) < 2:
        return torch.full_like(values[0], torch.nan)
    return values.std(0) / len(values) ** 0.5


def has_flip() -> bool:
    """Whether FLIP's own package is installed (extra `flip`)."""
    return importlib.util.find_spec("flip_evaluator") is not None


def flip(
    truth: Float[Tensor, "batch time 3 h w"], guess: Float[Tensor, "batch time 3 h w"]
) -> Float[Tensor, "batch time"]:
    """FLIP (Andersson et al., 2020) of each frame: the visible difference when flipping between two pictures."""
    from flip_evaluator import evaluate  # optional

    pictures = (part.flatten(0, 1).permute(0, 2, 3, 1).contiguous().numpy() for part in (truth, guess))
    how = {"ppd": float(FLIP_PER_DEGREE)}
    pairs = zip(*pictures, strict=True)
    means = [evaluate(x, y, "LDR", applyMagma=False, parameters=dict(how))[1] for x, y in pairs]
    return torch.tensor(means).view(truth.shape[:2])


def _parameters(forecaster: Forecaster) -> int | None:
    """Number of parameters of a forecaster's networks; None if unknown."""
    inside = [forecaster] if isinstance(forecaster, nn.Module) else getattr(forecaster, "__dict__", {}).values()
    modules = [part for part in inside if isinstance(part, nn.Module)]
    if not modules and not isinstance(forecaster, Guessing):
        return None
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
