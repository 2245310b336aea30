"""The walled scan on a CPU: a loop in NumPy, because PyTorch's dispatch costs more than such a small step.

The backward pass is linear in the incoming gradient, with slopes that are computed for all steps at once. What is left
is a recurrence over (batch, S) vectors. Large products are PyTorch's: NumPy would start threads of its own, which
compete with PyTorch's for the cores.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors


def _empty(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> list[Tensor]:
    """Poses; hidden units and gate of every step, (time, batch, ...)."""
    batch, steps, _ = displacement.shape
    shapes = displacement.shape, (steps, batch, len(b)), (steps, batch, 1)
    return [displacement.new_empty(shape) for shape in shapes]


class Walls:
    """sigma_d, step after step in NumPy; `hidden` and `gate` then hold the units and the gate of every step."""

    @torch.autocast("cpu", enabled=False)  # poses are never rounded
    def __init__(self, d: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor) -> None:
        # What the displacement adds to the hidden layer, all steps at once; the rest is added step by step.
        self.hidden, self.gate = F.linear(d, W, b), d.new_empty(*d.shape[:2], 1)
        self._steps = list(zip(self.hidden.numpy(), self.gate.numpy(), strict=True))
        self._w_t = np.ascontiguousarray(W.T.numpy())
        # sigmoid(x) = 1/2 + 1/2 tanh(x / 2), which cannot overflow; the halves go into the weights
        self._half_v, self._half_c = (0.5 * v[:, None]).numpy(), (0.5 * c).numpy()
        self._half = self._half_v.dtype.type(0.5)
        self._zero = np.zeros((d.shape[1], len(b)), self._half.dtype)  # comparing with a scalar is slow in NumPy
        self._pull = np.empty_like(self._zero)

    def open(self, t: int, here: np.ndarray) -> np.ndarray:
        """The fraction of step t that is made."""
        u, g = self._steps[t]
        u += np.dot(here, self._w_t, out=self._pull)
        np.maximum(u, self._zero, out=u)
        np.dot(u, self._half_v, out=g)
        g += self._half_c
        np.tanh(g, out=g)
        g *= self._half
        g += self._half
        return g


def _forward(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> list[Tensor]:
    """Poses, and what the backward pass needs; everything inside is (time, batch, ...)."""
    d = displacement.detach().transpose(0, 1).contiguous()
    shakes = torch.zeros_like(d) if noise is None else noise.detach().transpose(0, 1).contiguous()
    s, walls = d.new_empty(len(d) + 1, *d.shape[1:]), Walls(d, *(x.detach() for x in (W, b, v, c)))
    s[0] = start.detach()
    poses = s.numpy()
    for t, (move, shake) in enumerate(zip(d.numpy(), shakes.numpy(), strict=True)):
        there = np.multiply(move, walls.open(t, poses[t]), out=poses[t + 1])
        there += poses[t]
        there += shake
    return [s[1:].transpose(0, 1).contiguous(), walls.hidden, walls.gate]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """Gradients of all arguments."""
    (start, displacement, noise, W, _, v, _), (poses, hidden, gate) = args, made
    d = displacement.transpose(0, 1).contiguous()
    active = hidden.sign()  # hidden is at least 0
    steep = gate * (1 - gate)
    # Columns one by one, here and below: products with a vector are several times as fast as with two columns.
    slope = steep * torch.stack([active @ (v * w) for w in W.T], dim=-1)  # d sigma_d / d q
    into_s, into_start = _back_through(gradients[0].transpose(0, 1), d, slope)
    along = (into_s * d).sum(2, keepdim=True)
    logit = (along * steep).flatten(0, 1)
    before = torch.cat([start[None], poses.transpose(0, 1)[:-1]])[: len(d)]
    projected = (before + d).flatten(0, 1)
    rows = active.flatten(0, 1).T
    by_unit = torch.stack([rows @ (logit[:, 0] * q) for q in projected.T], dim=-1)
    return (
        into_start,
        (into_s * gate + along * slope).transpose(0, 1),
        None if noise is None else into_s.transpose(0, 1),
        v[:, None] * by_unit,
        v * (rows @ logit[:, 0]),
        hidden.flatten(0, 1).T @ logit[:, 0],
        logit.sum(),
    )


def _supports(start: Tensor, displacement: Tensor, *rest: Tensor | None) -> bool:
    """Precisions that NumPy has."""
    return displacement.dtype in (torch.float32, torch.float64)


walled_poses = Fast(_forward, _empty, _backward, _supports)


def _back_through(incoming: Tensor, d: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of every s_t from its own and all later poses, and that of the start; all are (time, batch, S).

    The backward pass through a step is linear: g + (g . d) slope.
    """
    parts = [x.mT.clone(memory_format=torch.contiguous_format) for x in (incoming, d, slope)]  # long runs are fast
    later = parts[0].new_zeros(parts[0].shape[1:]).numpy()
    for g, move, tilt in zip(*(x.numpy()[::-1] for x in parts), strict=True):
        g += later
        later = np.add.reduce(g * move, axis=0) * tilt
        later += g
    return parts[0].mT, torch.from_numpy(later).T
