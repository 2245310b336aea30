"""The walled scan on a CPU: NumPy, because a step is so small that PyTorch's dispatch would cost more than it.

The backward pass is linear in the incoming gradient, with slopes that are known for all steps at once;
only a recurrence over (batch, S) vectors is left to the loop, and every weight's gradient is one product.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


def _by_time(x: Tensor) -> np.ndarray:
    """(batch, time, S) as a contiguous (time, batch, S) array."""
    return np.ascontiguousarray(x.detach().numpy().swapaxes(0, 1))


def _by_batch(x: np.ndarray) -> Tensor:
    """(time, batch, S) as a contiguous (batch, time, S) tensor."""
    return torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1)))


class _WalledScan(torch.autograd.Function):
    """Poses of a walk and, by hand, their gradients."""

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, displacement: Tensor, noise: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor
    ) -> Tensor:
        w, bias, out, offset = (p.detach().numpy() for p in (W, b, v, c))
        d, epsilon = _by_time(displacement), _by_time(noise)
        steps, batch, _ = d.shape
        hidden = np.empty((steps, batch, len(bias)), d.dtype)
        open_ = np.empty((steps, batch, 1), d.dtype)
        s = np.empty((steps + 1, batch, d.shape[2]), d.dtype)
        s[0] = start.detach().numpy()
        w_t = np.ascontiguousarray(w.T)
        column = np.ascontiguousarray(out[:, None])
        pushed = d @ w_t + bias  # what the displacement adds to the hidden layer, all steps at once
        for t in range(steps):
            u = np.matmul(s[t], w_t, out=hidden[t])
            u += pushed[t]
            np.maximum(u, 0, out=u)
            # A logit beyond +-60 is saturated in either precision; the clip only silences exp's overflow.
            g = 1 / (1 + np.exp(-np.clip(u @ column + offset, -60, 60)))
            open_[t] = g
            s[t + 1] = s[t] + d[t] * g + epsilon[t]
        ctx.saved = (d, s, hidden, open_, w, out)
        return _by_batch(s[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, ...]:
        d, s, hidden, open_, w, out = ctx.saved  # type: ignore[attr-defined]
        steps, batch, _ = d.shape
        incoming = _by_time(grad)
        active = (hidden > 0).astype(d.dtype)
        steep = open_ * (1 - open_)
        slope = steep * (active @ (out[:, None] * w))  # d sigma_d / d q
        ds = np.zeros_like(d[0]) if steps else np.zeros((batch, d.shape[2]), d.dtype)
        before = np.empty_like(d)  # gradient of s_t before it passes through step t
        along = np.empty((steps, batch, 1), d.dtype)  # its component along the displacement
        for t in range(steps - 1, -1, -1):
            np.add(ds, incoming[t], out=before[t])
            a = np.sum(before[t] * d[t], axis=1, keepdims=True, out=along[t])
            ds = before[t] + a * slope[t]
        logit = (along * steep).reshape(-1, 1)
        active, hidden = active.reshape(-1, len(out)), hidden.reshape(-1, len(out))
        projected = (s[:-1] + d).reshape(-1, d.shape[2])
        grads = (
            out[:, None] * (active.T @ (logit * projected)),
            out * (active.T @ logit)[:, 0],
            (hidden.T @ logit)[:, 0],
            np.asarray(logit.sum(), d.dtype),
        )
        into_displacement = before * open_ + along * slope
        return (
            torch.from_numpy(ds),
            _by_batch(into_displacement),
            _by_batch(before),
            *(torch.from_numpy(np.ascontiguousarray(g)) for g in grads),
        )


def scan(start: Tensor, displacement: Tensor, noise: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """`walled_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _WalledScan.apply(start, displacement, noise, W, b, v, c)  # type: ignore[no-any-return]
