"""Poses of a model laid over others: the true ones of a clip, or the cells of an image."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from gtmsm.evaluation.metrics import affine_fit


@dataclass(frozen=True)
class Fit:
    """positions @ matrix + offset, and sign * heading + turn."""

    matrix: Float[np.ndarray, "2 2"]
    offset: Float[np.ndarray, "2"]
    sign: float = 1.0
    turn: float = 0.0
    name: str = ""

    def __call__(self, poses: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        """The poses, laid over the others."""
        return np.hstack([poses[:, :2] @ self.matrix + self.offset, self.sign * poses[:, 2:] + self.turn])


SAME = Fit(np.eye(2), np.zeros(2))
"""Poses as they are."""


def fit_poses(inferred: Float[np.ndarray, "n D"], true: Float[np.ndarray, "n D"], metric: bool) -> Fit:
    """The least-squares map of inferred poses onto true ones: shifted and turned where they are metric, else affine."""
    return _rigid(inferred, true) if metric else _affine(inferred, true)


def _rigid(inferred: Float[np.ndarray, "n D"], true: Float[np.ndarray, "n D"]) -> Fit:
    """One turn and one shift. Headings count, too: an agent that turns on the spot has no other sign of the turn."""
    middles = inferred[:, :2].mean(0), true[:, :2].mean(0)
    mine, theirs = ((poses[:, :2] - middle) @ [1, 1j] for poses, middle in zip((inferred, true), middles, strict=True))
    agreement = (mine.conj() * theirs).sum()
    if inferred.shape[1] == 3:
        agreement += np.exp(1j * (true[:, 2] - inferred[:, 2])).sum()
    turn = float(np.angle(agreement))
    c, s = math.cos(turn), math.sin(turn)
    matrix = np.array([[c, s], [-s, c]])
    return Fit(matrix, middles[1] - middles[0] @ matrix, 1.0, turn, "shifted and turned")


def _affine(inferred: Float[np.ndarray, "n D"], true: Float[np.ndarray, "n D"]) -> Fit:
    """Any linear map and shift of positions; headings by their sign and a turn."""
    found = affine_fit(torch.from_numpy(inferred[:, :2].copy()), torch.from_numpy(true[:, :2].copy()))
    sign, turn = 1.0, 0.0
    if inferred.shape[1] == 3:
        means = {way: np.exp(1j * (true[:, 2] - way * inferred[:, 2])).mean() for way in (1.0, -1.0)}
        sign = max(means, key=lambda way: abs(means[way]))
        turn = float(np.angle(means[sign]))
    return Fit(found.matrix.numpy(), found.offset.numpy(), sign, turn, "laid over by an affine map")


def off_by(fitted: Float[np.ndarray, "n D"], true: Float[np.ndarray, "n D"]) -> float:
    """How far positions still are apart, on average."""
    return float(np.linalg.norm((fitted - true)[:, :2], axis=1).mean())
