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
    """Velocities step by step; then headings and positions are running sums."""
    count, steps, size = a.shape
    x, y, first = start.T[:3]
    told = a.new_ones(steps + 1, 3 + size, count)
    told[0, :2], told[:-1, 2:-1] = start.T[3:], a.permute(1, 2, 0)
    turns = torch.matmul(turn, told[:-1, 2:-1])
    ahead, left = _glide(told, turns, *_weights(move, W_a, b, keep, W, V)).unbind(1)
    states = a.new_empty(5, steps, count)
    heading = torch.cumsum(turns, 0, out=states[2]).add_(first)
    before = torch.cat([first[None], heading[:-1]])[:steps]
    c, s = before.cos(), before.sin()
    torch.cumsum(torch.mul(c, ahead).addcmul_(s, left, value=-1), 0, out=states[0]).add_(x)
    torch.cumsum(s.mul_(ahead).addcmul_(c, left), 0, out=states[1]).add_(y)
    states[3:] = told[1:, :2].transpose(0, 1)
    return [states.permute(2, 1, 0)]


def _weights(move: Tensor, W_a: Tensor, b: Tensor, keep: Tensor, W: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """From velocity, action and a one to hidden units, and from these to what `_glide` needs.

    Four units more pass on what is linear, as relu(x) - relu(-x).
    """
    linear = torch.cat([keep.diag(), move, torch.zeros_like(move[:, :1])], 1)
    both = torch.eye(2).to(V).repeat(2, 1)
    to_moves = torch.cat([V, both, -both], 1)
    turned = V.new_tensor([[0.0, 1.0], [-1.0, 0.0]]) @ to_moves[2:]
    return torch.cat([torch.cat([W, W_a, b[:, None]], 1), linear, -linear]), torch.cat([to_moves, turned])


def _glide(told: Tensor, turns: Tensor, to_units: Tensor, to_moves: Tensor) -> Tensor:
    """Displacements (steps 2 n); `told` holds velocity, action and a one of each step, and is given its velocities.

    A step makes six rows: displacement, velocity left, and the latter turned by a right angle. The last four, rotated
    by the turn, are the velocity before the next step.
    """
    steps, count = turns.shape
    units, moves, rotated = (told.new_empty(*shape, count) for shape in ((len(to_units),), (steps, 6), (2, 2)))
    parts, rotation = (
        units.split(max(1, SHARED // max(1, count))),
        torch.stack([turns.cos(), turns.sin()], 1)[:, :, None],
    )
    into, out, hidden, half = (x.numpy() for x in (to_units, to_moves, units, rotated))
    each = (told[:-1], moves, moves[:, 2:].unflatten(1, (2, 2)), rotation, told[1:, :2])
    for before, made, left, by, after in zip(*(x.numpy() for x in each), strict=True):
        np.dot(into, before, out=hidden)
        for some in parts:
            some.relu_()
        np.dot(out, hidden, out=made)
        np.multiply(left, by, out=half)
        np.add(half[0], half[1], out=after)
    return moves[:, :2]


def _empty(start: Tensor, a: Tensor, *weights: Tensor) -> list[Tensor]:
    """Numbers of a kind lie side by side."""
    count, steps, _ = a.shape
    return [a.new_empty(5, steps, count).permute(2, 1, 0)]


def _supports(start: Tensor, a: Tensor, *weights: Tensor) -> bool:
    """A precision that NumPy has, and one for all."""
    return a.dtype in (torch.float32, torch.float64) and all(x.dtype == a.dtype for x in (start, *weights))


glide_walk = Fast(_forward, _empty, supports=_supports)
