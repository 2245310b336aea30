"""The landmark scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

Positions and variances lie in one table: a row of (position, variance) for every entry of the past and every step.
Names are those of the readable function, with both kinds of steps, as planned and otherwise, on an axis of their own.
The walls are those of the walled scan, so that positions agree to the bit.
"""

import math

import numpy as np
import torch
from torch import Tensor

from gtmsm.kernels.operator import Fast
from gtmsm.kernels.scans.walled_scan_cpu import Walls
from gtmsm.tensors import LOG_TWO_PI


def _walk(
    walls: Walls | None, fresh: tuple[float, float], usual: float, d: np.ndarray, cells: np.ndarray,
    prior: np.ndarray, offset: np.ndarray, noise: np.ndarray, s: np.ndarray, before: np.ndarray, table: np.ndarray,
) -> None:  # fmt: skip
    """Write positions and rows of the table, step by step."""
    time, K, batch = noise.shape
    size, first, flat = s.shape[2], len(table) - time, table.reshape(-1)
    added, mean = np.array(fresh, s.dtype)[:, None, None], s.dtype.type(usual)
    half, half_size, per_axis = (s.dtype.type(number) for number in (0.5, 0.5 * size, 1 / size))
    near, w = np.empty((size + 1, K, batch), s.dtype), np.empty((2 * K + 1, batch), s.dtype)
    away, known, right = near[:size], near[size], w[:-1].reshape(2, K, batch)
    for t in range(time):
        there, n, row = s[t + 1], noise[t], table[first + t]
        if walls is None:
            np.add(s[t], d[t], out=there)
        else:
            np.multiply(d[t], walls.open(t, s[t]), out=there)
            there += s[t]
        flat.take(cells[t], out=near, mode="clip")  # the mode that needs no copy; cells are in range
        away += offset[t]
        away -= there.T[:, None]
        far2 = np.add.reduce(away * away, axis=0)
        free = np.maximum(before - known, 0) + added
        total = free + n
        np.log(total, out=right)
        right *= half_size
        right += half * far2 / total
        np.subtract(prior[t], right, out=right)
        w[-1] = 0  # the hypothesis that no sight is right
        w -= np.maximum.reduce(w, axis=0)
        np.exp(w, out=w)
        w /= np.add.reduce(w, axis=0)
        gain = free / total
        pull = right * gain
        moved = np.add.reduce((pull[0] + pull[1]) * away, axis=1)
        gain *= pull
        gain *= far2
        between = np.add.reduce(gain, axis=(0, 1))
        between -= np.add.reduce(moved * moved, axis=0)
        np.maximum(between, 0, out=between)
        between *= per_axis
        pull *= n
        pull += right * known
        between += np.add.reduce(pull, axis=(0, 1))
        there += moved.T
        row[:size] = there.T
        np.add(before, mean, out=row[size])
        before = row[size]
        before *= w[-1]
        before += between


def _forward(
    start: Tensor, displacement: Tensor, W: Tensor | None, b: Tensor | None, v: Tensor | None, c: Tensor | None,
    variance: Tensor, index: Tensor, log_odds: Tensor, offset: Tensor, noise: Tensor,
    past: Tensor, past_variance: Tensor, chance: float, planned: float, stray: float,
) -> list[Tensor]:  # fmt: skip
    """Positions and variances; everything inside is (time, ..., batch)."""
    batch, time, size = displacement.shape
    first = past.shape[1]
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < first + time:
        raise IndexError(f"sights of entries {int(index.min())} to {int(index.max())} on a map of {first + time}")
    d = displacement.transpose(0, 1).contiguous()
    s = d.new_empty(time + 1, batch, size)
    s[0] = start
    table = d.new_zeros(first + time, size + 1, batch)
    table[:first, :size], table[:first, size] = past.permute(1, 2, 0), past_variance[..., 0].T
    log_chance = d.new_tensor([math.log(x) - 0.5 * size * LOG_TWO_PI for x in (1 - chance, chance)])
    prior = log_odds.permute(1, 2, 0).contiguous()[:, None] + log_chance[:, None, None]
    seen = offset.permute(1, 3, 2, 0).contiguous(), noise[..., 0].permute(1, 2, 0).contiguous()
    # where the rows of entries lie in the flat table: (time, size + 1, K, batch)
    row, part = index.permute(1, 2, 0)[:, None], torch.arange(size + 1)[:, None, None]
    cells = ((row * (size + 1) + part) * batch + torch.arange(batch)).contiguous()
    gate = [x for x in (W, b, v, c) if x is not None]
    walls = Walls(d, *gate) if gate else None
    usual = (1 - chance) * planned + chance * stray
    inputs = (d, cells, prior, *seen, s, variance[:, 0].contiguous(), table)
    _walk(walls, (planned, stray), usual, *(x.numpy() for x in inputs))
    made = s[1:].transpose(0, 1), table[first:, size:].permute(2, 0, 1)
    return [part.clone(memory_format=torch.contiguous_format) for part in made]


def empty(start: Tensor, displacement: Tensor, *rest: object) -> list[Tensor]:
    """Positions and variances of any values."""
    return [torch.empty_like(displacement), displacement.new_empty(*displacement.shape[:2], 1)]


landmark_scan = Fast(_forward, empty)
