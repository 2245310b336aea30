"""A few walks to look at, with what the model made of them: all that the report draws; shapes are checked in tests."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gtmsm.worlds.floor_map import FloorMap


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Example clips as CPU arrays, in any world."""

    truth: Float[np.ndarray, "clips future C h w"]
    """Frames of the prediction phase."""
    imagined: Float[np.ndarray, "clips future C h w"]
    true_pose: Float[np.ndarray, "clips T D"]
    """Over all T = tau + future steps, as is `inferred_pose`."""
    inferred_pose: Float[np.ndarray, "clips T D"]
    seen: Bool[np.ndarray, "clips future"] | None
    """Which predicted steps are at a memorised place; None where nobody can tell."""
    tau: int
    strips: tuple[tuple[int, int], ...]
    """Runs of time steps to show frame by frame: first and last, counted from 1 as the paper does."""
    displacement: Float[np.ndarray, "A M"]
    """What the model believes each action does to an agent at rest."""
    true_displacement: Float[np.ndarray, "A M"]
    """What each action does, in the same coordinates."""
    action_names: tuple[str, ...]

    @property
    def future(self) -> int:
        """Number of predicted steps."""
        return int(self.truth.shape[1])


@dataclass(frozen=True)
class WayFound:
    """Where steps can fail: the obstacles of the example clips, and where the model believes its steps led."""

    solid: Bool[np.ndarray, "clips cells cells"]
    """Cells that nobody can enter."""
    scenes: Float[np.ndarray, "clips C side side"]
    """The world of each clip with solid cells hatched, and the view at the last memorised step framed."""
    believed: Float[np.ndarray, "clips T 2"]
    """Where the model thinks it is, as (row, column) of cells."""
    reckoned: Float[np.ndarray, "clips T 2"]
    """The same by its actions alone."""


@dataclass(frozen=True, kw_only=True)
class ImageGallery(Gallery):
    """Walks over images. True positions are (row, column); inferred ones live in the learned space."""

    images: Float[np.ndarray, "clips C H W"]
    """The whole world of each clip, in [0, 1]."""
    view_corner: Float[np.ndarray, "clips 2"]
    """Row and column, in pixels of `images`, of the top left of what is seen at the last memorised step."""
    wall_xs: Float[np.ndarray, "n"]
    wall_ys: Float[np.ndarray, "m"]
    wall_values: Float[np.ndarray, "m n"]
    """sigma_d on a regular grid of the inferred space; empty where the motion has no walls."""
    walls: Float[np.ndarray, "4 2"]
    """Corners of the true outer walls, mapped into the inferred space."""
    metric: bool = False
    """Whether the inferred space is (row, column) in cells from the start, since displacements were learned from."""
    way: WayFound | None = None
    """Where steps can fail, or the model recognises places."""


@dataclass(frozen=True, kw_only=True)
class RoomsGallery(Gallery):
    """Walks of an agent with a heading. Poses are x, y and heading in the world's own frame; displacements are ahead,
    left and turn in radians."""

    maps: tuple[FloorMap, ...]
    """The place of each clip from above, without the agent."""


@dataclass(frozen=True, kw_only=True)
class RecordedGallery(Gallery):
    """Windows of recorded episodes. Poses and displacements are in units of the recordings, after the fit where they
    are not metric; where poses are unknown, true ones are NaN and inferred ones the model's own."""

    environment: str
    """What was recorded, in the recorder's words."""
    has_poses: bool
    continuous: bool
    """Whether actions are vectors: those of a gallery are then one along each axis."""
