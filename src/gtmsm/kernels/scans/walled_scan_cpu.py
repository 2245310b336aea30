"""The walled scan on a CPU: a loop in NumPy, because PyTorch's dispatch costs more than such a small step.

The backward pass is linear in the incoming gradient, with slopes that are computed for all steps at once. What is left
is a recurrence over (batch, S) vectors, of which several stretches of time are computed in parallel. Large products are
PyTorch's: NumPy would start threads of its own, which compete with PyTorch's for the cores.
"""

import math

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


@torch.autocast("cpu", enabled=False)  # poses are never rounded
def _forward(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> list[Tensor]:
    """Poses, and what the backward pass needs; everything inside is (time, batch, ...)."""
    d = displacement.detach().transpose(0, 1).contiguous()
    shakes = torch.zeros_like(d) if noise is None else noise.detach().transpose(0, 1).contiguous()
    steps, batch, size = d.shape
    s = d.new_empty(steps + 1, batch, size)
    s[0] = start.detach()
    # What the displacement adds to the hidden layer, all steps at once; the rest is added step by step.
    hidden, gate = F.linear(d, W.detach(), b.detach()), d.new_empty(steps, batch, 1)
    w_t = np.ascontiguousarray(W.detach().T.numpy())
    # sigmoid(x) = 1/2 + 1/2 tanh(x / 2), which cannot overflow; the halves go into the weights
    half_v, half_c = (0.5 * v.detach()[:, None]).numpy(), (0.5 * c.detach()).numpy()
    half = half_v.dtype.type(0.5)
    zero = np.zeros((batch, len(half_v)), half.dtype)  # an array: NumPy compares with a single number slowly
    pull = np.empty_like(zero)
    poses = s.numpy()
    arrays = (x.numpy() for x in (hidden, gate, d, shakes))
    for here, there, u, g, move, shake in zip(poses[:-1], poses[1:], *arrays, strict=True):
        np.dot(here, w_t, out=pull)
        u += pull
        np.maximum(u, zero, out=u)
        np.dot(u, half_v, out=g)
        g += half_c
        np.tanh(g, out=g)
        g *= half
        g += half
        np.multiply(move, g, out=there)
        there += here
        there += shake
    return [s[1:].transpose(0, 1).contiguous(), hidden, gate]


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

    The backward pass through a step is linear: g + (g . d) slope. Stretches of time are therefore computed in parallel,
    once for the gradients that come in during a stretch and once for each axis of a gradient that comes from later
    stretches. The real gradients from later stretches are combined with these afterwards.
    """
    steps, batch, size = d.shape
    length = math.isqrt(max(steps - 1, 0)) + 1
    count = -(-steps // length)
    missing = count * length - steps
    # Everything is (length, S, stretch, batch): NumPy likes long runs of memory.
    g_in, moves, tilts = (
        F.pad(x, (0, 0, 0, 0, missing, 0)).flip(0).view(count, length, batch, size).permute(1, 3, 0, 2).contiguous()
        for x in (incoming, d, slope)
    )  # the latest step first: padding comes after the first step
    passing = g_in.new_empty(length, 1 + size, size, count, batch)
    here = np.zeros_like(passing[0].numpy())
    here[1:] = np.eye(size, dtype=here.dtype)[..., None, None]
    for g, move, tilt, out in zip(g_in.numpy(), moves.numpy(), tilts.numpy(), passing.numpy(), strict=True):
        out[:] = here
        out[0] += g
        np.multiply(np.add.reduce(out * move, axis=1, keepdims=True), tilt, out=here)
        here += out
    later = np.zeros((size, count + 1, 1, batch), here.dtype)  # the gradient that each stretch gets from later ones
    for i in range(count):
        later[:, i + 1, 0] = here[0, :, i] + (here[1:, :, i] * later[:, i]).sum(0)
    before = passing[:, 0]
    for axis in range(size):
        before = before + passing[:, 1 + axis] * torch.from_numpy(later[axis, :-1, 0])
    before = before.permute(2, 0, 3, 1).reshape(count * length, batch, size)[:steps].flip(0)
    return before, torch.from_numpy(later[:, -1, 0]).T
