"""What an answer is drawn on: the map of the clip, or the one that the model itself has."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from gtmsm.config import require
from gtmsm.data.store import KINDS, Chart, Recording
from gtmsm.find.align import SAME, Fit, fit_poses, off_by
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free
from gtmsm.worlds.image_walk import MOVES, ImageWalkConfig
from gtmsm.worlds.rooms import RoomsConfig

PAPER = 246
"""Grey of where nothing is known."""
ZOOM = 8
"""Pixels of a mosaic per pixel of a frame, unless it becomes larger than this:"""
LARGEST = 2_000
SHEET = 480
"""Pixels along each side of an empty sheet."""
LEAST_SIDE = 1.0
"""Units that a walk is across, at least."""


@dataclass(frozen=True)
class Ground:
    """A chart, and how poses of the model come onto it."""

    chart: Chart
    fit: Fit
    path: Float[np.ndarray, "time D"]
    """The walk that is memorised, in the chart's own poses."""
    title: str
    caption: str
    arrows: bool = False
    """Whether to show which way the agent looked along the path."""

    def pixel(self, poses: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n 2"]:
        """Where poses of the model are on the chart."""
        return self.chart.pixel(self.fit(poses))

    @property
    def stretch(self) -> Float[np.ndarray, "2 2"]:
        """Pixels (right, down) per unit of the model."""
        return self.chart.scale @ self.fit.matrix.T

    def looks(self, poses: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 2"]:
        """The directions on the chart in which poses of the chart look."""
        ahead = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], 1) @ self.chart.scale.T
        return ahead / np.linalg.norm(ahead, axis=1, keepdims=True).clip(1e-9)


def require_same_world(what: str, recording: Recording, pose_size: int) -> None:
    """Refuse a clip from another kind of world than the model's."""
    kind = KINDS.get(pose_size, "")
    require(
        recording.kind in ("", kind),
        f"{what}: a clip of kind {recording.kind}; this run is of kind {kind}: record one with `gtmsm record`",
    )
    if recording.poses is not None:
        given = recording.poses.shape[1]
        require(given == pose_size, f"{what}: poses have {given} numbers; this model's have {pose_size}")


def ground_for(
    model: WorldModel,
    world: ImageWalkConfig | RoomsConfig,
    recording: Recording,
    inferred: Float[np.ndarray, "time D"],
    metric: bool,
) -> Ground:
    """The best there is to draw on."""
    if recording.chart is not None and recording.poses is not None:
        return _on_the_map(recording.chart, inferred, recording.poses, metric)
    return GROUNDS[type(world)](model, world, recording, inferred, metric)


def _on_the_map(
    chart: Chart, inferred: Float[np.ndarray, "time D"], true: Float[np.ndarray, "time D"], metric: bool
) -> Ground:
    """The place as it is."""
    fit = fit_poses(inferred, true, metric)
    off, unit = off_by(fit(inferred), true), "wall heights" if true.shape[1] == 3 else "cells"
    caption = (
        f"Map and path are the truth. The model's poses are {fit.name} so that they fit the true ones of the\n"
        f"clip best; they are then {off:.2f} {unit} off on average. The model itself has seen neither."
    )
    return Ground(chart, fit, true, "the place, and the walk that is memorised", caption)


def _mosaic(
    model: WorldModel,
    world: ImageWalkConfig,
    recording: Recording,
    inferred: Float[np.ndarray, "time 2"],
    metric: bool,
) -> Ground:
    """The memorised frames, each where the model thinks that it was seen."""
    assert isinstance(model.motion, Free)
    stride = world.stride
    moves = model.motion.M.detach().double().cpu().numpy().T
    to_cells = np.linalg.lstsq(moves, np.array(MOVES, dtype=float)[: len(moves)], rcond=None)[0]
    fit = Fit(to_cells, np.zeros(2))
    cells = fit(inferred)
    height, width = recording.frames.shape[1:3]
    side = stride * float(np.ptp(cells, axis=0).max()) + max(height, width)
    require(
        side <= 2 * LARGEST, f"the model thinks that it walked {side:.0f} pixels far, too far to draw; train it longer"
    )
    zoom = max(1, min(ZOOM, int(LARGEST / side)))
    corner = np.round(zoom * stride * cells).astype(int)
    first = corner.min(0)
    corner -= first
    tall, wide = corner.max(0) + zoom * np.array([height, width])
    picture = np.full((tall, wide, 3), PAPER, np.uint8)
    for (row, column), frame in zip(corner, recording.frames, strict=True):
        large = frame.repeat(zoom, 0).repeat(zoom, 1)
        picture[row : row + zoom * height, column : column + zoom * width] = large
    middle = zoom * np.array([width, height]) / 2 - first[::-1]
    step = float(zoom * stride)
    chart = Chart(picture, middle, np.array([[0.0, step], [step, 0.0]]))
    caption = (
        "The clip has no map: this is the model's own. Every memorised frame lies where the model thinks that it was\n"
        "seen, later ones on top, and the line is the path that it thinks it took."
    )
    return Ground(chart, fit, cells, "what the model remembers, put together", caption)


def _empty_sheet(
    model: WorldModel, world: RoomsConfig, recording: Recording, inferred: Float[np.ndarray, "time 3"], metric: bool
) -> Ground:
    """The path as the model thinks that it was, with a bar of one unit to measure it by."""
    low, high = np.minimum(inferred[:, :2].min(0), 0), np.maximum(inferred[:, :2].max(0), 0)
    side = 1.3 * max(LEAST_SIDE, float((high - low).max()))
    per_unit, (west, south) = SHEET / side, (low + high - side) / 2
    origin = np.array([-west * per_unit, SHEET + south * per_unit])
    chart = Chart(_ruled(per_unit), origin, np.array([[per_unit, 0.0], [0.0, -per_unit]]))
    unit = "one wall height" if metric else "one unit of the model"
    caption = (
        "The clip has no map: this is the path that the model thinks it took, and which way it looked. The start looks "
        f"to the\nright; the bar at the bottom left is {unit}."
    )
    return Ground(chart, SAME, inferred, "the walk as the model remembers it", caption, arrows=True)


def _ruled(per_unit: float) -> UInt8[np.ndarray, "side side 3"]:
    """An empty sheet with a bar as long as a unit."""
    sheet = np.full((SHEET, SHEET, 3), PAPER, np.uint8)
    sheet[-14:-10, 12 : 12 + round(per_unit)] = 80
    return sheet


GROUNDS: dict[type, Callable[..., Ground]] = {ImageWalkConfig: _mosaic, RoomsConfig: _empty_sheet}
"""What to draw on where a clip has no map, by the kind of world."""
