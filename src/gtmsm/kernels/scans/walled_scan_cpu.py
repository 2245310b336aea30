"""The walled scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

The backward pass is linear in the incoming gradient, with slopes that are known for all steps at once; only a
recurrence over (batch, S) vectors is left, whose stretches are gone through side by side. Large products are
PyTorch's: NumPy's would start threads of its own, and two pools of them on the same cores wait for each other.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _WalledScan(torch.autograd.Function):
    """Poses of a walk and, by hand, their gradients; everything inside is (time, batch, ...)."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # poses are never rounded
    def forward(
        ctx: Any, start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
    ) -> Tensor:
        d = displacement.transpose(0, 1).contiguous()
        shakes = torch.zeros_like(d) if noise is None else noise.transpose(0, 1).contiguous()
        steps, batch, size = d.shape
        s = d.new_empty(steps + 1, batch, size)
        s[0] = start
        # What the displacement adds to the hidden layer, all steps at once; the rest is added step by step.
        hidden, gate = F.linear(d, W, b).detach(), d.new_empty(steps, batch, 1)
        w_t = np.ascontiguousarray(W.detach().T.numpy())
        # sigmoid(x) = 1/2 + 1/2 tanh(x / 2), which cannot overflow; the halves go into the weights
        half_v, half_c = (0.5 * v.detach()[:, None]).numpy(), (0.5 * c.detach()).numpy()
        half = half_v.dtype.type(0.5)
        zero = np.zeros((batch, len(half_v)), half.dtype)  # all of them: NumPy compares with a single number slowly
        pull = np.empty_like(zero)
        poses = s.numpy()
        arrays = (hidden.numpy(), gate.numpy(), d.detach().numpy(), shakes.detach().numpy())
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
        ctx.save_for_backward(d, s, hidden, gate, W, v)
        ctx.is_noisy = noise is not None
        # a copy even where batch is 1 and a view would do: the caller may overwrite poses, backward still needs them
        return s[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d, s, hidden, gate, W, v = ctx.saved_tensors
        active = hidden.sign()  # hidden is at least 0
        steep = gate * (1 - gate)
        # Columns one by one, here and below: products with a vector are several times as fast as with two columns.
        slope = steep * torch.stack([active @ (v * w) for w in W.T], dim=-1)  # d sigma_d / d q
        before, ds = _back_through(grad.transpose(0, 1), d, slope)
        along = (before * d).sum(2, keepdim=True)
        logit = (along * steep).flatten(0, 1)
        projected = (s[:-1] + d).flatten(0, 1)
        rows = active.flatten(0, 1).T
        by_unit = torch.stack([rows @ (logit[:, 0] * q) for q in projected.T], dim=-1)
        return (
            ds,
            (before * gate + along * slope).transpose(0, 1),
            before.transpose(0, 1) if ctx.is_noisy else None,
            v[:, None] * by_unit,
            v * (rows @ logit[:, 0]),
            hidden.flatten(0, 1).T @ logit[:, 0],
            logit.sum(),
        )


def _back_through(incoming: Tensor, d: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of every s_t before they pass through step t, and that of the start; all are (time, batch, S).

    Going back through a step is linear: g + (g . d) slope. So stretches of time are gone through side by side, once for
    what comes in on the way and once for each axis that may come from later; what really does is put together after.
    """
    steps, batch, size = d.shape
    length = math.isqrt(max(steps - 1, 0)) + 1
    count = -(-steps // length)
    missing = count * length - steps
    # Everything is (length, S, stretch, batch): NumPy likes long runs of memory.
    g_in, moves, tilts = (
        F.pad(x, (0, 0, 0, 0, missing, 0)).flip(0).view(count, length, batch, size).permute(1, 3, 0, 2).contiguous()
        for x in (incoming, d, slope)
    )  # the latest step first, so that those that are missing come behind the first one
    passing = g_in.new_empty(length, 1 + size, size, count, batch)
    here = np.zeros_like(passing[0].numpy())
    here[1:] = np.eye(size, dtype=here.dtype)[..., None, None]
    for g, move, tilt, out in zip(g_in.numpy(), moves.numpy(), tilts.numpy(), passing.numpy(), strict=True):
        out[:] = here
        out[0] += g
        np.multiply(np.add.reduce(out * move, axis=1, keepdims=True), tilt, out=here)
        here += out
    later = np.zeros((size, count + 1, 1, batch), here.dtype)  # what each stretch is given by those after it
    for i in range(count):
        later[:, i + 1, 0] = here[0, :, i] + (here[1:, :, i] * later[:, i]).sum(0)
    before = passing[:, 0]
    for axis in range(size):
        before = before + passing[:, 1 + axis] * torch.from_numpy(later[axis, :-1, 0])
    before = before.permute(2, 0, 3, 1).reshape(count * length, batch, size)[:steps].flip(0)
    return before, torch.from_numpy(later[:, -1, 0]).T


def scan(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> Tensor:
    """`walled_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _WalledScan.apply(start, displacement, noise, W, b, v, c)  # type: ignore[no-any-return]
