"""The ground of Memory Maze, as far as pictures show it: where there is floor, and where walls stand on it.

Floor has a colour that walls have not, and the camera's height and tilt are known: so the lowest row of a column that
is no floor tells how far away the wall is. What was seen from believed poses is put together on a map of squares.
"""

import math

import numpy as np
import torch
from memory_maze_sights import FOCAL, LEVEL, PIXELS, RISE
from scipy.ndimage import distance_transform_edt, label
from skimage.graph import MCP_Geometric

SIDE, SQUARES = 0.1, 240
"""Of a square in cells, and squares to a side of the map; the start is in its middle."""
SEEN, STANDS = 2.5, 2.0
"""Cells up to which floor is believed, and walls are."""
BODY, HIT = 0.1, 0.17
"""Cells around the agent that are surely free, and ahead of it where it bumped."""
CLEAR, UNKNOWN = 0.22, 0.15
"""Cells that a way keeps from walls, and from what is not known."""
SOME = 12
"""Squares of a frontier that is worth looking at."""
BEARINGS = np.arctan((PIXELS / 2 - 0.5 - np.arange(PIXELS)) / FOCAL)
"""Of the columns of a picture."""
NEAR, OFF, LINE, WEIGHT = 0.3, 0.2, 0.06, 0.25
"""Of walls that are seen beside where they are: cells that count most, their standard deviation, that beside lines of
the grid, and how much each of them counts, since they are not independent."""
ENOUGH = 40
"""Squares of walls that tell how the grid lies."""


def floor(frame):
    """Which pixels are floor, by their hue and darkness."""
    red, green, blue = np.moveaxis(frame.astype(float), 2, 0)
    greener, bluer = green / np.maximum(red, 1), blue / np.maximum(green, 1)
    hue = (greener > 1.22) & (greener < 1.85) & (bluer > 1.02) & (bluer < 1.35)
    return hue & (frame.max(2) < 75)


def ranges(frame):
    """How far away floor ends in each column, in cells, and whether any is seen: if not, a wall is at least as near.

    Walls are higher than the camera, so that all ground up to there is free.
    """
    count = np.cumprod(floor(frame)[::-1][: PIXELS - math.ceil(LEVEL) - 1], 0).sum(0)
    return RISE * FOCAL / (PIXELS - count - LEVEL) / np.cos(BEARINGS), count > 0


class Ground:
    """How often each square was seen to be free, and to be a wall."""

    def __init__(self):
        self.free, self.wall, self.lines = *np.zeros((2, SQUARES, SQUARES), int), None
        rows = np.arange(SQUARES) - SQUARES // 2
        self.middles = SIDE * np.stack(np.meshgrid(rows, rows, indexing="ij"), -1)

    def squares(self, points):
        """The squares of points in cells."""
        return tuple(np.clip(np.round(np.asarray(points) / SIDE).astype(int) + SQUARES // 2, 0, SQUARES - 1).T)

    def see(self, frame, pose, things):
        """Put what is seen from a pose on the map; columns with `things` that stand on the floor show no wall."""
        x, y, heading = pose
        (far, seen), angles = ranges(frame), heading + BEARINGS
        along = np.arange(SIDE / 2, SEEN, SIDE / 2)
        reached = seen[:, None] & (along < (far - SIDE / 2)[:, None])
        ways = np.stack([np.cos(angles), np.sin(angles)], -1)
        points = (np.array([x, y]) + along[:, None] * ways[:, None])[reached]
        around = np.stack(np.meshgrid(*[np.arange(-BODY, BODY + 0.01, SIDE / 2)] * 2), -1).reshape(-1, 2)
        self._count(self.free, np.concatenate([points, around + [x, y]]))
        stands = (far < STANDS) & ~things
        self._count(self.wall, np.array([x, y]) + (far[stands] + SIDE / 4)[:, None] * ways[stands])

    def bump(self, pose):
        """Something is in the way of an agent that pushes ahead."""
        x, y, heading = pose
        self.wall[self.squares([[x + HIT * math.cos(heading), y + HIT * math.sin(heading)]])] += 10

    def _count(self, what, points):
        what[tuple(np.unique(np.stack(self.squares(points)), axis=1))] += 1

    @property
    def walls(self):
        return 2 * self.wall > self.free

    @property
    def new(self):
        """Squares of which nothing is known."""
        return (self.free == 0) & ~self.walls

    def open(self):
        """Squares that are far enough from walls, and from what is not known, for an agent to be there."""
        far = SIDE * distance_transform_edt(~self.walls), SIDE * distance_transform_edt(~self.new)
        return (far[0] >= CLEAR) & (far[1] >= UNKNOWN)

    def frontier(self, pose):
        """Where to stand, on the nearest open ground beside what is not known, and where to look from there."""
        is_open, new = self.open(), self.new
        edge, _ = label(is_open & (SIDE * distance_transform_edt(~new) < UNKNOWN + 2 * SIDE), np.ones((3, 3)))
        here = tuple(int(i[0]) for i in self.squares([pose[:2]]))
        cost = np.where(is_open, 1.0, np.where(self.walls, -1.0, 10.0))
        cost[here] = 1.0
        steps = MCP_Geometric(cost).find_costs([here])[0] * SIDE
        away = self.middles - np.asarray(pose[:2])
        turn = np.arctan2(away[..., 1], away[..., 0]) - pose[2]
        large = np.isin(edge, np.flatnonzero(np.bincount(edge.ravel())[1:] >= SOME) + 1)
        steps = np.where(large, steps + np.abs(np.remainder(turn + np.pi, 2 * np.pi) - np.pi) / 2, np.inf)
        stand = self.middles[np.unravel_index(steps.argmin(), steps.shape)]
        return (stand, self._beside(stand).mean(0)) if np.isfinite(steps.min()) else None

    def _beside(self, point):
        """The middles of squares near a point of which nothing is known."""
        return self.middles[self.new & (np.hypot(*np.moveaxis(self.middles - point, 2, 0)) < UNKNOWN + 2 * SIDE)]

    def is_new(self, point):
        """Whether there is still something to be seen beside a point."""
        return len(self._beside(point)) > 0

    def give_up(self, point):
        """What is not known beside a point is taken for a wall, until it is seen."""
        self._count(self.wall, self._beside(point))

    def likely(self, frame, poses, things):
        """Log-likelihood of the walls in a picture, at each of these poses."""
        far, seen = ranges(frame)
        stands = np.flatnonzero(seen & (far < STANDS) & ~things)[::3]
        walls = self.walls
        if not len(stands) or not walls.any():
            return torch.zeros(len(poses))
        x, y, heading = poses.double().numpy().T[:, :, None]
        angle, reach = heading + BEARINGS[stands], far[stands]
        points = np.stack([x + reach * np.cos(angle), y + reach * np.sin(angle)], -1)
        off = SIDE * distance_transform_edt(~walls)
        missed = off[self.squares(points.reshape(-1, 2))].reshape(points.shape[:2]).clip(max=NEAR)
        total = -0.5 * WEIGHT * np.square(missed / OFF).sum(1)
        if self.lines is not None:
            beside = self._beside_lines(points, *self.lines)
            total -= 0.5 * WEIGHT * np.square(beside.clip(max=NEAR) / LINE).sum(1)
        return torch.as_tensor(total).float()

    def _beside_lines(self, points, turn, at):
        """How far points are from the nearest line of a grid that is turned by `turn`, with a crossing at `at`."""
        c, s = np.cos(turn), np.sin(turn)
        inside = points @ np.array([[c, -s], [s, c]]) - at
        return np.abs(inside - np.round(inside)).min(-1)

    def align(self):
        """Find the grid of cells that walls stand on."""
        points = self.middles[self.walls]
        if len(points) < ENOUGH:
            return
        shifts = np.stack(np.meshgrid(*[np.arange(0, 1, 0.05)] * 2), -1).reshape(-1, 2)

        def fit(turn, at):
            return np.square(self._beside_lines(points, turn, at).clip(max=0.2)).mean()

        best = min((fit(turn, at), turn, tuple(at)) for turn in np.arange(0, np.pi / 2, 0.05) for at in shifts)
        fine = [(best[1] + i * 0.01, (best[2][0] + j * 0.02, best[2][1] + k * 0.02))
                for i in range(-4, 5) for j in range(-2, 3) for k in range(-2, 3)]  # fmt: skip
        _, turn, at = min((fit(turn, np.array(at)), turn, at) for turn, at in fine)
        self.lines = turn, np.array(at)
