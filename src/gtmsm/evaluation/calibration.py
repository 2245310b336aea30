"""Calibration: how often what was said to be likely came true."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def reliability(predicted: Float[Tensor, "n"], right: Bool[Tensor, "n"], bins: int = 10) -> dict[str, Any]:
    """Probabilities in bins of equal width, beside how often they were right; None where a bin is empty.

    The expected calibration error is the mean distance of the two, weighted by the number of predictions in each bin.
    """
    predicted = predicted.detach().double().cpu()
    index = (predicted * bins).long().clamp(0, bins - 1)
    member = index == torch.arange(bins)[:, None]
    count = member.sum(1)
    said, came_true = ((member * value.double().cpu()).sum(1) / count.clamp_min(1) for value in (predicted, right))
    error = ((said - came_true).abs() * count).sum() / count.sum().clamp_min(1)
    held = [(said, count > 0), (came_true, count > 0)]
    means = [[float(v) if there else None for v, there in zip(value, some, strict=True)] for value, some in held]
    return {
        "edges": [i / bins for i in range(bins + 1)],
        "count": count.tolist(),
        "predicted": means[0],
        "right": means[1],
        "expected_calibration_error": error.item(),
    }
