"""Glides of many plans on a CPU, without gradients: sequences lie side by side, and a step is a few products."""

import numpy as np
import torch
from torch import Tensor

from gtmsm.kernels.operator import Fast

SHARED = 1 << 15
"""Numbers up to which PyTorch leaves a pass over them to one thread; to wait for others would take longer here."""


@torch.autocast("cpu", enabled=False)  # poses are never rounded
@torch.no_grad()
def _forward(
    start: Tensor, a: Tensor, move: Tensor, turn: Tensor, W_a: Tensor, b: Tensor, keep: Tensor, W: Tensor, V: Tensor
) -> list[Tensor]:
    """Of each step velocity, action and a one lie below each other, and make its hidden units.

    These and the former make six rows: displacement, velocity left, and the latter turned by a right angle. From the
    last four comes the velocity before the next step.
    """
    (count, steps, size), kept = a.shape, keep.diag()
    linear = torch.cat([kept, move, torch.zeros_like(kept[:, :1])], 1)
    turned = kept.new_tensor([[0.0, 1.0], [-1.0, 0.0]])
    weights = (
        torch.cat([W, W_a, b[:, None]], 1),
        torch.cat([linear, linear, turned @ linear]),
        torch.cat([V, turned @ V[2:]]),
    )
    told = a.new_ones(steps + 1, 3 + size, count)
    told[0, :2], told[:-1, 2:-1] = start.T, a.permute(1, 2, 0)
    turns = torch.matmul(turn, told[:-1, 2:-1])
    units, made = a.new_empty(len(b), count), a.new_empty(steps, 6, count)
    parts, after = units.split(max(1, SHARED // max(1, count))), told[1:, :2]
    into_units, by_told, by_units, hidden, more = (x.numpy() for x in (*weights, units, a.new_empty(6, count)))
    each = (told[:-1], made, made[:, 2:4], made[:, 4:], after, turns.cos(), turns.sin())
    for before, found, left, right, velocity, c, s in zip(*(x.numpy() for x in each), strict=True):
        np.dot(into_units, before, out=hidden)
        for some in parts:
            some.relu_()
        np.dot(by_units, hidden, out=found)
        found += np.dot(by_told, before, out=more)
        np.multiply(left, c, out=velocity)
        velocity += np.multiply(right, s, out=more[:2])
    made[:, 2] = turns
    return [made[:, :3].permute(2, 0, 1).contiguous(), after.permute(2, 0, 1).contiguous()]


def _supports(start: Tensor, a: Tensor, *weights: Tensor) -> bool:
    """A precision that NumPy has, and one for all."""
    return a.dtype in (torch.float32, torch.float64) and all(x.dtype == a.dtype for x in (start, *weights))


glide_walk = Fast(_forward, supports=_supports)
