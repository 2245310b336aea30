"""Objects into empty places, apart from walls, doors and each other; and spots where an agent may stand."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from gtmsm.camera import BOX, COLUMN, CONE, SPHERE
from gtmsm.worlds.floorplan.shells import Shells

GAP = 0.5
"""At least between an object and a wall or another object: a body of radius 0.15 walks through with ease."""
SPOT_GAP = 0.35
"""At least between a spot and a wall or an object."""
SPOTS = 32
"""Spots of a place; fewer are repeated."""
DARTS = 64
"""Points tried for an object, or for two spots."""

RADII, HEIGHTS = (0.12, 0.3), (0.25, 0.9)
BOX_HALF_SIDES = (0.12, 0.24)
"""A box reaches further with its corners than a column with its rim."""


@dataclass(frozen=True)
class Furniture:
    """The objects of each place, and spots where an agent can stand."""

    objects: Float[np.ndarray, "places objects 5"]
    """As in a Scene: x, y, radius or half side, height, turn."""
    object_kind: Int[np.ndarray, "places objects"]
    object_colour: Float[np.ndarray, "places objects 3"]
    spots: Float[np.ndarray, "places spots 2"]
    fits: Bool[np.ndarray, "places"]
    """Whether all objects and a spot fit."""


def furnish(shells: Shells, objects: int, random: np.random.Generator) -> Furniture:
    """Try random points for each object in turn, then for spots."""
    count = shells.places
    kind = random.choice([COLUMN, SPHERE, CONE, BOX], (count, objects))
    radius = np.where(kind == BOX, random.uniform(*BOX_HALF_SIDES, kind.shape), random.uniform(*RADII, kind.shape))
    radius = np.where(kind == SPHERE, np.maximum(radius, HEIGHTS[0] / 2), radius)
    height = np.where(kind == SPHERE, 2 * radius, random.uniform(*HEIGHTS, kind.shape))
    reach = np.where(kind == BOX, math.sqrt(2), 1.0) * radius

    where, fits = np.zeros((count, objects, 2)), np.ones(count, bool)
    rooms = shells.is_room.sum(1)
    first = random.integers(1 << 30, size=count)
    for each in range(objects):
        darts = _darts(shells, np.repeat((first + each)[:, None] % rooms[:, None], DARTS, 1), random)
        free = _room_around(shells, darts, where[:, :each], reach[:, :each]) >= reach[:, each, None] + GAP
        free &= _distance(darts, shells.doors).min(-1) >= reach[:, each, None] + 0.85  # of the door's middle
        where[:, each] = darts[np.arange(count), free.argmax(1)]
        fits &= free.any(1)

    darts = _darts(shells, random.integers(1 << 30, size=(count, SPOTS // 2 * DARTS // 4)) % rooms[:, None], random)
    free = _room_around(shells, darts, where, reach) >= SPOT_GAP
    order = np.argsort(~free, axis=1, kind="stable")
    chosen = np.take_along_axis(order, np.arange(SPOTS) % np.maximum(free.sum(1), 1)[:, None], 1)
    turn = random.uniform(0, math.pi / 2, (count, objects, 1))
    return Furniture(
        objects=np.concatenate([where, radius[..., None], height[..., None], turn], 2),
        object_kind=kind,
        object_colour=_vivid(count, objects, random),
        spots=np.take_along_axis(darts, chosen[..., None], 1),
        fits=fits & free.any(1),
    )


def _darts(
    shells: Shells, room: Int[np.ndarray, "places darts"], random: np.random.Generator
) -> Float[np.ndarray, "places darts 2"]:
    """A random point in the bounds of each dart's room."""
    rooms_first = np.argsort(~shells.is_room, axis=1, kind="stable")
    bounds = np.take_along_axis(shells.bounds, np.take_along_axis(rooms_first, room, 1)[..., None], 1)
    return bounds[..., :2] + random.random((*room.shape, 2)) * (bounds[..., 2:] - bounds[..., :2])


def _room_around(
    shells: Shells,
    points: Float[np.ndarray, "places points 2"],
    objects: Float[np.ndarray, "places objects 2"],
    reach: Float[np.ndarray, "places objects"],
) -> Float[np.ndarray, "places points"]:
    """How far the nearest wall or object is; below zero outside of the walls or inside of an object."""
    start, along = shells.walls[:, None, :, :2], (shells.walls[..., 2:] - shells.walls[..., :2])[:, None]
    length2 = np.square(along).sum(-1)
    offset = points[:, :, None] - start
    fraction = ((offset * along).sum(-1) / np.maximum(length2, 1e-12)).clip(0, 1)
    distance2 = np.square(offset - fraction[..., None] * along).sum(-1)
    nearest = np.sqrt(np.where(length2 > 0, distance2, np.inf).min(-1))
    # A ray to the east crosses the walls an odd number of times from inside.
    rises = (offset[..., 1] >= 0) != (offset[..., 1] - along[..., 1] >= 0)
    crosses = along[..., 0] * offset[..., 1] - along[..., 1] * offset[..., 0]
    inside = (rises & (crosses * along[..., 1] > 0)).sum(-1) % 2 == 1
    nearest = np.where(inside, nearest, -np.inf)
    if objects.shape[1]:
        nearest = np.minimum(nearest, (_distance(points, objects) - reach[:, None]).min(-1))
    return nearest


def _distance(
    a: Float[np.ndarray, "places n 2"], b: Float[np.ndarray, "places m 2"]
) -> Float[np.ndarray, "places n m"]:
    """Between every two points."""
    return np.sqrt(np.square(a[:, :, None] - b[:, None]).sum(-1))


def _vivid(count: int, objects: int, random: np.random.Generator) -> Float[np.ndarray, "count objects 3"]:
    """Bright and strong colours, as far apart in hue as there are objects."""
    steps = np.arange(objects) + random.uniform(-0.2, 0.2, (count, objects))
    hue = random.random((count, 1)) + steps / max(objects, 1)
    saturation, value = random.uniform(0.75, 1, (2, count, objects, 1))
    ramp = np.abs((6 * hue[..., None] + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1
    return value * (1 - saturation * (1 - ramp.clip(0, 1)))
