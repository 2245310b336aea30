"""Beam search for an initial plan: sequences grow by one action at a time, and the best of each length are kept.

Random sequences hardly ever stay on narrow ground, such as a corridor in which an agent with momentum has to turn
around. A beam judges sequences at each step, and drops those that leave open ground at once.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.planning.course import HASTE, Course
from gtmsm.model.planning.terrain import turns

AHEAD = 8
"""An agent should face the square that lies this many squares ahead on the cheapest way."""
ALIKE = 4, 2, 3
"""Of sequences that lead to about the same state, only the best is kept. States are compared by cells: so many per
longest step for positions, per largest turn for headings, and per longest step for velocities."""


def grown(course: Course, steps: int, width: int) -> Int[Tensor, "time"]:
    """Actions that reach the goal or lead nearest to it, at most `steps`; `width` sequences grow at once."""
    terrain, table, state = course.terrain, course.table, course.start
    done, looks = state.new_zeros(1, 0, dtype=torch.long), _headings(course.togo, terrain.far.shape)
    spent, opened = course.begin()[0][1:]
    spent, opened = spent[0], opened[0]
    for _ in range(steps):
        count = len(state)
        state = terrain.motion.step(state.repeat_interleave(len(table), 0), table.repeat(count, 1))
        number = torch.arange(len(table), device=state.device).repeat(count)
        done = torch.cat([done.repeat_interleave(len(table), 0), number[:, None]], 1)
        seen = course.judge(state[None], *(part.repeat_interleave(len(table)) for part in (spent, opened)))
        cost = seen.cost[0]
        if bool(seen.there.any()):
            return done[int(cost.masked_fill(~seen.there[0], math.inf).argmin())]
        if terrain.pace.turn:
            cost = cost + HASTE * turns(looks[terrain.squares(terrain.rest(state))] - state[:, 2]) / terrain.pace.turn
        kept = _best(cost, _cells(course, state), width)
        if not len(kept):
            break
        state, done, spent, opened = state[kept], done[kept], seen.steps[0, kept], seen.opened[0, kept]
    return done[0]


def _headings(togo: Float[Tensor, "squares"], shape: tuple[int, ...]) -> Float[Tensor, "squares"]:
    """The direction of the cheapest way at each square."""
    rows, columns = shape
    cost = np.pad(togo.view(rows, columns).cpu().numpy(), 1, constant_values=np.inf)
    shifts = np.array([(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)])
    around = np.stack([cost[1 + i : 1 + i + rows, 1 + j : 1 + j + columns] for i, j in shifts])
    at = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    after = ((at + shifts[around.argmin(0)]) @ [columns, 1]).ravel()
    for _ in range(int(math.log2(AHEAD))):
        after = after[after]
    to = np.stack(np.divmod(after, columns), -1) - at.reshape(-1, 2)
    return torch.as_tensor(np.arctan2(to[:, 1], to[:, 0])).to(togo)


def _cells(course: Course, state: Float[Tensor, "n S"]) -> Int[Tensor, "n D"]:
    """Indices of cells, which are equal for states that are nearly the same."""
    pace, size = course.terrain.pace, course.motion.pose_size
    parts = [state[:, :2] * (ALIKE[0] / pace.stride)]
    if pace.turn:
        parts.append(state[:, 2:3].remainder(2 * math.pi) * (ALIKE[1] / pace.turn))
    if pace.coast:
        parts.append(state[:, size : size + 2] * (ALIKE[2] / pace.stride))
    return torch.cat(parts, 1).round().long()


def _best(cost: Float[Tensor, "n"], cells: Int[Tensor, "n D"], width: int) -> Int[Tensor, "m"]:
    """Indices of the sequences that cost least, best first: one per cell, and none of infinite cost."""
    order = cost.argsort(stable=True)
    order = order[: int(cost.isfinite().sum())]
    _, first = np.unique(cells[order].cpu().numpy(), axis=0, return_index=True)
    return order[torch.as_tensor(np.sort(first)[:width], device=order.device)]
