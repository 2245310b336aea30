"""Check whether actions are aligned with frames: does action t belong to the change into frame t, or to a neighbour?

Frame t should be what action t led to. Other recordings pair frames and actions differently, and a model that is
trained one step off learns little, without any warning. The check describes the change from each frame to the next by a
few features: its size, whether parts of the picture moved left or right, up or down, and where it became brighter. For
each shift s it predicts these from action t + s and from the previous change, which accounts for momentum. The shift
whose actions predict best, on episodes that were left out of the fit, is the right one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Float32, Float64
from PIL import Image

from gtmsm.config import require
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.errors import shown

SHIFTS = (-1, 0, 1)
SIDE = 32
"""Maximum side, in pixels, of the grey pictures that are compared."""
REACHES = (1, 2, 3, 5)
"""Displacements, in pixels, at which parts of a picture are compared with the next one."""
MOST_STEPS = 20_000
"""Maximum number of steps that are used: the first ones of a recording."""
PIECE, FOLDS, RESAMPLED = 20, 5, 1_000
"""Steps of a piece, where there are few episodes; folds of the cross-validation; bootstrap resamples of the pieces."""
SURE = 0.95
"""Share of the bootstrap resamples that must agree."""
LEAST = 0.003
"""Share of the variance that the actions must explain at the best shift."""


@dataclass(frozen=True)
class Alignment:
    """Result of the check: which shift of the actions explains the frames."""

    best: int | None
    """Action t + best led to frame t: 0 is right. None: undecided."""
    margins: dict[int, float]
    """By shift, the share of the variance of the changes that actions explain beyond the previous change."""
    sure: float
    """Share of bootstrap resamples in which that shift exceeds zero and every other shift by `LEAST`."""
    stated: int = 0

    @property
    def line(self) -> str:
        """The result as one line of text."""
        shares = ", ".join(f"shift {s:+d} {100 * np.clip(share, 0, 1):.1f}%" for s, share in self.margins.items())
        told = f"of the changes between frames actions explain: {shares}" if self.margins else "too few steps"
        if self.best is None:
            return f"alignment: cannot tell whether frame t is what action t led to ({told})"
        if self.best == self.stated:
            return f"alignment: frame t is what action t led to, {100 * self.sure:.0f}% sure ({told})"
        when = "earlier" if self.best < 0 else "later"
        return f"alignment: frame t is what the action one step {when} led to, {100 * self.sure:.0f}% sure ({told})"


class AlignmentCheck:
    """Collects what the check needs from episodes, one at a time."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.steps = kind, 0
        self._changes: list[Float64[np.ndarray, "time F"]] = []
        self._actions: list[Float32[np.ndarray, "time A"]] = []

    def add(self, episode: Episode) -> None:
        """Add an episode; it is ignored if it has fewer than 4 steps, or once `MOST_STEPS` are collected."""
        steps = min(episode.steps, MOST_STEPS - self.steps)
        if steps < 4:
            return
        self.steps += steps
        self._changes.append(changes(episode.frames[:steps]))
        self._actions.append(_vectors(episode.actions[:steps], self.kind))

    def result(self) -> Alignment:
        """Return the best shift for the episodes added so far."""
        if self.steps < PIECE:
            return Alignment(None, {}, 0.0)
        # Row t has what all shifts need: the change into frame t, the one before, actions t - 1, t and t + 1.
        after = np.concatenate([f[1:-1] for f in self._changes])
        before = np.concatenate([f[:-2] for f in self._changes])
        done = [np.concatenate([a[2 + s : len(a) - 1 + s] for a in self._actions]) for s in SHIFTS]
        pieces = _pieces([len(f) - 2 for f in self._changes])
        gains = _gains(after, before, done, pieces)
        count = int(pieces.max()) + 1
        sums = np.stack([np.bincount(pieces, gain, count) for gain in gains])
        rows = np.bincount(pieces, minlength=count)
        shares = sums.sum(1) / len(pieces)
        winner = int(shares.argmax())
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLED)
        again = drawn @ sums.T / np.maximum(1, drawn @ rows)[:, None]
        rivals = np.delete(again, winner, 1).max(1)
        sure = float((again[:, winner] > LEAST + np.maximum(0, rivals)).mean())
        told = shares[winner] > LEAST and sure >= SURE
        margins = {s: float(share) for s, share in zip(SHIFTS, shares, strict=True)}
        return Alignment(SHIFTS[winner] if told else None, margins, sure)


def check_alignment(episodes: Iterable[Episode], kind: Kind) -> Alignment:
    """Return which shift of the actions relative to the frames explains the changes between frames best."""
    check = AlignmentCheck(kind)
    for episode in episodes:
        check.add(episode)
        if check.steps >= MOST_STEPS - 4:
            break
    return check.result()


def shifted(episode: Episode, shift: int) -> Episode | None:
    """Pair frame t of an episode with its action t + shift; None if the episode is too short."""
    require(abs(shift) <= 10, f"shift is {shown(shift)}; expected -10 to 10")
    steps, ahead, behind = episode.steps - abs(shift), max(shift, 0), max(-shift, 0)
    if steps < 1 or shift == 0:
        return episode if shift == 0 else None
    poses, start = episode.poses, episode.start
    if poses is not None:
        start = poses[behind - 1] if behind else start
        poses = poses[behind : behind + steps]
    actions = episode.actions[ahead : ahead + steps]
    return replace(episode, frames=episode.frames[behind : behind + steps], actions=actions, poses=poses, start=start)


def changes(frames: np.ndarray) -> Float64[np.ndarray, "changes F"]:
    """Features of how each frame but the first differs from the one before."""
    grey = _small(frames)
    old, new = grey[:-1], grey[1:]
    height, width = grey.shape[1:]
    noise = 0.5
    size = np.abs(new - old).mean((1, 2))
    found = [np.log(size + noise)]
    for old_half, new_half in zip(_halves(old), _halves(new), strict=True):
        found.append((new_half - old_half).mean((1, 2)) / (size + noise))
    for reach in (r for r in REACHES if 2 * r < min(height, width)):
        sideways = (np.abs(new[:, :, reach:] - old[:, :, :-reach]), np.abs(new[:, :, :-reach] - old[:, :, reach:]))
        upright = (np.abs(new[:, reach:] - old[:, :-reach]), np.abs(new[:, :-reach] - old[:, reach:]))
        for one, other in (sideways, upright):
            for part, rival in zip(_halves(one), _halves(other), strict=True):
                a, b = part.mean((1, 2)), rival.mean((1, 2))
                found.append((a - b) / (a + b + noise))
    return np.stack(found, 1).astype(np.float64)


def _halves(pictures: Float[np.ndarray, "time height width"]) -> list[np.ndarray]:
    """Left, right, upper and lower halves."""
    down, right = max(1, pictures.shape[1] // 2), max(1, pictures.shape[2] // 2)
    return [pictures[:, :, :right], pictures[:, :, -right:], pictures[:, :down], pictures[:, -down:]]


def _small(frames: np.ndarray) -> Float32[np.ndarray, "time height width"]:
    """Grey frames, averaged by area to at most `SIDE` pixels wide and high."""
    grey = frames.astype(np.float32).mean(-1)
    height, width = grey.shape[1:]
    size = (min(SIDE, width), min(SIDE, height))
    if size == (width, height):
        return grey
    return np.stack([np.asarray(Image.fromarray(g).resize(size, Image.Resampling.BOX)) for g in grey])


def _vectors(actions: np.ndarray, kind: Kind) -> Float32[np.ndarray, "time A"]:
    """Actions as regressors: one-hot, or vectors with the absolute values of their components."""
    if kind.discrete:
        return (actions[:, None] == np.arange(kind.action_size)).astype(np.float32)
    return np.concatenate([actions, np.abs(actions)], 1)


def _pieces(lengths: list[int]) -> np.ndarray:
    """The piece that each row belongs to: an episode or, where there are few episodes, a part of one."""
    each = PIECE if len(lengths) < 4 * FOLDS else max(lengths)
    numbers, first = [], 0
    for length in lengths:
        numbers.append(first + np.arange(length) // each)
        first += (length - 1) // each + 1
    return np.concatenate(numbers)


def _gains(
    after: Float64[np.ndarray, "rows F"],
    before: Float64[np.ndarray, "rows F"],
    done: list[Float32[np.ndarray, "rows A"]],
    pieces: np.ndarray,
) -> Float64[np.ndarray, "shifts rows"]:
    """By shift, how much the action reduces the error of predicting each change, as a fraction of the variance.

    Features are weighted by how much of them the actions explain in the fitted rows, at the best shift.
    """
    gains = np.zeros((len(done), len(after)))
    folds = min(FOLDS, int(pieces.max()) + 1)
    for fold in range(folds):
        out = pieces % folds == fold
        mean, spread = after[~out].mean(0), after[~out].std(0) + 1e-6
        target, past = (after - mean) / spread, (before - mean) / spread
        without = (target - _predicted(past, target, out)) ** 2
        informed = []
        for a in done:
            known = np.concatenate([past, a - a[~out].mean(0)], 1)
            informed.append((target - _predicted(known, target, out)) ** 2)
        rows, numbers = int((~out).sum()), np.linalg.matrix_rank(done[0])
        fair = (rows - past.shape[1]) / max(1, rows - past.shape[1] - numbers)  # for the fit of more regressors
        fitted = [1 - fair * i[~out].sum(0) / (without[~out].sum(0) + 1e-9) for i in informed]
        weight = np.maximum(0, np.max(fitted, 0)) + 1e-9
        for shift, i in enumerate(informed):
            gains[shift, out] = ((without - i)[out] * weight).sum(1) / weight.sum()
    return gains


def _predicted(known: np.ndarray, target: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Predictions of all rows by ridge regression, fitted to the rows that are not left out."""
    x, y = known[~out], target[~out]
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
    return known @ weights
