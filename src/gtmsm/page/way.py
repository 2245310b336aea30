"""A way to a goal, one action at a time, with repeated planning."""

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float

from gtmsm.config import require
from gtmsm.explore import Explorer
from gtmsm.model.planning import Plan
from gtmsm.tensors import Belief

AGAIN = 4
"""Number of steps after which the rest of the way is planned again."""
LONGEST = 200
"""Maximum number of steps for one goal."""


class Way:
    """Actions that lead to a position, as far as the model knows; agents with a heading arrive looking ahead."""

    def __init__(self, explorer: Explorer, here: Belief, goal: Float[np.ndarray, "D"]) -> None:
        self._explorer, self._taken = explorer, 0
        self._goal = torch.from_numpy(goal).to(here.mean)
        if len(goal) == 3:
            x, y = (self._goal - here.mean[0, :3])[:2].tolist()
            self._goal[2] = math.atan2(y, x)
        self._chance = torch.Generator(here.mean.device).manual_seed(0)
        self._plan = self._planned(here, None)
        require(bool(self._plan.choices), self._plan.reason or "it is there already; choose another goal")
        self.path: Float[np.ndarray, "steps D"] = self._plan.poses[:, : len(goal)].double().cpu().numpy()

    @property
    def left(self) -> int:
        """Number of planned steps that are left."""
        return len(self._plan.choices)

    def next(self, here: Belief) -> int:
        """The next action from the present pose estimate; -1: none."""
        require(self.left > 0, "the way is walked; choose another goal")
        if self._taken and self._taken % AGAIN == 0:
            again = self._planned(here, self._plan)
            self._plan = again if again.choices else self._plan
        self._taken += 1
        action, *rest = self._plan.choices
        self._plan = replace(self._plan, choices=tuple(rest) if self._taken < LONGEST else ())
        return action

    @torch.no_grad()
    def _planned(self, here: Belief, before: Plan | None) -> Plan:
        """Plan from `here`, which in a dream differs from the explorer's pose."""
        explorer = self._explorer
        assert explorer.memory is not None
        goal, walked = self._goal, explorer.walked
        return explorer.model.plan(explorer.memory, here, goal, walked, before=before, generator=self._chance)
