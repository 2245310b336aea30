"""An explorer as a model for the solvers of stable-worldmodel: `encode`, `rollout` and `get_cost`.

>>> solver = CategoricalCEMSolver(model=PlanningModel(explorer))      # doctest: +SKIP
>>> solver.solve({"goal": goal[None, None]})["actions"]               # doctest: +SKIP
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.errors import shown
from gtmsm.explore.explorer import Explorer


class PlanningModel(nn.Module):
    """The memory of one agent as a planning model whose embeddings are places.

    B is the number of goals, S of candidates, H the horizon. Tensors of `info` begin with the axes (B, S), because
    solvers repeat them. Pictures are `channel height width` in [0, 1], or uint8 `height width channel`.
    """

    def __init__(self, explorer: Explorer) -> None:
        super().__init__()
        self.explorer = explorer
        self.motion = explorer.model.motion  # solvers take their precision from its parameters

    def encode(self, info: dict[str, Any]) -> dict[str, Any]:
        """Turn `pixels` (B, T, ...) into `emb` (B, T, P), the places that they were seen from."""
        pixels = info["pixels"]
        found = [[self.motion.space.place(self._pose(picture)) for picture in walk] for walk in pixels]
        return info | {"emb": torch.stack([torch.stack(places) for places in found])}

    @torch.no_grad()
    def rollout(
        self, info: dict[str, Any], action_sequence: Float[Tensor, "B S H A"], history_size: int | None = None
    ) -> dict[str, Any]:
        """Add `predicted_emb` (B, S, H, P): the places that each action sequence leads to from the agent's pose."""
        size = self.explorer.model.action_size
        fits = action_sequence.dim() == 4 and action_sequence.shape[-1] == size
        require(fits, f"candidates are {shown(action_sequence)}; give shape (goals, candidates, steps, {size})")
        flat = action_sequence.flatten(0, 1)
        states = self.motion.unroll(self.explorer.here.mean.expand(len(flat), -1), flat)
        return info | {"predicted_emb": self.motion.place(states).unflatten(0, action_sequence.shape[:2])}

    def criterion(self, info: dict[str, Any]) -> Float[Tensor, "B S"]:
        """Squared distance of the last place from the goal."""
        return (info["predicted_emb"][..., -1, :] - info["goal_emb"]).square().sum(-1)

    def get_cost(self, info_dict: dict[str, Any], action_candidates: Float[Tensor, "B S H A"]) -> Float[Tensor, "B S"]:
        """The criterion of each candidate; the last picture of `goal` (B, S, T, ...) is the goal."""
        require("goal" in info_dict, f"info has {', '.join(info_dict)}; give a goal, the picture to walk to")
        if "goal_emb" not in info_dict:
            goal = torch.as_tensor(info_dict["goal"])[:, 0, -1:]
            info_dict["goal_emb"] = self.encode({"pixels": goal})["emb"]
        return self.criterion(self.rollout(info_dict, action_candidates))

    def _pose(self, picture: Tensor) -> Float[Tensor, "D"]:
        """The pose that a picture was seen from."""
        frame = picture.cpu().numpy() if picture.dtype == torch.uint8 else picture
        return self.explorer.find(frame).pose
