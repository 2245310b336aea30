"""What an agent has bumped into, as ground that steps cannot enter.

Each step that made less than half of its planned way bars a disc around its planned end, except near places where the
agent has been.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError, shown
from gtmsm.model.memory import Memory
from gtmsm.model.motion import Motion
from gtmsm.model.planning.gait import Gait, gait, typical
from gtmsm.tensors import Actions, State, States

if TYPE_CHECKING:
    from scipy.spatial import cKDTree


AT_ONCE = 8_192
"""Steps of a long walk whose plans are computed again together: the activations of a network fit into a cache."""
FAR = 1e9
"""Coordinates that are not finite, or larger than this, are replaced by it: nothing is there."""


@dataclass(frozen=True)
class Walked:
    """Steps that were tried, and where they led."""

    before: Float[Tensor, "n S"]
    actions: Float[Tensor, "n A"]
    after: Float[Tensor, "n S"]
    open: Float[Tensor, "m 2"] | None = None
    """Positions that are known to be open ground, though nothing was memorised there."""

    @classmethod
    def along(cls, path: Float[Tensor, "n S"], actions: Float[Tensor, "n A"]) -> "Walked":
        """The steps of a path of one agent, except the first; `actions` led to the states of `path`."""
        return cls(path[:-1], actions[1:], path[1:])

    def failed(self, motion: Motion) -> tuple[Float[Tensor, "m 2"], Float[Tensor, "m"]]:
        """Planned ends of steps that made less than half of their planned way, and the lengths of those ways.

        An obstacle is there, unless the planned way is that of an agent that hardly moves anyway.
        """
        some = zip(self.before.split(AT_ONCE), self.actions.split(AT_ONCE), strict=True)
        planned = torch.cat([motion.step(before, actions)[:, :2] - before[:, :2] for before, actions in some])
        made = self.after[:, :2] - self.before[:, :2]
        length2 = planned.square().sum(-1)
        short = (made * planned).sum(-1) < 0.5 * length2
        return (self.before[:, :2] + planned)[short], length2[short].sqrt()

    def visited(self, memory: Memory) -> Float[Tensor, "n 2"]:
        """Positions that are open ground: those of a memory, and others that are known to be."""
        memorised = memory.place.mean[0, :, :2]
        return memorised if self.open is None else torch.cat([memorised, self.open.to(memorised)])


@dataclass(frozen=True)
class Obstacles:
    """Discs around positions that steps failed to reach, and the positions that were visited."""

    motion: Motion
    bumped: Float[np.ndarray, "m 2"]
    visited: Float[np.ndarray, "n 2"]
    reach: float
    """Radius of the discs: half a step."""
    clear: float
    """Positions nearer than this to visited places are open."""

    @classmethod
    @torch.no_grad()
    def of(cls, motion: Motion, memory: Memory, walked: Walked, pace: Gait | None = None) -> "Obstacles | None":
        """The obstacles that these steps bumped into; None if none, or if positions do not lie in a plane."""
        if motion.space.positions != 2:
            return None
        failed, length = walked.failed(motion)
        if not len(failed):
            return None
        if pace is None:
            choices = typical(walked.actions)
            pace = gait(motion, torch.eye(walked.actions.shape[1]).to(walked.actions) if choices is None else choices)
        bumped = failed[length > 0.5 * pace.shortest].cpu().double().numpy()
        if not len(bumped):
            return None
        visited = walked.visited(memory).detach().cpu().double().numpy()
        # An agent with momentum may bump at low speed, and then stands nearer to the obstacle.
        clear = (0.25 if pace.coast else 0.5) * pace.shortest
        return cls(motion, np.unique(bumped.round(3), axis=0), visited, 0.5 * pace.shortest, clear)

    def bar(
        self, centre: Float[np.ndarray, "*n 2"], pitch: float, away: Float[np.ndarray, "*n"]
    ) -> Bool[np.ndarray, "*n"]:
        """Whether steps cannot lead to squares of a map; `away`: the distances of their centres from visited places.

        The centre of at least one square is within half a diagonal of each obstacle.
        """
        return (self._discs.query(centre)[0] <= max(self.reach, pitch / math.sqrt(2))) & (away >= self.clear)

    def at(self, position: Float[Tensor, "*n 2"]) -> Bool[Tensor, "*n"]:
        """Whether steps cannot lead to these positions."""
        asked = position.detach().nan_to_num(torch.inf).clamp(-FAR, FAR).cpu().double().numpy()
        inside = self._discs.query(asked)[0] <= self.reach
        if inside.any():
            inside[inside] = self._places.query(asked[inside])[0] >= self.clear
        return torch.as_tensor(inside, device=position.device)

    def unroll(self, start: State, actions: Actions, noise: States | None = None) -> States:
        """`Motion.unroll`, except that steps into these discs are not made.

        Only agents that are stopped are unrolled step by step, from the first such step on.
        """
        path = self.motion.unroll(start, actions, noise)
        barred = self.at(torch.cat([start[:, None, :2], path[..., :2]], 1))
        entered = barred[:, 1:] & ~barred[:, :-1]
        who = entered.any(1).nonzero()[:, 0]
        if not len(who):
            return path
        first = int(entered.any(0).byte().argmax())
        state, inside = (start if first == 0 else path[:, first - 1])[who], barred[who, first]
        made, tried, strayed = [], actions[who], None if noise is None else noise[who]
        for t in range(first, actions.shape[1]):
            after = self.motion.step(state, tried[:, t])
            after = after if strayed is None else after + strayed[:, t]
            closed = self.at(after[:, :2])
            state = stopped(self.motion, state, after, closed & ~inside)
            inside = inside & closed
            made.append(state)
        return path.index_put((who,), torch.cat([path[who, :first], torch.stack(made, 1)], 1))

    @cached_property
    def _discs(self) -> "cKDTree":
        """A k-d tree of the centres of the discs."""
        from scipy.spatial import cKDTree  # imported late: it takes a fifth of a second

        return cKDTree(self.bumped)

    @cached_property
    def _places(self) -> "cKDTree":
        """A k-d tree of the visited positions."""
        from scipy.spatial import cKDTree

        return cKDTree(self.visited)


def stopped(
    motion: Motion, before: Float[Tensor, "n S"], after: Float[Tensor, "n S"], where: Bool[Tensor, "n"]
) -> Float[Tensor, "n S"]:
    """States after a step that some agents did not make: they stay at their position and lose all momentum."""
    still = after.clone()
    still[:, :2] = before[:, :2]
    still[:, motion.pose_size :] = 0
    return torch.where(where[:, None], still, after)


def require_obstacles(obstacles: object, motion: Motion, memory: Memory) -> None:
    """Require obstacles that this motion bumped into, and a single memory."""
    if not isinstance(obstacles, Obstacles):
        raise InputError(f"obstacles is {shown(obstacles)}; give what Obstacles.of or Explorer.obstacles returns")
    require(obstacles.motion is motion, "these obstacles are of another model; give those of a walk by this one")
    many = f"obstacles are of one walk, but there are {memory.batch} memories; give memory[:1] and here[:1]"
    require(memory.batch == 1, many)
