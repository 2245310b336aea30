"""The walled scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

The backward pass is linear in the incoming gradient, with slopes that are known for all steps at once; only a
recurrence over (batch, S) vectors is left, whose stretches are gone through side by side. Large products are PyTorch's: NumPy's would start threads
of its own, and two pools of them on the same cores wait for each other.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _WalledScan(torch.autograd.Function):
    """Poses of a walk and, by hand, their gradients; everything inside is (time, batch, ...)."""

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
    ) -> Tensor:
        d = displacement.transpose(0, 1).contiguous()
        shakes = torch.zeros_like(d) if noise is None else noise.transpose(0, 1).contiguous()
        steps, batch, size = d.shape
        s = d.new_empty(steps + 1, batch, size)
        s[0] = start
        pushed = d @ W.T + b  # what the displacement adds to the hidden layer, all steps at once
        hidden, gate = torch.empty_like(pushed), d.new_empty(steps, batch, 1)
        w_t = np.ascontiguousarray(W.detach().T.numpy())
        # sigmoid(x) = 1/2 + 1/2 tanh(x / 2), which cannot overflow; the halves go into the weights
        half_v, half_c = (0.5 * v.detach()[:, None]).numpy(), (0.5 * c.detach()).numpy()
        half = half_v.dtype.type(0.5)
        poses = s.numpy()
        arrays = (hidden.numpy(), pushed.detach().numpy(), gate.numpy(), d.detach().numpy(), shakes.detach().numpy())
        for here, there, u, push, g, move, shake in zip(poses[:-1], poses[1:], *arrays, strict=True):
            np.matmul(here, w_t, out=u)
            u += push
            np.maximum(u, 0, out=u)
            np.matmul(u, half_v, out=g)
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
        slope = steep * (active @ (v[:, None] * W))  # d sigma_d / d q
        before, ds = _back_through(grad.transpose(0, 1), d, slope)
        along = (before * d).sum(2, keepdim=True)
        logit = (along * steep).flatten(0, 1)
        projected = (s[:-1] + d).flatten(0, 1)
        # Beside each other: the large matrix of what was active is read once.
        by_unit = active.flatten(0, 1).T @ torch.cat([logit * projected, logit], dim=1)
        return (
            ds,
            (before * gate + along * slope).transpose(0, 1),
            before.transpose(0, 1) if ctx.is_noisy else None,
            v[:, None] * by_unit[:, :-1],
            v * by_unit[:, -1],
            (hidden.flatten(0, 1).T @ logit)[:, 0],
            logit.sum(),
        )


def _back_through(incoming: Tensor, d: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of every s_t before they pass through step t, and that of the start; all are (time, batch, S).

    Going back through a step is linear: g + (g . d) slope. So stretches of time are gone through side by side, once for
    what comes in on the way and once for each axis that may come from later; what really does is put together after.
    """
    steps, batch, size = d.shape
    if steps == 0:
        return torch.zeros_like(d), d.new_zeros(batch, size)
    length = math.isqrt(steps - 1) + 1
    count = -(-steps // length)
    backwards = d.new_zeros(3, count * length, batch, size)
    for part, values in zip(backwards, (incoming, d, slope), strict=True):
        part[count * length - steps :] = values
    backwards = backwards.flip(1).view(3, count, length, batch, size)  # empty steps come last: the start is found there
    g_in, moves, tilts = backwards.transpose(1, 2).contiguous().numpy()
    passing = np.zeros((length, 1 + size, count, batch, size), backwards.numpy().dtype)
    here = np.zeros_like(passing[0])
    for axis in range(size):
        here[1 + axis, ..., axis] = 1
    for g, move, tilt, out in zip(g_in, moves, tilts, passing, strict=True):
        out[:] = here
        out[0] += g
        np.multiply(np.add.reduce(out * move, axis=-1, keepdims=True), tilt, out=here)
        here += out
    later = np.zeros((count + 1, batch, size, 1), passing.dtype)  # what each stretch is given by those after it
    for i in range(count):
        np.add(here[0, i, ..., None], np.matmul(here[1:, i].transpose(1, 2, 0), later[i]), out=later[i + 1])
    before = torch.from_numpy(passing[:, 0])
    for axis in range(size):
        before.addcmul_(torch.from_numpy(passing[:, 1 + axis]), torch.from_numpy(later[:-1, :, axis]))
    before = before.transpose(0, 1).reshape(count * length, batch, size)[:steps].flip(0)
    return before, torch.from_numpy(later[-1, ..., 0])


def scan(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> Tensor:
    """`walled_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _WalledScan.apply(start, displacement, noise, W, b, v, c)  # type: ignore[no-any-return]
