"""The drift scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _DriftScan(torch.autograd.Function):
    """Velocities and, by hand, their gradients; everything inside is (time, batch, D)."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, push: Tensor, keep: Tensor) -> Tensor:
        pushes = push.transpose(0, 1).contiguous()
        v = pushes.new_empty(len(pushes) + 1, *start.shape)
        v[0] = start
        kept, velocities = keep.detach().numpy(), v.numpy()
        for before, after, u in zip(velocities[:-1], velocities[1:], pushes.detach().numpy(), strict=True):
            np.multiply(kept, before, out=after)
            after += u
            np.tanh(after, out=after)
        ctx.save_for_backward(v, keep)
        # a copy even where batch is 1 and a view would do: the caller may overwrite velocities
        return v[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        v, keep = ctx.saved_tensors
        slope = 1 - v[1:].square()
        into = grad.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        owed = torch.zeros_like(v[0])  # to the velocity before, by all that follows
        kept, back = keep.detach().numpy(), owed.numpy()
        for g, steep in zip(into.numpy()[::-1], slope.numpy()[::-1], strict=True):
            g += back
            g *= steep
            np.multiply(kept, g, out=back)
        return owed, into.transpose(0, 1), (into * v[:-1]).sum((0, 1))


def scan(start: Tensor, push: Tensor, keep: Tensor) -> Tensor:
    """`drift_scan_by_steps`, faster on a CPU: values and gradients in the precision of the input."""
    return _DriftScan.apply(start, push, keep)  # type: ignore[no-any-return]
