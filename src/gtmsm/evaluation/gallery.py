"""A few walks to look at, with what the model made of them: all that the report draws."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from gtmsm.config import require
from gtmsm.evaluation.metrics import revisited


@dataclass(frozen=True)
class Gallery:
    """Example clips as CPU arrays. True positions are (row, column); inferred ones live in the learned space."""

    images: Float[np.ndarray, "clips C H W"]
    """The whole world of each clip, in [0, 1]."""
    truth: Float[np.ndarray, "clips future C h w"]
    """Frames of the prediction phase."""
    imagined: Float[np.ndarray, "clips future C h w"]
    true_pose: Float[np.ndarray, "clips T 2"]
    """Over all T = tau + future steps, as is `inferred_pose`."""
    inferred_pose: Float[np.ndarray, "clips T 2"]
    tau: int
    view_corner: Float[np.ndarray, "clips 2"]
    """Row and column, in pixels of `images`, of the top left of what is seen at the last memorised step."""
    displacement: Float[np.ndarray, "A 2"]
    """Rows of the learned M, one per action."""
    action_names: tuple[str, ...]
    wall_xs: Float[np.ndarray, "n"]
    wall_ys: Float[np.ndarray, "m"]
    wall_values: Float[np.ndarray, "m n"]
    """sigma_d on a regular grid of the inferred space; empty where the motion has no walls."""
    walls: Float[np.ndarray, "4 2"]
    """Corners of the true outer walls, mapped into the inferred space."""
    true_displacement: Float[np.ndarray, "A 2"]
    """The true move of each action, mapped into the inferred space."""

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        clips, future = self.truth.shape[:2]
        steps, actions = self.tau + future, len(self.action_names)
        require(clips > 0 and future > 0, f"a gallery needs clips and steps; got {clips} clips of {future} steps")
        require(
            self.imagined.shape == self.truth.shape,
            f"imagined frames are {self.imagined.shape}, true ones {self.truth.shape}",
        )
        for name in ("images", "view_corner"):
            require(len(getattr(self, name)) == clips, f"{len(getattr(self, name))} {name} for {clips} clips")
        for name in ("true_pose", "inferred_pose"):
            shape = getattr(self, name).shape
            require(
                shape == (clips, steps, 2),
                f"{name} is {shape}; {clips} clips of {steps} steps need {(clips, steps, 2)}",
            )
        for name in ("displacement", "true_displacement"):
            shape = getattr(self, name).shape
            require(shape == (actions, 2), f"{name} is {shape}; {actions} actions need {(actions, 2)}")
        grid = (len(self.wall_ys), len(self.wall_xs))
        require(self.wall_values.shape == grid, f"wall_values is {self.wall_values.shape}; its axes need {grid}")

    @property
    def future(self) -> int:
        """How many steps were predicted."""
        return int(self.truth.shape[1])

    @property
    def seen(self) -> Bool[np.ndarray, "clips future"]:
        """Which predicted steps are at a place that was memorised."""
        seen: np.ndarray = revisited(torch.from_numpy(self.true_pose), self.tau).numpy()
        return seen
