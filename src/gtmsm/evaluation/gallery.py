"""A few walks to look at, with what the model made of them: all that the report draws."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float

from gtmsm.config import require
from gtmsm.evaluation.metrics import revisited
from gtmsm.worlds.floor_map import FloorMap


@dataclass(frozen=True)
class WayFound:
    """Where steps can fail: what was in the way in the example clips, and what was believed of where they led."""

    solid: Bool[np.ndarray, "clips cells cells"]
    """Cells that nobody can enter."""
    scenes: Float[np.ndarray, "clips C side side"]
    """The world of each clip with solid cells hatched, and the view at the last memorised step framed."""
    believed: Float[np.ndarray, "clips T 2"]
    """Where the model thinks it is, as (row, column) of cells."""
    reckoned: Float[np.ndarray, "clips T 2"]
    """The same by its actions alone."""


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
    metric: bool = False
    """Whether the inferred space is (row, column) in cells from the start, since displacements were learned from."""
    way: WayFound | None = None
    """Where steps can fail, or the model recognises places."""

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


@dataclass(frozen=True)
class RoomsGallery:
    """Example clips of an agent with a heading, as CPU arrays. Poses are x, y and heading in the world's own frame."""

    truth: Float[np.ndarray, "clips future C h w"]
    """Frames of the prediction phase."""
    imagined: Float[np.ndarray, "clips future C h w"]
    true_pose: Float[np.ndarray, "clips T 3"]
    """Over all T = tau + future steps, as is `inferred_pose`."""
    inferred_pose: Float[np.ndarray, "clips T 3"]
    """As the model believes, from the true start, mirrored and scaled where that cannot be known."""
    seen: Bool[np.ndarray, "clips future"]
    """Which predicted steps are at a pose near a memorised one."""
    tau: int
    maps: tuple[FloorMap, ...]
    """The place of each clip from above, without the agent."""
    strips: tuple[tuple[int, int], ...]
    """Stretches of time steps to show frame by frame, first and last, counted from 1 as the paper does."""
    displacement: Float[np.ndarray, "A 3"]
    """What the model believes each action does to an agent at rest, in its own frame: ahead, left, turn in radians."""
    true_displacement: Float[np.ndarray, "A 3"]
    """What it does."""
    action_names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        clips, future = self.truth.shape[:2]
        require(clips > 0 and future > 0, f"a gallery needs clips and steps; got {clips} clips of {future} steps")
        expected = {
            "imagined": self.truth.shape,
            "true_pose": (clips, self.tau + future, 3),
            "inferred_pose": (clips, self.tau + future, 3),
            "seen": (clips, future),
            "displacement": (len(self.action_names), 3),
            "true_displacement": (len(self.action_names), 3),
        }
        for name, shape in expected.items():
            mine = getattr(self, name).shape
            require(mine == shape, f"{name} is {mine}; {clips} clips of {self.tau} + {future} steps need {shape}")
        require(len(self.maps) == clips, f"{len(self.maps)} maps for {clips} clips")
        for first, last in self.strips:
            require(
                self.tau < first <= last <= self.tau + future,
                f"steps {first} to {last} are not predicted: those are {self.tau + 1} to {self.tau + future}",
            )

    @property
    def future(self) -> int:
        """How many steps were predicted."""
        return int(self.truth.shape[1])
