"""The walled scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

The backward pass is linear in the incoming gradient, with slopes that are known for all steps at once; only a
recurrence over (batch, S) vectors is left to its loop. Large products are PyTorch's: NumPy's would start threads
of its own, and two pools of them on the same cores wait for each other.
"""

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
        incoming = grad.transpose(0, 1).contiguous()
        active = (hidden > 0).to(d.dtype)
        steep = gate * (1 - gate)
        slope = steep * (active @ (v[:, None] * W))  # d sigma_d / d q
        before = torch.empty_like(d)  # gradient of s_t before it passes through step t
        along = torch.empty_like(gate)  # its component along the displacement
        ds = torch.zeros_like(s[0]).numpy()
        arrays = (incoming.numpy(), d.numpy(), slope.numpy(), before.numpy(), along.numpy())
        for g_in, move, tilt, g_out, g_along in zip(*(a[::-1] for a in arrays), strict=True):
            np.add(ds, g_in, out=g_out)
            np.sum(g_out * move, axis=1, keepdims=True, out=g_along)
            np.multiply(g_along, tilt, out=ds)
            ds += g_out
        logit = (along * steep).flatten(0, 1)
        active, projected = active.flatten(0, 1), (s[:-1] + d).flatten(0, 1)
        return (
            torch.from_numpy(ds),
            (before * gate + along * slope).transpose(0, 1),
            before.transpose(0, 1) if ctx.is_noisy else None,
            v[:, None] * (active.T @ (logit * projected)),
            v * (active.T @ logit)[:, 0],
            (hidden.flatten(0, 1).T @ logit)[:, 0],
            logit.sum(),
        )


def scan(
    start: Tensor, displacement: Tensor, noise: Tensor | None, W: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> Tensor:
    """`walled_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _WalledScan.apply(start, displacement, noise, W, b, v, c)  # type: ignore[no-any-return]
