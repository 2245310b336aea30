"""A way to a goal, one action at a time, planned again as one goes."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.explore import Explorer
from gtmsm.tensors import Belief

AGAIN = 4
"""Steps after which the rest of the way is planned again."""
LONGEST = 200
"""Steps that are walked for one goal."""


class Way:
    """Actions that lead to a pose of the model, as far as it knows."""

    def __init__(self, explorer: Explorer, here: Belief, goal: Float[np.ndarray, "D"]) -> None:
        self._goal, self._taken, self._since = torch.from_numpy(goal).to(here.mean), 0, 0
        self.explorer = explorer
        self.actions, self.path = self._plan(here)
        require(bool(self.actions), "it is there already, or no action leads nearer")

    @property
    def left(self) -> int:
        """Steps that are planned."""
        return len(self.actions)

    def next(self, here: Belief) -> int:
        """The next action, from where one is now."""
        require(bool(self.actions), "the way is walked; choose another goal")
        if self._since == AGAIN:
            self._since = 0
            again, _ = self._plan(here)
            self.actions = again or self.actions
        self._since += 1
        self._taken += 1
        action, *self.actions = self.actions
        if self._taken == LONGEST:
            self.actions = []
        return action

    def _plan(self, here: Belief) -> tuple[list[int], Float[np.ndarray, "n D"]]:
        """The action that leads nearest, again and again."""
        motion, state = self.explorer.model.motion, here.mean
        each = torch.eye(self.explorer.model.action_size).to(state)
        held = 6 if self.explorer.model.settings.motion.has_heading else 1
        actions, poses = [], []
        away = self._away(state)[0]
        for _ in range(LONGEST):
            ahead = motion.unroll(state.expand(len(each), -1), each[:, None].expand(-1, held, -1))
            nearest = self._away(ahead[:, -1])
            best = int(nearest.argmin())
            if nearest[best] >= away - 1e-2:
                break
            away, state = nearest[best], ahead[best : best + 1, 0]
            actions.append(best)
            poses.append(state[0, : motion.pose_size].double().cpu().numpy())
        return actions, np.array(poses).reshape(len(poses), -1)

    def _away(self, states: Tensor) -> Tensor:
        return (states[:, :2] - self._goal[:2]).norm(dim=-1)
