"""The glide scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

Going back is linear once it is known which hidden units were active: a 2 x 2 map for every step, made for all of them
at once, and only a recurrence over (batch, 2) vectors is left.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _GlideScan(torch.autograd.Function):
    """Displacements, velocities and, by hand, their gradients; everything inside is (time, batch, ...)."""

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # poses are never rounded
    def forward(
        ctx: Any, start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, keep: Tensor, W: Tensor, V: Tensor
    ) -> tuple[Tensor, Tensor]:
        pushes, c, s = (x.detach().transpose(0, 1).contiguous() for x in (u, cos, sin))
        hidden = pre.detach().transpose(0, 1).clone(memory_format=torch.contiguous_format)
        steps, batch = c.shape
        v, d, left = (pushes.new_empty(count, batch, 2) for count in (steps + 1, steps, steps))
        v[0] = start
        w_t, v_t = (np.ascontiguousarray(x.detach().T.numpy()) for x in (W, V))
        kept, zero = keep.detach().numpy(), np.zeros((batch, len(w_t[0])), w_t.dtype)
        pull, correction = np.empty_like(zero), np.empty((batch, 4), w_t.dtype)
        velocities = v.numpy()
        arrays = (x.numpy() for x in (pushes, c, s, hidden, d, left))
        for before, after, push, turn_c, turn_s, h, moved, rest in zip(
            velocities[:-1], velocities[1:], *arrays, strict=True
        ):
            np.dot(before, w_t, out=pull)
            h += pull
            np.maximum(h, zero, out=h)
            np.dot(h, v_t, out=correction)
            np.multiply(kept, before, out=rest)
            rest += push
            np.add(rest, correction[:, :2], out=moved)
            rest += correction[:, 2:]
            after[:, 0] = turn_c * rest[:, 0] + turn_s * rest[:, 1]
            after[:, 1] = turn_c * rest[:, 1] - turn_s * rest[:, 0]
        ctx.save_for_backward(v, left, hidden, c, s, keep, W, V)
        # copies even where batch is 1 and a view would do: the caller may overwrite them, backward still needs them
        displacements, after = (x.transpose(0, 1).clone(memory_format=torch.contiguous_format) for x in (d, v[1:]))
        return displacements, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, into_moved: Tensor, into_v: Tensor) -> tuple[Tensor, ...]:
        v, left, hidden, cos, sin, keep, W, V = ctx.saved_tensors
        moved, active = into_moved.transpose(0, 1), hidden.sign()  # hidden is at least 0
        # What the velocity before a step learns from both results, by friction and through the units that were active.
        through = (active @ (V[:, :, None] * W).transpose(0, 1).flatten(1)).unflatten(-1, (4, 2))
        by_moved, by_left = (keep.diag() + part for part in through.split(2, dim=-2))
        unturn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        owing = (moved[..., None, :] @ by_moved).squeeze(-2)
        after, start = _back_through(into_v.transpose(0, 1), owing, by_left.mT @ unturn)
        into_left = (unturn @ after[..., None]).squeeze(-1)
        drift, corrections = moved + into_left, torch.cat([moved, into_left], -1)
        units = active * (corrections @ V)
        return (
            start,
            drift.transpose(0, 1),
            (left * after).sum(-1).T,
            (left[..., 1] * after[..., 0] - left[..., 0] * after[..., 1]).T,
            units.transpose(0, 1),
            (v[:-1] * drift).sum((0, 1)),
            units.flatten(0, 1).T @ v[:-1].flatten(0, 1),
            corrections.flatten(0, 1).T @ hidden.flatten(0, 1),
        )


def _back_through(incoming: Tensor, owing: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the velocity after every step, from all that follows, and of the first one before any.

    `incoming` is what comes in after a step, `owing` what it owes to the velocity before by itself; both are (time,
    batch, 2), and `maps` takes the one to the other.
    """
    own, more = incoming.mT.contiguous(), owing.mT.contiguous()  # NumPy likes long runs of memory
    total, passing = torch.empty_like(own), maps.movedim(1, -1).contiguous()
    owed = np.zeros(own.shape[1:], own.numpy().dtype)
    for into, also, passed, out in zip(*(x.numpy()[::-1] for x in (own, more, passing, total)), strict=True):
        np.add(into, owed, out=out)
        owed = passed[:, 0] * out[0]
        owed += passed[:, 1] * out[1]
        owed += also
    return total.mT, torch.from_numpy(owed).T


def scan(
    start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, keep: Tensor, W: Tensor, V: Tensor
) -> tuple[Tensor, Tensor]:
    """`glide_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _GlideScan.apply(start, u, cos, sin, pre, keep, W, V)  # type: ignore[no-any-return]
