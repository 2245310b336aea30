"""The landmark scan on a CPU: a loop in NumPy, because a step is so small that PyTorch's dispatch costs more.

What is known of the map is one table: a row of (position, variance) for every entry of the past, every step and, last,
the start. The way back is linear in the incoming gradient. What a step owes to the rows it was made of is worked out
for all steps at once (`_slopes`); only handing gradients from row to row is left to its loop. Names are those of
`fuse`, with the two ways a step may go, as planned and otherwise, on an axis of their own.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gtmsm.tensors import LOG_TWO_PI


class _Steps(NamedTuple):
    """How a step may go: as planned or otherwise."""

    chance: tuple[float, float]
    fresh: tuple[float, float]

    @property
    def mean(self) -> float:
        """Variance that a step adds where nothing is recognised."""
        return self.chance[0] * self.fresh[0] + self.chance[1] * self.fresh[1]


class _Walls:
    """The gate of a walled scan: `walled_scan_cpu` operation by operation, so that poses agree to the bit."""

    def __init__(self, d: Tensor, W: Tensor, b: Tensor, v: Tensor, c: Tensor) -> None:
        with torch.autocast("cpu", enabled=False):  # poses are never rounded
            pushed = F.linear(d, W, b)
        self.hidden, self.gate = torch.empty_like(pushed), d.new_empty(*d.shape[:2], 1)
        self.pushed, self.u, self.g = pushed.detach().numpy(), self.hidden.numpy(), self.gate.numpy()
        self.w_t = np.ascontiguousarray(W.detach().T.numpy())
        self.half_v, self.half_c = (0.5 * v.detach()[:, None]).numpy(), (0.5 * c.detach()).numpy()
        self.half = self.half_v.dtype.type(0.5)

    def open(self, t: int, here: np.ndarray) -> np.ndarray:
        """How much of step t is really made."""
        push, u, g = self.pushed[t], self.u[t], self.g[t]
        np.dot(here, self.w_t, out=u)
        u += push
        np.maximum(u, 0, out=u)
        np.dot(u, self.half_v, out=g)
        g += self.half_c
        np.tanh(g, out=g)
        g *= self.half
        g += self.half
        return g


def _walk(
    walls: _Walls | None, steps: _Steps, d: np.ndarray, cells: np.ndarray, prior: np.ndarray, offset: np.ndarray,
    noise: np.ndarray, s: np.ndarray, table: np.ndarray, near: np.ndarray, weight: np.ndarray,
) -> None:  # fmt: skip
    """Write poses, rows of the table, what is near the plan and the weights of all hypotheses, step by step."""
    time, K, batch = noise.shape
    size, first, flat = s.shape[2], len(table) - len(s), table.reshape(-1)
    fresh, usual = np.array(steps.fresh, s.dtype)[:, None, None], s.dtype.type(steps.mean)
    half, half_size, share = (s.dtype.type(number) for number in (0.5, 0.5 * size, 1 / size))
    before = table[-1, size]
    for t in range(time):
        there, w, n, row = s[t + 1], weight[t], noise[t], table[first + t]
        away, known, right = near[t, :size], near[t, size], w[:-1].reshape(2, K, batch)
        if walls is None:
            np.add(s[t], d[t], out=there)
        else:
            np.multiply(d[t], walls.open(t, s[t]), out=there)
            there += s[t]
        flat.take(cells[t], out=near[t], mode="clip")  # the mode that needs no copy; cells are in range
        away += offset[t]
        away -= there.T[:, None]
        far2 = np.add.reduce(away * away, axis=0)
        free = np.maximum(before - known, 0) + fresh
        total = free + n
        np.log(total, out=right)
        right *= half_size
        right += half * far2 / total
        np.subtract(prior[t], right, out=right)
        w -= np.maximum.reduce(w, axis=0)
        np.exp(w, out=w)
        w /= np.add.reduce(w, axis=0)
        gain = free / total
        pull = right * gain
        moved = np.add.reduce((pull[0] + pull[1]) * away, axis=1)
        gain *= pull
        gain *= far2
        between = np.add.reduce(gain, axis=(0, 1))
        between -= np.add.reduce(moved * moved, axis=0)
        np.maximum(between, 0, out=between)
        between *= share
        pull *= n
        pull += right * known
        between += np.add.reduce(pull, axis=(0, 1))
        there += moved.T
        row[:size] = there.T
        np.add(before, usual, out=row[size])
        before = row[size]
        before *= w[-1]
        before += between


class _Slopes(NamedTuple):
    """How the row a step makes answers to what it is made of: exact derivatives, for all steps."""

    rows: Tensor
    """Of the new row (first axis) by the K' rows sighted and, last, by the plan and the variance before the step."""
    moved: Tensor
    beta: Tensor
    seen: Tensor
    """Weight of each sight."""
    odds: Tensor
    """Of the variance by log odds."""
    shrink: Tensor
    """Of the position by noise, along what is away; `widen` along what was moved."""
    widen: Tensor
    doubt: Tensor
    """Of the variance by noise."""


def _slopes(near: Tensor, weight: Tensor, noise: Tensor, before: Tensor, steps: _Steps) -> _Slopes:
    time, K, batch = noise.shape
    size = near.shape[1] - 1
    away, known, n = near[:, :size], near[:, size], noise[:, None]
    w, lost = weight[:, :-1].view(time, 2, K, batch), weight[:, -1]
    since = before[:, None] - known
    free = since.clamp_min(0)[:, None] + before.new_tensor(steps.fresh)[:, None, None]
    precision = (free + n).reciprocal()
    gain = free * precision
    far2 = away.square().sum(1)[:, None]
    pull, sure = w * gain, w * precision
    beta, seen = pull.sum(1), w.sum(1)
    moved = (beta[:, None] * away).sum(2)
    scatter = (pull * gain).sum(1)
    spread = (scatter * far2[:, 0]).sum(1) >= moved.square().sum(1)  # false where the clamp of `fuse` holds
    share = spread.to(away.dtype)[:, None] / size
    slack = (0.5 * precision) * (far2 * precision - size)  # of a log weight by its total variance
    bend = precision.square()
    # the variance: by weights (`worth`, then by their logarithms) and by gains
    drawn = -2 * share * moved
    ahead = (drawn[:, :, None] * away).sum(1)[:, None]
    stretch = share[:, None] * gain * far2
    worth = known[:, None] + gain * (n + ahead + stretch)
    average = lost * (before + steps.mean) + (w * worth).sum((1, 2))
    by_odds = w * (worth - average[:, None, None])
    by_gain = w * (n + ahead + 2 * stretch)
    # by what is away, for positions and variance
    rows = away.new_zeros(time, size + 1, size + 1, K + 1, batch)
    lean = away * (pull * precision).sum(1)[:, None] - moved[:, :, None] * sure.sum(1)[:, None]
    torch.mul(lean[:, :, None], -away[:, None], out=rows[:, :size, :size, :K])
    rows[:, :size, :size, :K].diagonal(dim1=1, dim2=2).add_(beta[..., None])
    outward = 2 * share * scatter - (by_odds * precision).sum(1)
    rows[:, size, :size, :K] = beta[:, None] * drawn[:, :, None] + away * outward[:, None]
    # by the plan, which all of them are away from
    rows[:, :, :size, K] = -rows[:, :, :size, :K].sum(3)
    rows[:, :size, :size, K].diagonal(dim1=1, dim2=2).add_(1)
    widen, stray = (w * slack).sum(1), (pull * slack).sum(1)
    by_free = stray + n[:, 0] * (w * bend).sum(1)
    # by what was added since an entry, which is the variance before less that of the entry; a gradient passes where
    # nothing was, as `clamp_min` has it
    torch.mul(away, by_free[:, None], out=rows[:, :size, size, :K]).sub_(moved[:, :, None] * widen[:, None])
    rows[:, size, size, :K] = (by_odds * slack + by_gain * n * bend).sum(1)
    rows[:, :, size, :K] *= (since >= 0)[:, None]
    rows[:, :, size, K] = rows[:, :, size, :K].sum(2)
    rows[:, :, size, :K].neg_()
    rows[:, size, size, :K] += seen
    rows[:, size, size, K] += lost
    shrink = stray - (w * free * bend).sum(1)
    doubt = (by_odds * slack - by_gain * free * bend).sum(1) + beta
    return _Slopes(rows, moved, beta, seen, by_odds.sum(1), shrink, widen, doubt)


def _cells(row: Tensor, size: int) -> Tensor:
    """Where the entries of these rows lie in the flat table: (time, size + 1, K, batch)."""
    part = torch.arange(size + 1)[:, None, None]
    batch = row.shape[-1]
    return ((row[:, None] * (size + 1) + part) * batch + torch.arange(batch)).contiguous()


def _hand_back(grad: Tensor, slopes: Tensor, cells: Tensor) -> Tensor:
    """Add to the gradient of every row what later ones owe to it; returns what each step handed on."""
    time, K, batch = len(cells), cells.shape[2], cells.shape[3]
    first = len(grad) - time - 1
    last = torch.arange(first - 1, first + time - 1)
    last[:1] = len(grad) - 1
    own = _cells(last[:, None, None].expand(time, 1, batch), grad.shape[1] - 1)
    where = torch.cat([cells, own], dim=2).flatten(1).numpy()
    handed = grad.new_empty(time, grad.shape[1], K + 1, batch)
    flat, rows, owed, out = grad.view(-1).numpy(), grad[first:-1, :, None, None].numpy(), slopes.numpy(), handed.numpy()
    part = np.empty_like(owed[0]) if time else owed
    for t in range(time - 1, -1, -1):
        np.multiply(owed[t], rows[t], out=part)
        np.add.reduce(part, axis=0, out=out[t])
        np.add.at(flat, where[t], out[t].reshape(-1))
    return handed[:, :, :K]


class _LandmarkScan(torch.autograd.Function):
    """Poses and variances of a walk and, by hand, their gradients; everything inside is (time, ..., batch)."""

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, displacement: Tensor, variance: Tensor, log_odds: Tensor, offset: Tensor,
        noise: Tensor, past: Tensor, past_variance: Tensor, index: Tensor, steps: _Steps, *gate: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        batch, time, size = displacement.shape
        first, K = past.shape[1], index.shape[-1]
        d = displacement.transpose(0, 1).contiguous()
        s = d.new_empty(time + 1, batch, size)
        s[0] = start
        table = d.new_zeros(first + time + 1, size + 1, batch)
        table[:first, :size], table[:first, size] = past.permute(1, 2, 0), past_variance[..., 0].T
        table[-1, :size], table[-1, size] = start.T, variance[:, 0]
        near = d.new_empty(time, size + 1, K, batch)
        weight = d.new_zeros(time, 2 * K + 1, batch)  # in logarithms first; the last: nothing here was seen before
        chance = d.new_tensor([math.log(chance) - 0.5 * size * LOG_TWO_PI for chance in steps.chance])
        prior = log_odds.permute(1, 2, 0).contiguous()[:, None] + chance[:, None, None]
        n = noise[..., 0].permute(1, 2, 0).contiguous()
        cells = _cells(index.permute(1, 2, 0), size)
        walls = _Walls(d, *gate) if gate else None
        inputs = (d, cells, prior, offset.permute(1, 3, 2, 0).contiguous(), n)
        _walk(walls, steps, *(x.detach().numpy() for x in (*inputs, s, table, near, weight)))
        of_walls = (walls.hidden, walls.gate, gate[0], gate[2]) if walls else ()
        ctx.save_for_backward(d, s, table, near, weight, n, cells, *of_walls)
        ctx.steps = steps
        # copies, since the caller may overwrite them and backward still needs them
        made = s[1:].transpose(0, 1), table[first:-1, size:].permute(2, 0, 1)
        poses, variances = (part.clone(memory_format=torch.contiguous_format) for part in made)
        return poses, variances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, into_poses: Tensor, into_variance: Tensor) -> tuple[Tensor | None, ...]:
        d, s, table, near, weight, n, cells, *of_walls = ctx.saved_tensors
        time, _, size = d.shape
        first = len(table) - time - 1
        before = torch.cat([table[-1:, size], table[first:-1, size]])[:time]
        slopes = _slopes(near, weight, n, before, ctx.steps)
        d = d.transpose(1, 2)
        by_gate: Sequence[Tensor] = ()
        if of_walls:
            hidden, gate, W, v = of_walls
            active, steep = (hidden > 0).to(d.dtype), gate * (1 - gate)
            tilt = (steep * (active @ (v[:, None] * W))).transpose(1, 2)  # d sigma_d / d q
            plan = slopes.rows[:, :, :size, -1]
            plan += (plan * d[:, None]).sum(2, keepdim=True) * tilt[:, None]
        grad = torch.zeros_like(table)
        grad[first:-1, :size], grad[first:-1, size] = into_poses.permute(1, 2, 0), into_variance[..., 0].T
        into_offset = _hand_back(grad, slopes.rows, cells)[:, :size]
        g, h = grad[first:-1, :size], grad[first:-1, size:]
        into_plan = into_d = g - into_offset.sum(2)
        if of_walls:
            along = (into_plan * d).sum(1)
            into_d = into_plan * gate.transpose(1, 2) + along[:, None] * tilt
            logit = (along[..., None] * steep).flatten(0, 1)
            active, projected = active.flatten(0, 1), (s[:-1] + d.transpose(1, 2)).flatten(0, 1)
            by_gate = (
                v[:, None] * (active.T @ (logit * projected)),
                v * (active.T @ logit)[:, 0],
                (hidden.flatten(0, 1).T @ logit)[:, 0],
                logit.sum(),
            )
        away, moved = (g[:, :, None] * near[:, :size]).sum(1), (g * slopes.moved).sum(1)[:, None]
        into_odds = away * slopes.beta - moved * slopes.seen + h * slopes.odds
        into_noise = away * slopes.shrink - moved * slopes.widen + h * slopes.doubt
        return (
            grad[-1, :size].T,
            into_d.permute(2, 0, 1),
            grad[-1, size:].T,
            into_odds.permute(2, 0, 1),
            into_offset.permute(3, 0, 2, 1),
            into_noise.permute(2, 0, 1)[..., None],
            grad[:first, :size].permute(2, 0, 1),
            grad[:first, size].T[..., None],
            None,
            None,
            *by_gate,
        )


def scan(
    start: Tensor,
    displacement: Tensor,
    gate: Sequence[Tensor] | None,
    variance: Tensor,
    sights: Sequence[Tensor],
    past: tuple[Tensor, Tensor],
    surprise: tuple[float, Sequence[float], Sequence[float]],
) -> tuple[Tensor, Tensor]:
    """`landmark_scan_by_steps` for positions, faster on a CPU: values and gradients in the precision of the input."""
    index, *seen = sights
    held = past[0].shape[1] + displacement.shape[1]
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < held:
        raise IndexError(f"sights of entries {int(index.min())} to {int(index.max())} on a map of {held}")
    chance, planned, stray = surprise
    steps = _Steps((1 - chance, chance), (planned[0], stray[0]))
    return _LandmarkScan.apply(  # type: ignore[no-any-return]
        start, displacement, variance, *seen, *past, index, steps, *(gate or ())
    )
