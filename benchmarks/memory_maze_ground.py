"""The ground of Memory Maze, as far as pictures show it: where there is floor, and where walls stand on it.

Floor has a colour that walls have not, and the camera's height and tilt are known: so the lowest row of a column that
is no floor tells how far away the wall is. What was seen from believed poses is put together on a map of squares.
"""

import math

import numpy as np
import torch
from memory_maze_sights import FOCAL, LEVEL, PIXELS, RISE
from scipy.ndimage import distance_transform_edt

SIDE, SQUARES = 0.1, 240
"""Of a square in cells, and squares to a side of the map; the start is in its middle."""
SEEN, STANDS = 3.0, 2.0
"""Cells up to which floor is believed, and walls are."""
BODY, HIT = 0.1, 0.17
"""Cells around the agent that are surely free, and ahead of it where it bumped."""
CLEAR, UNKNOWN = 0.27, 0.15
"""Cells that a way keeps from walls, and from what is not known."""
BEARINGS = np.arctan((PIXELS / 2 - 0.5 - np.arange(PIXELS)) / FOCAL)
"""Of the columns of a picture."""
COUNTS, NEAR, UNSURE, WEIGHT = 3.5, 0.3, (0.04, 0.02), 0.1
"""Of walls that are seen beside where they are: cells up to which they are looked at; cells beside it that count most;
the standard deviation, and how much more it is per squared cell; and how much each of them counts, since they are not
independent."""
INSIDE, BLOCKED = 2.0, 0.25
"""How much less likely, as a power of e, it is to be where no floor was seen, and to see none where there is some."""
MIDDLE = slice(24, 40)
"""Columns of a picture of what is straight ahead."""
OFTEN = 0.5, 0.01
"""Probabilities of a bump near walls, and elsewhere."""
ALIGNED = (6, 11, 21, 41, 81)
"""Pictures after which it works out how the grid of the maze lies: later ones know more, and their poses are less
sure."""
ENOUGH, MOST = 40, 100
"""Squares of walls that tell how the grid lies, and about the most that are asked."""


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


def _ends(poses, bearings, reach):
    """Where rays end that leave these poses, in these directions and so far."""
    x, y, heading = poses.double().numpy().T[:, :, None]
    return np.stack([x + reach * np.cos(heading + bearings), y + reach * np.sin(heading + bearings)], -1)


class Seen:
    """How often each square was seen to be free, and to be a wall."""

    margin = 0.06
    """Of plans: within 0.07 cells of squares that are open."""

    def __init__(self):
        self.free, self.wall, self.lines = *np.zeros((2, SQUARES, SQUARES), int), None
        self._off, self.looks = None, 0
        rows = np.arange(SQUARES) - SQUARES // 2
        self.middles = SIDE * np.stack(np.meshgrid(rows, rows, indexing="ij"), -1)

    def squares(self, points):
        """The squares of points in cells."""
        return tuple(np.clip(np.round(np.asarray(points) / SIDE).astype(int) + SQUARES // 2, 0, SQUARES - 1).T)

    def see(self, frame, pose, things):
        """Put what is seen from a pose on the map; columns with `things` that stand on the floor show no wall."""
        x, y, heading = pose
        self.looks += 1
        (far, seen), angles = ranges(frame), heading + BEARINGS
        along = np.arange(SIDE / 2, SEEN, SIDE / 2)
        reached = seen[:, None] & (along < (far - SIDE / 2)[:, None])
        ways = np.stack([np.cos(angles), np.sin(angles)], -1)
        points = (np.array([x, y]) + along[:, None] * ways[:, None])[reached]
        around = np.stack(np.meshgrid(*[np.arange(-BODY, BODY + 0.01, SIDE / 2)] * 2), -1).reshape(-1, 2)
        self._count(self.free, np.concatenate([points, around + [x, y]]))
        stands = (far < STANDS) & ~things
        self._count(self.wall, np.array([x, y]) + (far[stands] + SIDE / 4)[:, None] * ways[stands])
        if self.looks in ALIGNED:
            self.align()

    def bump(self, pose):
        """Something is in the way of an agent that pushes ahead."""
        x, y, heading = pose
        self._off = None
        self.wall[self.squares([[x + HIT * math.cos(heading), y + HIT * math.sin(heading)]])] += 10

    def _count(self, what, points):
        self._off = None
        what[tuple(np.unique(np.stack(self.squares(points)), axis=1))] += 1

    @property
    def walls(self):
        return 2 * self.wall > self.free

    def off(self):
        """How far each square is from walls, in cells; worked out once after each change."""
        if self._off is None:
            walls = self.walls
            self._off = SIDE * distance_transform_edt(~walls) if walls.any() else np.full(walls.shape, np.inf)
        return self._off

    @property
    def new(self):
        """Squares of which nothing is known."""
        return (self.free == 0) & ~self.walls

    def points(self):
        """Middles of squares that are far enough from walls, and from what is not known, for an agent to be there."""
        return self.middles[(self.off() >= CLEAR) & (SIDE * distance_transform_edt(~self.new) >= UNKNOWN)]

    def careful(self, action, frame, things):
        """The action, or a turn instead of a push against a wall: no motion knows what that does."""
        free = ranges(frame)[1] | things
        if action not in (1, 4, 5) or free[MIDDLE].mean() >= 0.5:
            return action
        left = free[: PIXELS // 2].sum() > free[PIXELS // 2 :].sum()
        return {1: 2 if left else 3, 4: 2, 5: 3}[action]

    def bumps(self, points, frame):
        """How likely it is to bump at each of these points: often where an agent would touch a wall."""
        return torch.where(torch.as_tensor(self.off()[self.squares(points.numpy())] < HIT), *OFTEN)

    def likely(self, frame, poses, things):
        """Log-likelihood of the walls in a picture, at each of these poses."""
        far, seen = ranges(frame)
        stands, blocked = (np.flatnonzero(one & ~things)[::3] for one in (seen & (far < COUNTS), ~seen))
        walls, reach = self.walls, far[stands]
        points = _ends(poses, BEARINGS[stands], reach)
        missed = self.off()[self.squares(points.reshape(-1, 2))].reshape(points.shape[:2]).clip(max=NEAR)
        unsure = UNSURE[0] + UNSURE[1] * np.square(reach)
        total = -0.5 * WEIGHT * np.square(missed / (unsure + SIDE)).sum(1)
        at = self.squares(poses[:, :2].numpy())
        total -= INSIDE * ((self.free[at] == 0) | walls[at])
        at = self.squares(_ends(poses, BEARINGS[blocked], far[blocked] + SIDE).reshape(-1, 2))
        total -= BLOCKED * ((self.free[at] > 1) & ~walls[at]).reshape(len(poses), -1).sum(1)
        if self.lines is not None:
            beside = self._beside_lines(points, *self.lines)
            total -= 0.5 * WEIGHT * np.square(beside.clip(max=NEAR) / unsure).sum(1)
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
        points = points[:: 1 + len(points) // MOST]
        shifts = np.stack(np.meshgrid(*[np.arange(0, 1, 0.05)] * 2), -1).reshape(-1, 2)

        def fit(turn, at):
            return np.square(self._beside_lines(points, turn, at).clip(max=0.2)).mean()

        best = min((fit(turn, at), turn, tuple(at)) for turn in np.arange(0, np.pi / 2, 0.05) for at in shifts)
        fine = [(best[1] + i * 0.01, (best[2][0] + j * 0.02, best[2][1] + k * 0.02))
                for i in range(-4, 5) for j in range(-2, 3) for k in range(-2, 3)]  # fmt: skip
        _, turn, at = min((fit(turn, np.array(at)), turn, at) for turn, at in fine)
        self.lines = turn, np.array(at)
