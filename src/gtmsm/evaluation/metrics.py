"""Metrics of predictions: pure functions of tensors; frames are in [0, 1], so the data range is 1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.tensors import Frames

LATE = 200
"""Predicted steps from this one on count as late, where a memory is needed; in shorter clips the last quarter."""

PSNR_CAP = 100.0
"""dB of an exact copy, whose PSNR is infinite; far above the resolution of 8-bit pictures (about 59 dB)."""

CONVERGED = {"retrieval": 0.99, "R²": 0.99}
"""Thresholds that a run must all reach, at steps that can be known, to count as converged."""


def converged(scores: Mapping[str, Any]) -> bool | None:
    """Whether a run converged, judged at revisited places and, if steps can fail, before the first failed step.

    None if that is undefined for the world, or if older scores lack the steps before the first failure.
    """
    if "psnr_unhindered" not in scores:
        retrieval, r2 = scores.get("retrieval_revisited"), scores.get("pose_r2")
    else:
        retrieval, r2 = scores.get("retrieval_unhindered"), scores.get("pose_r2_unhindered")
    if r2 is None:
        return None
    return (retrieval or 0) >= CONVERGED["retrieval"] and r2 >= CONVERGED["R²"]


SSIM_WINDOW = 7
"""Side of the uniform window: an 8x8 frame has no pixel where the usual 11x11 Gaussian fits."""

VALUES_AT_ONCE = 2**18
"""Pixel values per chunk of SSIM, which limits its memory to some tens of MB."""


def frame_mse(truth: Frames, guess: Frames) -> Float[Tensor, "batch time"]:
    """Mean squared error of each frame."""
    return (truth - guess).square().mean((-3, -2, -1))


def psnr(mse: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """-10 log10(mse), in dB, at most PSNR_CAP."""
    return (-10 * mse.log10()).clamp(max=PSNR_CAP)


def psnr_pooled(mse: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"] | None = None) -> float | None:
    """PSNR of the mean error: a few bad frames dominate it. None if the mask is empty."""
    chosen = _chosen(mse, mask)
    return psnr(chosen.mean()).item() if len(chosen) else None


def psnr_frames(mse: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"] | None = None) -> float | None:
    """Mean of the PSNRs of frames: exact copies (PSNR_CAP) dominate it. None if the mask is empty."""
    chosen = _chosen(mse, mask)
    return psnr(chosen).mean().item() if len(chosen) else None


def psnr_by_step(mse: Float[Tensor, "batch time"]) -> list[float]:
    """PSNR at each step, pooled over the batch."""
    by_step: list[float] = psnr(mse.double().mean(0)).tolist()
    return by_step


def late_steps(horizon: int) -> slice:
    """The predicted steps that count as late: from `LATE` on, or the last quarter of shorter horizons."""
    return slice(LATE - 1, None) if horizon > LATE else slice(horizon - max(1, horizon // 4), None)


def psnr_late_by_clip(mse: Float[Tensor, "clips time"]) -> Float[Tensor, "clips"]:
    """Contributions of the clips, whose mean is the mean of `psnr_by_step` over the late steps.

    That PSNR is not a mean over clips, so contributions are defined by its derivative with respect to a clip's weight.
    The standard error of the difference between two models on the same clips is that of the mean difference between
    their contributions.
    """
    late = mse.double()[:, late_steps(mse.shape[1])]
    usual = late.mean(0)
    relative = torch.where(usual > 0, late / usual, 1.0)
    return psnr(usual).mean() + 10 / math.log(10) * (1 - relative).mean(1)


@torch.no_grad()
def ssim(truth: Frames, guess: Frames) -> Float[Tensor, "batch time"]:
    """Structural similarity of each frame over the windows that lie completely inside it (as scikit-image)."""
    if truth.shape != guess.shape:
        raise InputError(f"frames to compare differ in shape: {tuple(truth.shape)} and {tuple(guess.shape)}")
    largest = min(SSIM_WINDOW, *truth.shape[-2:])
    window = largest - 1 + largest % 2  # odd
    at_once = max(1, VALUES_AT_ONCE // truth[0, 0].numel())
    portions = zip(truth.flatten(0, 1).split(at_once), guess.flatten(0, 1).split(at_once), strict=True)
    # float64, since variances are small differences of large numbers.
    each = [_ssim(x.double(), y.double(), window) for x, y in portions]
    return torch.cat(each).view(truth.shape[:2]).to(truth.dtype)


def _ssim(x: Float[Tensor, "n c h w"], y: Float[Tensor, "n c h w"], window: int) -> Float[Tensor, "n"]:
    """Wang et al. (2004), with means over a uniform window."""
    means = F.avg_pool2d(torch.cat([x, y, x * x, y * y, x * y]), window, stride=1)
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = means.chunk(5)
    both, squares = mean_x * mean_y, mean_x.square() + mean_y.square()
    # Rounding could make a variance negative.
    spread = (mean_xx - mean_x.square()).clamp_min(0) + (mean_yy - mean_y.square()).clamp_min(0)
    luminance = (2 * both + 0.01**2) / (squares + 0.01**2)
    structure = (2 * (mean_xy - both) + 0.03**2) / (spread + 0.03**2)
    return (luminance * structure).mean((-3, -2, -1))


def by_step(value: Bool[Tensor, "batch time"], mask: Bool[Tensor, "batch time"] | None = None) -> list[float | None]:
    """Fraction of the batch entries in the mask for which `value` holds, at each step; None where there are none."""
    mask = torch.ones_like(value) if mask is None else mask
    held, of = (value & mask).sum(0).tolist(), mask.sum(0).tolist()
    return [h / n if n else None for h, n in zip(held, of, strict=True)]


def mean_where(value: Shaped[Tensor, "*n"], mask: Bool[Tensor, "*n"]) -> float | None:
    """The mean of `value` over the mask (of booleans: the fraction that holds); None if the mask is empty."""
    return value[mask].double().mean().item() if mask.any() else None


def reliability(predicted: Float[Tensor, "n"], right: Bool[Tensor, "n"], bins: int = 10) -> dict[str, Any]:
    """Reliability diagram: mean predicted probability and fraction right in bins of equal width; None in empty bins.

    The expected calibration error is the mean difference of the two, weighted by the number of predictions in each bin.
    """
    predicted = predicted.detach().double().cpu()
    index = (predicted * bins).long().clamp(0, bins - 1)
    member = index == torch.arange(bins)[:, None]
    count = member.sum(1)
    said, came_true = ((member * value.double().cpu()).sum(1) / count.clamp_min(1) for value in (predicted, right))
    error = ((said - came_true).abs() * count).sum() / count.sum().clamp_min(1)
    means = ([v if n else None for v, n in zip(value.tolist(), count, strict=True)] for value in (said, came_true))
    return {
        "edges": [i / bins for i in range(bins + 1)],
        "count": count.tolist(),
        **dict(zip(("predicted", "right"), means, strict=True)),
        "expected_calibration_error": error.item(),
    }


@dataclass(frozen=True)
class AffineFit:
    """An affine map: true = inferred @ matrix + offset."""

    matrix: Float[Tensor, "S D"]
    offset: Float[Tensor, "D"]
    r2: float
    """Fraction of the variance of the true positions that the map explains, pooled over all axes."""

    def __call__(self, inferred: Float[Tensor, "*n S"]) -> Float[Tensor, "*n D"]:
        """Inferred positions in true coordinates."""
        return inferred.to(self.matrix) @ self.matrix + self.offset


def affine_fit(inferred: Float[Tensor, "*n S"], true: Float[Tensor, "*n D"]) -> AffineFit:
    """The least-squares map of inferred to true positions, in float64; r2 is 0 if the agent never moved."""
    x, y = _points(inferred, true)
    x_mean, y_mean = x.mean(0), y.mean(0)
    # gelsd, since the positions of an untrained model may all lie on a line or a point.
    matrix = torch.linalg.lstsq(x - x_mean, y - y_mean, driver="gelsd").solution
    offset = y_mean - x_mean @ matrix
    return AffineFit(matrix, offset, explained(x @ matrix + offset, y))


def explained(guess: Float[Tensor, "*n D"], true: Float[Tensor, "*n D"]) -> float:
    """R²: the fraction of the variance of the true positions, pooled over axes, that `guess` explains without a fit."""
    x, y = _points(guess, true)
    total = (y - y.mean(0)).square().sum()
    return (1 - (y - x).square().sum() / total).item() if total > 0 else 0.0


def _points(*positions: Float[Tensor, "*n _"]) -> list[Float[Tensor, "m _"]]:
    """Inferred and true positions as lists of points in float64; refuses those of a model that has diverged."""
    points = [each.detach().flatten(0, -2).double().cpu() for each in positions]
    if not points[0].isfinite().all():
        raise InputError("the inferred positions hold NaN or infinity: the model has diverged, train it again")
    return points


def _chosen(mse: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"] | None) -> Float[Tensor, "m"]:
    """The errors in the mask, as float64 so that long means do not drift."""
    return (mse if mask is None else mse[mask]).double().flatten()
