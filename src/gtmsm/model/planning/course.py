"""Costs of sequences of actions, unrolled through the learned motion over ground that may be barred, to a goal."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.model.motion import Motion
from gtmsm.model.planning.terrain import Terrain, looked_up, turns

PART = 16
"""Steps that are unrolled at a time before sequences that cannot be kept are dropped; more if few are left."""
WORK = 8192
"""Number of steps of all sequences together up to which dropping some of them saves no time."""
HASTE = 3.0
"""Weight of a missing step relative to a step taken: arriving matters more than arriving soon."""
SLACK = 3.0
"""Steps by which the estimate of missing steps may be too large: a goal is an area, not a point."""


class Judged(NamedTuple):
    """The cost of each pose of a path."""

    cost: Float[Tensor, "time n"]
    there: Bool[Tensor, "time n"]
    steps: Float[Tensor, "time n"]
    """Cost of the steps taken so far."""
    lost: Bool[Tensor, "time n"]
    """Whether open ground has been left."""
    opened: Bool[Tensor, "time n"]
    """Whether open ground has been reached."""
    fewest: Float[Tensor, "time n"]
    """Lower bound of the steps still missing."""


class Path(NamedTuple):
    """States of sequences of actions, at each of their steps or after one of them."""

    state: Float[Tensor, "*n S"]
    steps: Float[Tensor, "*n"]
    """Cost of the steps taken so far."""
    opened: Bool[Tensor, "*n"]
    """Whether open ground has been reached."""


class Begin(NamedTuple):
    """The step from which each sequence is unrolled, and its known path at that step."""

    time: Int[Tensor, "n"]
    after: Path


class Part(NamedTuple):
    """Some steps of the sequences still being tried: which sequences, where they begin, and where each step led."""

    which: Int[Tensor, "m"]
    time: Int[Tensor, "m"]
    path: Path


class Found(NamedTuple):
    """The results of trying sequences."""

    cost: Float[Tensor, "n"]
    end: Int[Tensor, "n"]
    """Number of steps after which the cost is least."""
    arrived: Bool[Tensor, "n"]
    """Whether the goal is reached there."""


@dataclass
class Course:
    """A planning problem, on which sequences of actions are tried: terrain, start and goal."""

    motion: Motion
    terrain: Terrain
    togo: Float[Tensor, "squares"]
    goal: Float[Tensor, "D"]
    start: Float[Tensor, "1 S"]
    table: Float[Tensor, "m A"]

    def run(self, sequence: Int[Tensor, "n time"], begin: Begin, bound: float) -> tuple[Found, list[Part]]:
        """The least cost of each sequence, the step of least cost, whether the goal is reached there, and the paths.

        The cost is that of the steps taken plus an estimate of the steps still missing. A sequence is unrolled from its
        first new action, until it leaves open ground or cannot cost less than `bound`.
        """
        (count, limit), table, numbers = sequence.shape, self.table.T, sequence.reshape(-1)
        least, when = self.start.new_full((count,), math.inf), torch.zeros_like(sequence[:, 0])
        arrived = torch.zeros(count, dtype=torch.bool, device=sequence.device)
        left = (begin.time < limit).nonzero()[:, 0]
        time, state, steps, opened = (part.index_select(0, left) for part in (begin.time, *begin.after))
        parts = list[Part]()
        while len(left):
            length = min(max(PART, WORK // len(left)), limit - int(time.min()))
            ahead = time + torch.arange(length, device=time.device)[:, None]
            number = numbers.index_select(0, (left * limit + ahead.clamp(max=limit - 1)).view(-1))
            actions = table.index_select(1, number).view(-1, *ahead.shape).permute(2, 1, 0)
            path = self.motion.unroll(state, actions).permute(2, 1, 0).contiguous().permute(1, 2, 0)
            seen = self.judge(path, steps, opened)
            lowest, at = seen.cost.masked_fill_(ahead >= limit, math.inf).min(0)
            former = least.index_select(0, left)
            better, there = lowest < former, seen.there.gather(0, at[None])[0]
            least.index_copy_(0, left, torch.minimum(lowest, former))
            when.index_copy_(0, left, torch.where(better, time + at + 1, when.index_select(0, left)))
            arrived.index_copy_(0, left, torch.where(better, there, arrived.index_select(0, left)))
            parts.append(Part(left, time, Path(path, seen.steps, seen.opened)))
            time, steps = time + length, seen.steps[-1]
            on = ~seen.lost[-1] & (steps + seen.fewest[-1] - SLACK < bound) & (time < limit)
            on = on.nonzero()[:, 0]
            after = (left, time, path[-1], steps, seen.opened[-1])
            left, time, state, steps, opened = (x.index_select(0, on) for x in after)
        return Found(least, when, arrived), parts

    def judge(self, path: Float[Tensor, "time n S"], steps: Float[Tensor, "n"], opened: Bool[Tensor, "n"]) -> Judged:
        """The cost of each pose of paths; `steps`: cost so far; `opened`: whether open ground has been reached."""
        terrain = self.terrain
        rest = terrain.rest(path)
        at = terrain.squares(rest)
        closed = terrain.closed(rest, at)
        if terrain.pace.coast:
            closed |= terrain.closed(path[..., :2], terrain.squares(path[..., :2]))
        # An agent that starts on barred ground may cross it, but not enter it again.
        been = (~closed).cummax(0).values | opened
        lost = (closed & been).cummax(0).values
        x, y = (rest - self.goal[:2]).unbind(-1)
        away = torch.addcmul(x * x, y, y).sqrt_() / terrain.near
        missing = fewest = looked_up(self.togo, at)
        if terrain.pitch > terrain.near:  # large squares do not tell how far it is within the last one
            missing = fewest = torch.maximum(missing, away * (terrain.near / terrain.pace.stride))
        there = away <= 1
        if terrain.pace.turn and len(self.goal) > 2:
            twist = turns(path[..., 2] - self.goal[2])
            there &= twist <= terrain.near_turn
            off = twist / terrain.pace.turn
            # An agent turns while it walks, except at the end.
            fewest = torch.maximum(missing, off)
            missing = fewest + 0.3 * torch.minimum(missing, off)
            away += twist / terrain.near_turn
        there &= ~lost
        walked = looked_up(terrain.price, at).cumsum(0).add_(steps)
        # Of two ways of equal length, prefer the one that ends nearer to the goal.
        cost = walked + torch.where(there, 0.5 * away, HASTE * missing + 1)
        return Judged(cost.masked_fill_(lost, math.inf), there, walked, lost, been, fewest)

    def begin(self) -> tuple[Path, Judged]:
        """The start as a path without steps, and its cost."""
        steps = self.start.new_full((1,), -1.0)
        known = self.judge(self.start[None], steps, steps > 0)
        return Path(self.start[None], known.steps, known.opened), known
