"""Poses of a model as poses of the world in which it walks, and as points of the map."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from gtmsm.find.ground import Fit, fit_poses
from gtmsm.model.gtmsm import WorldModel
from gtmsm.page.walkable import AnyWalkable, Pose
from gtmsm.tensors import Belief
from gtmsm.worlds.image_walk import MOVES

FITTED = 8
"""Number of poses needed to fit a model with units of its own to the true poses."""


class Overlay:
    """Transforms poses of the model to the world: by the first moment if units are known, else fitted to all moments.

    A model trained without true displacements has units of its own. On images its learned moves give these units.
    """

    def __init__(self, model: WorldModel, place: AnyWalkable, metric: bool) -> None:
        self._model, self._place = model, place
        start = place.pose(place.begin())
        if model.settings.motion.has_heading:
            x, y, heading = start
            c, s = math.cos(heading), math.sin(heading)
            self._fit = Fit(np.array([[c, s], [-s, c]]), np.array([x, y]), 1.0, heading)
        else:
            moves: Any = model.motion.M
            learned = moves.detach().double().cpu().numpy().T
            to_cells = np.linalg.lstsq(learned, np.array(MOVES, dtype=float), rcond=None)[0]
            self._fit = Fit(to_cells, start)
        self._fixed = metric or not model.settings.motion.has_heading

    def fit(self, heres: Sequence[Belief], true: Sequence[Pose]) -> None:
        """Fit the walk to the true one again, if units are not known."""
        if not self._fixed and len(heres) >= FITTED:
            self._fit = fit_poses(np.stack([self.pose(here) for here in heres]), np.stack(true), False)

    def pose(self, here: Belief) -> Pose:
        """The pose of a belief, in the model's frame."""
        return here.mean[0, : self._model.motion.pose_size].double().cpu().numpy()

    def in_world(self, pose: Pose) -> Pose:
        """A pose of the model as one of the world."""
        return self._fit(pose[None])[0]

    def on_map(self, pose: Pose) -> list[float]:
        """A pose of the world as fractions of the map's side, to the right and down, and its heading."""
        point = self._place.on_map(pose[None, :2])[0].tolist()
        return [round(x, 4) for x in (*point, *pose[2:].tolist())]

    def shares(self, pose: Pose) -> list[float]:
        """A pose of the model on the map, as `on_map`."""
        return self.on_map(self.in_world(pose))

    def at(self, point: Float[np.ndarray, "2"], here: Belief) -> tuple[Pose, Pose]:
        """A point of the map as a pose of the model, and of the world; the heading is that of `here`."""
        now = self.pose(here)
        position = self._place.from_map(point)
        inferred = (position - self._fit.offset) @ np.linalg.inv(self._fit.matrix)
        return np.concatenate([inferred, now[2:]]), np.concatenate([position, self.in_world(now)[2:]])
