"""Who explores a maze: walks between a few goals, looks around there, and rarely touches a wall."""

import math
from collections import deque
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Float32

from gtmsm.worlds.doom_maze import Maze
from gtmsm.worlds.physics import ACTIONS, KEYS

FINE = 4
"""Crossings of the grid on which ways are planned, along a cell."""
GOALS, FARTHEST = 5, 9.0
"""Of a walk: few enough that it comes by again; cells of way from the start to each."""
PATIENCE, REVIEW = 100, 3
"""Steps after which a goal is given up, and after which it looks whether it has drifted off its way."""
GLIDE = 2.4
"""A body that is not pushed any more goes on for so many of its last steps."""
PUSH = 0.055
"""Cells of the first step from rest."""
BODY, BESIDE = 0.14, 0.24
"""Cells that a wall must be away: from a body, and from a way that is planned."""
THING = 0.15
"""Half of an object, in cells."""
SHARP_TURN, WIDE_TURN = 0.4, 0.8
"""Radians off course beyond which it turns on the spot: near a corner of its way, and where there is space to curve."""
LOOKS_AROUND = 0.3
"""Share of the goals at which it does."""
WHIM, LONGEST_WHIM = 0.03, 5
"""Share of the steps at which a random action begins, and the steps that it may last."""
TURN = 2 * math.pi / 41

FORWARD = ACTIONS.index("forward")
TURNS, VEERS = ((ACTIONS.index(f"{how}turn right"), ACTIONS.index(f"{how}turn left")) for how in ("", "forward and "))
Crossing: TypeAlias = tuple[int, int]
Point: TypeAlias = Float[np.ndarray, "2"]
Pose: TypeAlias = Float32[np.ndarray, "3"]


class Explorer:
    """Chooses actions by the true pose and the maze; made anew for each episode."""

    def __init__(self, maze: Maze) -> None:
        self.maze = maze
        self._objects = frozenset(maze.objects)
        lines = [(FINE * i + a, FINE * j + b) for i, j in maze.free for a in range(FINE) for b in range(FINE)]
        self._free = frozenset(one for one in lines if self._is_free(_point(one), BESIDE))
        self._crossings, rooms = sorted(self._free), frozenset(maze.in_rooms)
        self._points = np.stack([_point(one) for one in self._crossings])
        self._in_rooms = [(a, b) for a, b in self._crossings if (a // FINE, b // FINE) in rooms]
        self._goals: list[Crossing] = []
        self._goal: Crossing = (0, 0)
        self._way: list[Point] = []
        self._here: Point | None = None
        self._speed = self._mood = np.zeros(2)
        self._age = self._left = 0
        self._held = FORWARD

    def action(self, pose: Pose, rng: np.random.Generator) -> int:
        """The number of an action."""
        bearing, distance = self._bearing(pose, rng)
        left = int(bearing > 0)
        if self._left == 0 and rng.random() < WHIM:
            self._held, self._left = int(rng.integers(1, len(ACTIONS))), int(rng.integers(1, LONGEST_WHIM + 1))
        action = VEERS[left]
        if self._left:
            self._left, action = self._left - 1, self._held
        elif abs(bearing) > (SHARP_TURN if distance < 1.2 else WIDE_TURN):
            action = TURNS[left]
        elif abs(bearing) < TURN / 2:
            action = FORWARD
        ahead, sideways, _ = KEYS[ACTIONS[action]]
        if (ahead or sideways) and not self._may_push(pose, math.atan2(sideways, ahead)):
            self._left, action = 0, TURNS[left]
        return action

    def drive(self, pose: Pose, rng: np.random.Generator) -> Float32[np.ndarray, "2"]:
        """How much to turn to the left and to drive ahead, from -1 to 1 each; both change smoothly."""
        bearing, _ = self._bearing(pose, rng)
        self._mood = 0.9 * self._mood + 0.44 * rng.normal(size=2)  # of variance 1
        if self._left:  # it looks around
            self._left, turn, drive = self._left - 1, 1.0 if self._held == TURNS[1] else -1.0, 0.0
        else:
            turn = bearing / TURN / 2 + 0.15 * self._mood[0]
            drive = (0.8 + 0.2 * self._mood[1]) * max(0.0, math.cos(bearing)) ** 3
        if drive and not self._may_push(pose, 0.0):
            drive = 0.0
        return np.clip([turn, drive], -1, 1).astype(np.float32)

    def _bearing(self, pose: Pose, rng: np.random.Generator) -> tuple[float, float]:
        """Radians to turn to the left to the next point of the way, and its distance."""
        here, heading = pose[:2].astype(float), float(pose[2])
        self._speed = here - (here if self._here is None else self._here)
        self._here = here
        self._age += 1
        while self._way and self._comes_to(self._way[0], here):
            self._way.pop(0)
            if not self._way and rng.random() < LOOKS_AROUND:
                self._held, self._left = TURNS[int(rng.integers(2))], int(rng.integers(5, 25))
        if not self._way or self._age > PATIENCE:
            self._choose(here, heading, rng)
        elif self._age % REVIEW == 0 and not self._sees(here, self._way[0]):
            self._way = self._way_to(self._goal, here, self._reached(here))
        return self._off(self._way, here, heading), float(np.hypot(*(self._way[0] - here)))

    def _off(self, way: list[Point], here: Point, heading: float) -> float:
        away = way[0] - here - self._speed
        return math.remainder(math.atan2(away[1], away[0]) - heading, 2 * math.pi)

    def _comes_to(self, point: Point, here: Point) -> bool:
        """Whether it will come to rest there, or passes by where the way goes straight on."""
        sharp = 1.0
        if len(self._way) > 1:
            one, two = point - here, self._way[1] - point
            sharp = abs(math.remainder(math.atan2(one[1], one[0]) - math.atan2(two[1], two[0]), 2 * math.pi)) / 1.6
        rest = here + min(sharp, 1.0) * GLIDE * self._speed
        return bool(np.hypot(*(point - rest)) < 0.3)

    def _choose(self, here: Point, heading: float, rng: np.random.Generator) -> None:
        """Another goal; of two the one that lies ahead, since turning takes long."""
        before, self._age = self._reached(here), 0
        if not self._goals:
            near = [one for one in self._in_rooms if one in before and before[one][1] <= FINE * FARTHEST]
            self._goals = [near[i] for i in rng.permutation(len(near))[:GOALS]]
        others = [goal for goal in self._goals if goal in before and goal != self._goal] or [*before]
        goals = [others[i] for i in rng.permutation(len(others))[:2]]
        ways = [self._way_to(goal, here, before) for goal in goals]
        best = min(range(len(goals)), key=lambda i: abs(self._off(ways[i], here, heading)))
        self._goal, self._way = goals[best], ways[best]

    def _way_to(self, goal: Crossing, here: Point, before: dict[Crossing, tuple[Crossing, int]]) -> list[Point]:
        """From corner to corner."""
        back = [goal if goal in before else next(iter(before))]
        while before[back[-1]][0] != back[-1]:
            back.append(before[back[-1]][0])
        points = [_point(one) for one in reversed(back)]
        way, at = [], here
        for point, after in zip(points, [*points[1:], None], strict=True):
            if after is None or not self._sees(at, after):
                way.append(point)
                at = point
        return way

    def _reached(self, here: Point) -> dict[Crossing, tuple[Crossing, int]]:
        """Where it can walk, from the nearest crossing on: each with the one before it and its distance."""
        start = self._crossings[int(np.abs(self._points - here).sum(1).argmin())]
        before, queue = {start: (start, 0)}, deque([start])
        while queue:
            i, j = one = queue.popleft()
            for other in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if other in self._free and other not in before:
                    before[other] = one, before[one][1] + 1
                    queue.append(other)
        return before

    def _sees(self, one: Point, two: Point) -> bool:
        """Whether the straight way is free."""
        count = 2 + int(6 * np.hypot(*(two - one)))
        return all(self._is_free(point, BESIDE) for point in one + np.linspace(0, 1, count)[1:, None] * (two - one))

    def _may_push(self, pose: Pose, direction: float) -> bool:
        """Whether a body that is pushed once more still comes to rest before it touches anything."""
        angle = float(pose[2]) + direction
        speed = 0.7 * self._speed + PUSH * np.array([math.cos(angle), math.sin(angle)])
        far = 1 + GLIDE if np.hypot(*self._speed) > 0.02 else 1.5
        return self._is_free(pose[:2] + far * speed, BODY)

    def _is_free(self, point: Point, margin: float) -> bool:
        """Whether walls and objects are far enough away from a point."""
        x, y = point.tolist()
        left, right, low, high = (math.floor(n) for n in (x - margin, x + margin, y - margin, y + margin))
        if not {(left, low), (left, high), (right, low), (right, high)} <= self.maze.free:
            return False
        i, j = cell = math.floor(x), math.floor(y)
        return cell not in self._objects or math.hypot(x - i - 0.5, y - j - 0.5) > margin + THING


def _point(crossing: Any) -> Point:
    return (np.array(crossing) + 0.5) / FINE
