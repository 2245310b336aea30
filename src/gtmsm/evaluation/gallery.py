"""Galleries: a few example walks with the model's predictions, as the report draws them; tests check the shapes."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gtmsm.worlds.floor_map import FloorMap


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Example clips of any world, as NumPy arrays."""

    truth: Float[np.ndarray, "clips future C h w"]
    """Frames of the prediction phase."""
    imagined: Float[np.ndarray, "clips future C h w"]
    true_pose: Float[np.ndarray, "clips T D"]
    """True poses at all T = tau + future steps."""
    inferred_pose: Float[np.ndarray, "clips T D"]
    seen: Bool[np.ndarray, "clips future"] | None
    """Which predicted steps are at a memorised place; None if that is unknown."""
    tau: int
    strips: tuple[tuple[int, int], ...]
    """Ranges of time steps to show frame by frame: first and last, counted from 1 as in the paper."""
    displacement: Float[np.ndarray, "A M"]
    """Displacement of an agent at rest by each action, according to the model."""
    true_displacement: Float[np.ndarray, "A M"]
    """The true displacements, in the same coordinates."""
    action_names: tuple[str, ...]

    @property
    def future(self) -> int:
        """Number of predicted steps."""
        return int(self.truth.shape[1])


@dataclass(frozen=True)
class WayFound:
    """For worlds where steps can fail: the obstacles of the example clips, and the inferred positions."""

    solid: Bool[np.ndarray, "clips cells cells"]
    """Cells that are obstacles."""
    scenes: Float[np.ndarray, "clips C side side"]
    """The world of each clip with solid cells hatched, and the view at the last memorised step framed."""
    believed: Float[np.ndarray, "clips T 2"]
    """Inferred positions, as (row, column) of cells."""
    reckoned: Float[np.ndarray, "clips T 2"]
    """The same by dead reckoning."""


@dataclass(frozen=True, kw_only=True)
class ImageGallery(Gallery):
    """Walks over images. True positions are (row, column); inferred ones are in the learned space."""

    images: Float[np.ndarray, "clips C H W"]
    """The whole world of each clip, in [0, 1]."""
    view_corner: Float[np.ndarray, "clips 2"]
    """Row and column, in pixels of `images`, of the top left corner of the view at the last memorised step."""
    wall_xs: Float[np.ndarray, "n"]
    wall_ys: Float[np.ndarray, "m"]
    wall_values: Float[np.ndarray, "m n"]
    """sigma_d on a regular grid of the inferred space; empty if the motion has no walls."""
    walls: Float[np.ndarray, "4 2"]
    """Corners of the true outer walls, mapped into the inferred space."""
    metric: bool = False
    """Whether the inferred space is (row, column) in cells from the start, since training used displacements."""
    way: WayFound | None = None
    """Given if steps can fail, or if the model recognises places."""


@dataclass(frozen=True, kw_only=True)
class RoomsGallery(Gallery):
    """Walks of an agent with a heading. Poses are x, y and heading in the world's own frame; displacements are ahead,
    left and turn in radians."""

    maps: tuple[FloorMap, ...]
    """The floor plan of each clip, without the agent."""


@dataclass(frozen=True, kw_only=True)
class RecordedGallery(Gallery):
    """Windows of recorded episodes. Poses and displacements are in units of the recordings, after the fit if the model
    is not metric. If poses are unknown, true ones are NaN and inferred ones are in the model's own space."""

    environment: str
    """Name of the environment, as the recorder gave it."""
    has_poses: bool
    continuous: bool
    """Whether actions are vectors; the gallery then has one action along each axis."""
