"""Single rooms: rectangles, and convex polygons with five to eight corners."""

import numpy as np
from jaxtyping import Float, Int

from gtmsm.worlds.floorplan.shells import FAR, Shells
from gtmsm.worlds.textures import Textures

MOST_CORNERS = 8


def draw_single_rooms(count: int, textures: Textures, random: np.random.Generator) -> Shells:
    """Half rectangles, half polygons; half with all walls alike, half with a texture for every wall."""
    is_rectangle = random.random(count) < 0.5
    angles = np.where(is_rectangle, 4, random.integers(5, MOST_CORNERS + 1, count))
    corners = np.where(is_rectangle[:, None, None], _rectangles(count, random), _polygons(angles, random))
    number = np.arange(MOST_CORNERS)
    follower = np.where(number + 1 < angles[:, None], number + 1, 0)
    ends = np.take_along_axis(corners, follower[..., None], 1)
    exists = number < angles[:, None]
    walls = np.where(exists[..., None], np.concatenate([corners, ends], 2), 0)

    own = random.choice(textures.walls.numpy(), (count, MOST_CORNERS))
    alike = random.random(count) < 0.5
    low = np.where(exists[..., None], corners, np.inf).min(1)
    high = np.where(exists[..., None], corners, -np.inf).max(1)
    area = 0.5 * (walls[..., 0] * walls[..., 3] - walls[..., 2] * walls[..., 1]).sum(1)
    return Shells(
        walls=walls,
        wall_texture=np.where(alike[:, None], own[:, :1], own),
        floor_texture=random.choice(textures.floors.numpy(), (count, 1, 1)),
        ceiling_texture=random.choice(textures.ceilings.numpy(), (count, 1, 1)),
        corner=low,
        width=np.sqrt(area),
        bounds=np.concatenate([low, high], 1)[:, None],
        is_room=np.ones((count, 1), bool),
        region=np.zeros((count, 1, 1), np.int64),
        doors=np.full((count, 1, 2), FAR),
        doorway=np.zeros((count, 1, 1, 4)),
    )


def _rectangles(count: int, random: np.random.Generator) -> Float[np.ndarray, "count 8 2"]:
    """Four corners, counter-clockwise, and four that are not used."""
    sides = random.uniform(3.0, 6.4, (count, 1, 2))
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]] * 2)
    return 0.5 * sides * signs


def _polygons(angles: Int[np.ndarray, "count"], random: np.random.Generator) -> Float[np.ndarray, "count 8 2"]:
    """Corners on the rim of an ellipse, counter-clockwise: always convex. Jitter keeps them from crowding."""
    count = len(angles)
    jitter = random.uniform(-0.2, 0.2, (count, MOST_CORNERS))
    turn = random.uniform(0, 1, (count, 1))
    phase = 2 * np.pi * ((np.arange(MOST_CORNERS) + jitter) / angles[:, None] + turn)
    axes = random.uniform(1.8, 3.5, (count, 2))  # areas are then about those of the rectangles
    on_rim = np.stack([axes[:, :1] * np.cos(phase), axes[:, 1:] * np.sin(phase)], -1)
    cos, sin = np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)
    x, y = on_rim[..., 0], on_rim[..., 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y], -1)
