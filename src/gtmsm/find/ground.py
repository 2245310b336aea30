"""The map that an answer is drawn on: that of the clip, or one made of the model's memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from gtmsm.config import require
from gtmsm.data.store import KINDS, Chart, Recording
from gtmsm.errors import shortened
from gtmsm.evaluation.metrics import affine_fit
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free
from gtmsm.worlds.image_walk import MOVES, ImageWalkConfig
from gtmsm.worlds.rooms import RoomsConfig

Poses: TypeAlias = Float[np.ndarray, "n D"]

PAPER = 246
"""Grey value of the background, where nothing is known."""
LARGEST = 2_000
"""Approximate number of pixels of a mosaic along each side."""
SHEET = 480
"""Pixels along each side of an empty sheet."""


@dataclass(frozen=True)
class Fit:
    """A map of poses: positions @ matrix + offset, and sign * heading + turn."""

    matrix: Float[np.ndarray, "2 2"]
    offset: Float[np.ndarray, "2"]
    sign: float = 1.0
    turn: float = 0.0
    name: str = ""

    def __call__(self, poses: Poses) -> Poses:
        """Map poses into the frame that they were fitted to."""
        return np.hstack([poses[:, :2] @ self.matrix + self.offset, self.sign * poses[:, 2:] + self.turn])


SAME = Fit(np.eye(2), np.zeros(2))
"""The identity."""


def fit_poses(inferred: Poses, true: Poses, metric: bool) -> Fit:
    """The least-squares map of inferred poses onto true ones: a shift and a rotation if they are metric, else affine.

    With an affine map, headings have a fit of their own: a sign, since the map may mirror, and an angle. With metric
    poses, headings help to find the rotation: the positions of an agent that turns on the spot do not determine it.
    """
    if not metric:
        found = affine_fit(torch.from_numpy(inferred[:, :2].copy()), torch.from_numpy(true[:, :2].copy()))
        sign, turn = 1.0, 0.0
        if inferred.shape[1] == 3:
            means = {way: np.exp(1j * (true[:, 2] - way * inferred[:, 2])).mean() for way in (1.0, -1.0)}
            sign = max(means, key=lambda way: abs(means[way]))
            turn = float(np.angle(means[sign]))
        return Fit(found.matrix.numpy(), found.offset.numpy(), sign, turn, "laid over by an affine map")
    middles = inferred[:, :2].mean(0), true[:, :2].mean(0)
    mine, theirs = ((poses[:, :2] - middle) @ [1, 1j] for poses, middle in zip((inferred, true), middles, strict=True))
    agreement = (mine.conj() * theirs).sum()
    if inferred.shape[1] == 3:
        agreement += np.exp(1j * (true[:, 2] - inferred[:, 2])).sum()
    turn = float(np.angle(agreement))
    c, s = math.cos(turn), math.sin(turn)
    matrix = np.array([[c, s], [-s, c]])
    return Fit(matrix, middles[1] - middles[0] @ matrix, 1.0, turn, "shifted and turned")


def off_by(fitted: Poses, true: Poses) -> float:
    """Mean distance between fitted and true positions."""
    return float(np.linalg.norm((fitted - true)[:, :2], axis=1).mean())


@dataclass(frozen=True)
class Ground:
    """A chart, and the map of the model's poses onto it."""

    chart: Chart
    fit: Fit
    path: Poses
    """The memorised walk, in the poses of the chart."""
    title: str
    caption: str
    arrows: bool = False
    """Whether to show the agent's headings along the path."""

    def pixel(self, poses: Poses) -> Float[np.ndarray, "n 2"]:
        """Pixels of the model's poses on the chart."""
        return self.chart.pixel(self.fit(poses))

    @property
    def stretch(self) -> Float[np.ndarray, "2 2"]:
        """Pixels (right, down) per unit of the model."""
        return self.chart.scale @ self.fit.matrix.T

    def looks(self, poses: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 2"]:
        """Headings of poses of the chart, as unit vectors on it."""
        ahead = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], 1) @ self.chart.scale.T
        return ahead / np.linalg.norm(ahead, axis=1, keepdims=True).clip(1e-9)


def require_same_world(what: str, recording: Recording, pose_size: int) -> None:
    """Refuse a clip from another kind of world than the model's."""
    kind, given = KINDS.get(pose_size, ""), shortened(recording.kind)
    require(
        given in ("", kind),
        f"{what}: a clip of kind {given}; this run is of kind {kind}: record one with `gtmsm record`",
    )
    if recording.poses is not None:
        numbers = recording.poses.shape[1]
        require(numbers == pose_size, f"{what}: poses have {numbers} numbers; this model's have {pose_size}")


def ground_for(model: WorldModel, world: Any, recording: Recording, inferred: Poses, metric: bool) -> Ground:
    """The map of the clip, if it has one and true poses; otherwise a map made of what the model memorised."""
    if recording.chart is not None and recording.poses is not None:
        return _on_the_map(recording.chart, inferred, recording.poses, metric)
    return GROUNDS[type(world)](model, world, recording, inferred, metric)


def _on_the_map(chart: Chart, inferred: Poses, true: Poses, metric: bool) -> Ground:
    """The true map of the place, with the model's poses fitted to the true ones."""
    fit = fit_poses(inferred, true, metric)
    off, unit = off_by(fit(inferred), true), "wall heights" if true.shape[1] == 3 else "cells"
    caption = (
        f"Map and path are the truth. The model's poses are {fit.name} so that they fit the true ones of the\n"
        f"clip best; they are then {off:.2f} {unit} off on average. The model itself has seen neither."
    )
    return Ground(chart, fit, true, "the place, and the walk that is memorised", caption)


def _mosaic(model: WorldModel, world: ImageWalkConfig, recording: Recording, inferred: Poses, metric: bool) -> Ground:
    """A mosaic of the memorised frames, each at its pose estimate."""
    assert isinstance(model.motion, Free)
    stride, (height, width) = world.stride, recording.frames.shape[1:3]
    moves = model.motion.M.detach().double().cpu().numpy().T
    to_cells = np.linalg.lstsq(moves, np.array(MOVES, dtype=float)[: len(moves)], rcond=None)[0]
    cells = (fit := Fit(to_cells, np.zeros(2)))(inferred)
    side = stride * float(np.ptp(cells, axis=0).max()) + max(height, width)
    far = f"the model thinks that it walked {side:.0f} pixels far"
    require(side <= 2 * LARGEST, f"{far}, too far to draw; train it longer")
    zoom = max(1, min(8, int(LARGEST / side)))
    corner = np.round(zoom * stride * cells).astype(int)
    first = corner.min(0)
    corner -= first
    tall, wide = corner.max(0) + zoom * np.array([height, width])
    picture = np.full((tall, wide, 3), PAPER, np.uint8)
    for (row, column), frame in zip(corner, recording.frames, strict=True):
        picture[row : row + zoom * height, column : column + zoom * width] = frame.repeat(zoom, 0).repeat(zoom, 1)
    middle, step = zoom * np.array([width, height]) / 2 - first[::-1], float(zoom * stride)
    chart = Chart(picture, middle, np.array([[0.0, step], [step, 0.0]]))
    caption = (
        "The clip has no map: this is the model's own. Every memorised frame lies where the model thinks that it was\n"
        "seen, later ones on top, and the line is the path that it thinks it took."
    )
    return Ground(chart, fit, cells, "what the model remembers, put together", caption)


def _empty_sheet(model: WorldModel, world: RoomsConfig, recording: Recording, inferred: Poses, metric: bool) -> Ground:
    """An empty sheet for the path of pose estimates, with a scale bar of one unit."""
    low, high = np.minimum(inferred[:, :2].min(0), 0), np.maximum(inferred[:, :2].max(0), 0)
    side = 1.3 * max(1.0, float((high - low).max()))
    per_unit, (west, south) = SHEET / side, (low + high - side) / 2
    origin = np.array([-west * per_unit, SHEET + south * per_unit])
    sheet = np.full((SHEET, SHEET, 3), PAPER, np.uint8)
    sheet[-14:-10, 12 : 12 + round(per_unit)] = 80  # a bar as long as a unit
    chart = Chart(sheet, origin, np.array([[per_unit, 0.0], [0.0, -per_unit]]))
    unit = "one wall height" if metric else "one unit of the model"
    caption = (
        "The clip has no map: this is the path that the model thinks it took, and which way it looked. The start looks "
        f"to the\nright; the bar at the bottom left is {unit}."
    )
    return Ground(chart, SAME, inferred, "the walk as the model remembers it", caption, arrows=True)


GROUNDS: dict[type, Callable[..., Ground]] = {ImageWalkConfig: _mosaic, RoomsConfig: _empty_sheet}
"""Functions that make a map if a clip has none, by the kind of world."""
