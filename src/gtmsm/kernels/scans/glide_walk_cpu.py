"""Glides of many plans on a CPU, without gradients: sequences lie side by side, and a step is a few products."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.operator import Fast

SHARED = 1 << 15
"""Maximum size of a tensor that PyTorch processes in one thread; waiting for others would take longer here."""


@torch.no_grad()
def _forward(start: Tensor, a: Tensor, move: Tensor, turn: Tensor, *network: Tensor) -> list[Tensor]:
    """Velocities step by step; then headings and positions are running sums.

    Calls of NumPy cost less than those of PyTorch, and autocast does not change them: poses are never rounded.
    """
    count, steps, size = a.shape
    told, states = a.new_ones(3 + size, steps + 1, count), a.new_empty(5, steps, count)
    told[:2, 0], told[2:-1, :-1] = start.T[3:], a.permute(2, 1, 0)
    turns = np.tensordot(turn.detach().numpy(), told.numpy()[2:-1, :-1], 1)
    ahead, left = _glide(told, turns, *_weights(*(x.detach().numpy() for x in (move, *network))))
    first = start.T[2]
    torch.cumsum(torch.from_numpy(turns), 0, out=states[2]).add_(first)
    heading = torch.cat([first[None], states[2, :-1]])[:steps].numpy()
    c, s = np.cos(heading), np.sin(heading)
    for i, moved in enumerate((c * ahead - s * left, s * ahead + c * left)):
        torch.cumsum(torch.from_numpy(moved), 0, out=states[i]).add_(start.T[i])
    states[3:] = told[:2, 1:]
    return [states.permute(2, 1, 0)]


def _weights(
    move: np.ndarray, W_a: np.ndarray, b: np.ndarray, keep: np.ndarray, W: np.ndarray, V: np.ndarray
) -> tuple[Float[np.ndarray, "units told"], Float[np.ndarray, "6 units"]]:
    """Weights from velocity, action and a one to hidden units, and from these to the six rows of a step in `_glide`.

    Four additional units pass on the linear part, as relu(x) - relu(-x).
    """
    hidden, size = W_a.shape
    into, out = np.zeros((hidden + 4, 3 + size), V.dtype), np.zeros((6, hidden + 4), V.dtype)
    into[:hidden, :2], into[:hidden, 2:-1], into[:hidden, -1] = W, W_a, b
    into[hidden, 0], into[hidden + 1, 1] = keep
    into[hidden : hidden + 2, 2:-1] = move
    into[hidden + 2 :] = -into[hidden : hidden + 2]
    out[:4, :hidden] = V
    out[(0, 2), hidden] = out[(1, 3), hidden + 1] = 1
    out[:4, hidden + 2 :] = -out[:4, hidden : hidden + 2]
    out[4], out[5] = out[3], -out[2]
    return into, out


def _glide(
    told: Float[Tensor, "told after n"], turns: Float[np.ndarray, "time n"], into: np.ndarray, out: np.ndarray
) -> tuple[Float[np.ndarray, "time n"], ...]:
    """Displacements of each step, ahead and to the left; `told` holds velocity, action and a one, and gets velocities.

    A step computes six rows: displacement, velocity left, and the latter turned by a right angle. The last four,
    rotated by the turn, give the velocity before the next step.
    """
    steps, count = turns.shape
    units = told.new_empty(len(into), count)
    parts, hidden = units.split(max(1, SHARED // max(1, count))), units.numpy()
    made, rotated = np.empty((steps, 6, count), turns.dtype), np.empty((2, 2, count), turns.dtype)
    rotation = np.stack([np.cos(turns), np.sin(turns)], 1)[:, :, None]
    known, left = told.numpy().swapaxes(0, 1), made[:, 2:].reshape(steps, 2, 2, count)
    for t in range(steps):
        np.dot(into, known[t], out=hidden)
        for some in parts:
            some.relu_()
        np.dot(out, hidden, out=made[t])
        np.multiply(left[t], rotation[t], out=rotated)
        np.add(rotated[0], rotated[1], out=known[t + 1, :2])
    return made[:, 0], made[:, 1]


def _empty(start: Tensor, a: Tensor, *weights: Tensor) -> list[Tensor]:
    """Poses and velocities of any values; numbers of the same kind are contiguous."""
    count, steps, _ = a.shape
    return [a.new_empty(5, steps, count).permute(2, 1, 0)]


def _supports(start: Tensor, a: Tensor, *weights: Tensor) -> bool:
    """A precision that NumPy has, the same for all arguments."""
    return a.dtype in (torch.float32, torch.float64) and all(x.dtype == a.dtype for x in (start, *weights))


glide_walk = Fast(_forward, _empty, supports=_supports)
