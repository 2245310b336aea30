"""Whether a journey ended at its goal, and how long it was beside the shortest way: what planning is scored by.

| world | at the goal | length of a way |
|---|---|---|
| images | in the cell that the goal picture was seen from | steps, those that failed included |
| rooms | at rest within a tenth of the room's width of where it was seen from, and 20 degrees | distance covered |

SPL (Anderson et al., 2018) is the shortest length over that of the way taken, where that ended at the goal, else 0.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from skimage.graph import MCP_Geometric
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.pose import PlaneWithHeading
from gtmsm.worlds.image_walk import MOVES, ImageWalk
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.slip import unwrapped
from gtmsm.worlds.world import World

WIDTHS, DEGREES = 0.1, 20.0
"""In rooms, a goal is reached within this fraction of the room's width and this angle."""
FARTHER = 0.2
"""Minimum distance of a goal in rooms, in widths of the room: for a path of length 0 there is no SPL."""
FINE = 0.04
"""Side of the squares in which the shortest path through a room is searched, in units of the height of its walls."""


class Arrival(ABC):
    """How a journey of the first agent is scored in one kind of world, by true poses."""

    budget: int
    """Maximum number of steps of a journey."""
    rests: int = 0
    """Steps without an action after which an agent is at rest."""

    @abstractmethod
    def there(self, goal: Float[Tensor, "D"]) -> bool:
        """Whether the agent is at the goal."""

    @abstractmethod
    def shortest(self, goal: Float[Tensor, "D"]) -> float:
        """Length of the shortest way from where the agent is."""

    @abstractmethod
    def length(self, poses: Float[Tensor, "steps D"]) -> float:
        """Length of the way through these poses."""

    def fair(self, goal: Float[Tensor, "D"]) -> bool:
        """Whether this goal can be scored: the agent is not there yet."""
        return not self.there(goal)


class ImageArrival(Arrival):
    """On images."""

    budget = 64

    def __init__(self, world: ImageWalk) -> None:
        """Of agents of this world."""
        self.world = world

    def there(self, goal: Float[Tensor, "2"]) -> bool:
        """In its cell."""
        return bool((self.world.pose[0] == goal).all())

    def shortest(self, goal: Float[Tensor, "2"]) -> float:
        """Steps, found by a wave that goes out from the goal."""
        solid = self.world.solid[0].numpy()
        steps = np.full(solid.shape, np.inf)
        edge = [tuple(goal.long().tolist())]
        steps[edge[0]] = 0
        while edge:
            row, column = edge.pop(0)
            for down, right in MOVES[:4]:
                there = row + down, column + right
                inside = min(there) >= 0 and max(there) < len(solid)
                if inside and not solid[there] and np.isinf(steps[there]):
                    steps[there] = steps[row, column] + 1
                    edge.append(there)
        return float(steps[tuple(self.world.cell[0].tolist())])

    def length(self, poses: Float[Tensor, "steps 2"]) -> float:
        """Steps taken."""
        return float(len(poses) - 1)


class RoomArrival(Arrival):
    """In rooms."""

    budget = 256
    rests = 8

    def __init__(self, world: Rooms) -> None:
        """Of agents of this world."""
        self.world = world

    def there(self, goal: Float[Tensor, "3"]) -> bool:
        """Near enough, and turned enough."""
        off = PlaneWithHeading().difference(self.world.pose[0], goal)
        near = off[:2].norm() <= WIDTHS * self.world.width[0]
        return bool(near and off[2].abs() <= math.radians(DEGREES))

    def fair(self, goal: Float[Tensor, "3"]) -> bool:
        """Some way off."""
        return bool((self.world.pose[0] - goal)[:2].norm() >= FARTHER * self.world.width[0])

    def shortest(self, goal: Float[Tensor, "3"]) -> float:
        """Distance around everything that a body of this radius would touch; the straight line where that is free."""
        start, end = self.world.pose[0, :2], goal[:2]
        low, high = torch.minimum(start, end) - 2, torch.maximum(start, end) + 2
        sides = [torch.arange(float(low[i]), float(high[i]), FINE) for i in range(2)]
        points = torch.cartesian_prod(*sides)
        free = self.world.obstacles.at(torch.tensor([0])).clearance(points[None])[0] > self.world.config.physics.radius
        straight = float((end - start).norm())
        line = start + torch.linspace(0, 1, 2 + int(straight / FINE))[:, None] * (end - start)
        clear = self.world.obstacles.at(torch.tensor([0])).clearance(line[None])[0]
        if bool((clear > self.world.config.physics.radius - 1e-3).all()):
            return straight
        grid = np.where(free.view(len(sides[0]), len(sides[1])).numpy(), 1.0, 20.0)
        square = [tuple(((p - low) / FINE).round().long().tolist()) for p in (start, end)]
        # Eight directions make a way up to 8 per cent longer than it is; the average over directions is 5.
        return max(straight, 0.95 * FINE * float(MCP_Geometric(grid).find_costs([square[1]])[0][square[0]]))

    def length(self, poses: Float[Tensor, "steps 3"]) -> float:
        """Distance covered."""
        return float(poses.diff(dim=0)[:, :2].norm(dim=-1).sum())


ARRIVALS: dict[type, Callable[[Any], Arrival]] = {ImageWalk: ImageArrival, Rooms: RoomArrival}
"""How arrivals are scored in each kind of world."""


def arrival_in(world: World) -> Arrival:
    """How journeys in this world are scored."""
    inner = unwrapped(world)
    if type(inner) not in ARRIVALS:
        known = "give a run of an image walk or of rooms"
        raise InputError(f"nobody can walk to a goal in a {type(inner).__name__}; {known}")
    return ARRIVALS[type(inner)](inner)


def spl(arrived: bool, shortest: float, length: float) -> float:
    """Success weighted by path length, of one journey."""
    return arrived * shortest / max(shortest, length, 1e-9)
