"""The glide scan on a CPU: a loop in NumPy, because PyTorch's dispatch costs more than such a small step.

The backward pass is linear once it is known which hidden units were active. A 2 x 2 map for every step is computed for
all steps at once, and a recurrence over (batch, 2) vectors is left.
"""

import numpy as np
import torch
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors


def _empty(start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, *weights: Tensor) -> list[Tensor]:
    """Displacements and velocities; velocities before the turn and hidden units of every step, (time, batch, ...)."""
    batch, steps, _ = u.shape
    shapes = u.shape, u.shape, (steps, batch, 2), (steps, batch, pre.shape[-1])
    return [u.new_empty(shape) for shape in shapes]


@torch.autocast("cpu", enabled=False)  # poses are never rounded
def _forward(
    start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, keep: Tensor, W: Tensor, V: Tensor
) -> list[Tensor]:
    """Displacements, velocities, and what the backward pass needs; everything inside is (time, batch, ...)."""
    pushes, c, s = (x.detach().transpose(0, 1).contiguous() for x in (u, cos, sin))
    hidden = pre.detach().transpose(0, 1).clone(memory_format=torch.contiguous_format)
    steps, batch = c.shape
    v, d, left = (pushes.new_empty(count, batch, 2) for count in (steps + 1, steps, steps))
    v[0] = start.detach()
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
    return [d.transpose(0, 1).contiguous(), v[1:].transpose(0, 1).contiguous(), left, hidden]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """Gradients of all arguments."""
    (start, _, cos, sin, _, keep, W, V), (_, velocities, left, hidden) = args, made
    cos, sin, moved, into_v = (x.transpose(0, 1) for x in (cos, sin, *gradients))
    before = torch.cat([start[None], velocities.transpose(0, 1)[:-1]])[: len(left)]
    active = hidden.sign()  # hidden is at least 0
    # Jacobians of both results by the velocity before a step: friction, and the units that were active.
    through = (active @ (V[:, :, None] * W).transpose(0, 1).flatten(1)).unflatten(-1, (4, 2))
    by_moved, by_left = (keep.diag() + part for part in through.split(2, dim=-2))
    unturn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    direct = (moved[..., None, :] @ by_moved).squeeze(-2)
    after, into_start = _back_through(into_v, direct, by_left.mT @ unturn)
    into_left = (unturn @ after[..., None]).squeeze(-1)
    drift, corrections = moved + into_left, torch.cat([moved, into_left], -1)
    units = active * (corrections @ V)
    return (
        into_start,
        drift.transpose(0, 1),
        (left * after).sum(-1).T,
        (left[..., 1] * after[..., 0] - left[..., 0] * after[..., 1]).T,
        units.transpose(0, 1),
        (before * drift).sum((0, 1)),
        units.flatten(0, 1).T @ before.flatten(0, 1),
        corrections.flatten(0, 1).T @ hidden.flatten(0, 1),
    )


def _supports(start: Tensor, u: Tensor, cos: Tensor, sin: Tensor, pre: Tensor, *weights: Tensor) -> bool:
    """A network with hidden units, in a precision that NumPy has."""
    return pre.shape[-1] > 0 and u.dtype in (torch.float32, torch.float64)


glide_steps = Fast(_forward, _empty, _backward, _supports)


def _back_through(incoming: Tensor, direct: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Total gradients of the velocity after every step, and of the velocity before the first.

    `incoming` is the gradient of each velocity itself. A total gradient reaches the velocity before its step through
    `maps`, and `direct` is what reaches it from the displacement. The vectors are (time, batch, 2).
    """
    own, more = incoming.mT.contiguous(), direct.mT.contiguous()  # NumPy is faster with long runs of memory
    total, passing = torch.empty_like(own), maps.movedim(1, -1).contiguous()
    later = np.zeros(own.shape[1:], own.numpy().dtype)
    for into, also, passed, out in zip(*(x.numpy()[::-1] for x in (own, more, passing, total)), strict=True):
        np.add(into, later, out=out)
        later = passed[:, 0] * out[0]
        later += passed[:, 1] * out[1]
        later += also
    return total.mT, torch.from_numpy(later).T
