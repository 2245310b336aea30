"""Statistics of a sample of recorded episodes, from which training settings are proposed."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64

from gtmsm.episodes.episode import Kind
from gtmsm.episodes.pool import Episodes, moves_of
from gtmsm.episodes.recorded import Failing

SAMPLE, STEPS = 48, 512
"""Maximum number of episodes in the sample, and of steps of each."""
EARLY = 3
"""Number of first steps in which an agent that starts far from walls rarely reaches one."""
MOVES = 0.05
"""An action that changes less than this fraction of frames does nothing."""


@dataclass(frozen=True)
class Survey:
    """Facts about the episodes of a store."""

    kind: Kind
    lengths: Int64[np.ndarray, "_"]
    repeats: float
    """Fraction of the frames in the second half of an episode that occur, pixel by pixel, in its first half."""
    still: Float[np.ndarray, "A"]
    """Per action, the fraction of its steps that leave the frame unchanged; NaN if it is never used. All components of
    continuous actions have the same value."""
    how: Failing
    """How to recognise steps that failed."""
    failing: float
    """Fraction of all steps that failed."""
    failing_early: float
    """The same, of the first `EARLY` steps of episodes."""
    step: float
    """Median length of a step that moves, in units of poses; 0 if poses are unknown, or no step moves."""
    turns: bool
    """Whether headings are known and change."""
    momentum: float
    """Fraction of the variance of displacements, given their actions, that the previous displacement explains."""
    spin: float
    """The same for turns."""
    starts: float
    """Extent of the starts of episodes along x or y, whichever is larger, in steps; NaN if poses are unknown."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the actions that are used."""
        unused = np.isnan(self.still)
        return tuple(name for name, never in zip(self.kind.action_names or (), unused, strict=False) if not never)


def survey(store: Episodes, which: Int64[np.ndarray, "_"]) -> Survey:
    """Survey a sample of the episodes `which`, evenly spread."""
    kind = store.kind
    sample = which[np.unique(np.linspace(0, len(which) - 1, min(SAMPLE, len(which))).astype(int))]
    repeats, unchanged, acted, looked, displacements, starts = [], [], [], [], [], []
    for i in sample.tolist():
        episode = store.episode(i)
        a, _, d = (part.numpy() for part in moves_of(episode, kind))
        numbers = _numbers_of(episode.frames[:STEPS])
        half = len(numbers) // 2
        repeats.append(np.isin(numbers[half:], numbers[:half]))
        unchanged.append(numbers[1:] == numbers[:-1])
        acted.append(a[1 : len(numbers)])
        looked.append(numbers)
        displacements.append((a[:STEPS], d[:STEPS]))
        starts += [] if episode.start is None else [episode.start[:2]]
    same, a = np.concatenate(unchanged), np.concatenate(acted)
    used = (a != 0) if kind.discrete else np.broadcast_to((a != 0).any(1, keepdims=True), a.shape)
    with np.errstate(invalid="ignore"):
        still = (used & same[:, None]).sum(0) / used.sum(0)
    how = Failing(_usual(displacements, kind), torch.from_numpy(np.nan_to_num(still, nan=1.0) < 1 - MOVES))
    fails = [
        how(torch.from_numpy(numbers)[None, :, None], torch.from_numpy(a)[None], torch.from_numpy(d)[None])[0].numpy()
        for numbers, (a, d) in zip(looked, displacements, strict=True)
    ]
    failed, early = np.concatenate(fails), np.concatenate([part[:EARLY] for part in fails])
    lengths = np.concatenate([np.linalg.norm(d[:, :2], axis=1) for _, d in displacements])
    moving = lengths[lengths > 1e-6]
    step = float(np.median(moving)) if len(moving) else 0.0
    return Survey(
        kind=kind,
        lengths=store.lengths[which],
        repeats=float(np.concatenate(repeats).mean()),
        still=still,
        how=how,
        failing=float(failed.mean()),
        failing_early=float(early.mean()),
        step=step,
        turns=kind.pose_size == 3 and any(np.abs(d[:, 2]).max() > 1e-4 for _, d in displacements),
        momentum=_momentum(displacements, slice(0, 2)),
        spin=_momentum(displacements, slice(2, 3)) if kind.pose_size == 3 else 0.0,
        starts=float(np.ptp(starts, axis=0).max() / (step or 1.0)) if starts else float("nan"),
    )


def _usual(parts: list[tuple[np.ndarray, np.ndarray]], kind: Kind) -> torch.Tensor:
    """Length and turn of a step of each action, as 90% quantiles; 0 if poses are unknown or actions continuous."""
    usual = torch.zeros(kind.action_size, 2)
    if not kind.pose_size or not kind.discrete:
        return usual
    a, d = (np.concatenate(part) for part in zip(*parts, strict=True))
    went = np.stack([np.linalg.norm(d[:, :2], axis=1), np.abs(d[:, 2:].sum(1))], axis=1)
    for i in range(kind.action_size):
        if (chosen := a[:, i] != 0).any():
            usual[i] = torch.from_numpy(np.quantile(went[chosen], 0.9, axis=0))
    usual[usual < 1e-3 * usual.amax(0)] = 0.0  # rounding
    return usual


def _numbers_of(frames: np.ndarray) -> Int64[np.ndarray, "time"]:
    """A number for each frame, the same for equal frames."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(frame.tobytes(), len(known)) for frame in frames], dtype=np.int64)


def _momentum(parts: list[tuple[np.ndarray, np.ndarray]], which: slice) -> float:
    """Share of the variance of components `which` of displacements, given actions, that the previous one explains.

    Steps that led nowhere, failed or idle, are left out: after a bump, the next step bumps as well.
    """
    sizes = np.concatenate([np.linalg.norm(d[:, which], axis=1) for _, d in parts])
    least = 1e-3 * float(np.median(sizes[sizes > 1e-6])) if (sizes > 1e-6).any() else math.inf
    rows = []
    for a, d in parts:
        moved = np.linalg.norm(d[:, which], axis=1) > least
        both = moved[1:] & moved[:-1]
        rows.append((a[1:][both], d[:-1][both], d[1:][both, which]))
    acted, before, now = (torch.from_numpy(np.concatenate(part)).double() for part in zip(*rows, strict=True))
    if len(now) < 20:
        return 0.0

    def left_over(inputs: torch.Tensor) -> float:
        inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
        return float((now - inputs @ torch.linalg.lstsq(inputs, now, driver="gelsd").solution).square().mean())

    by_action, total = left_over(acted), float(now.square().mean())
    if by_action < 1e-3 * total:  # actions explain everything
        return 0.0
    return 1 - left_over(torch.cat([acted, before], dim=1)) / by_action
