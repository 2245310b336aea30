"""Scores of planning: whether a journey ended at its goal, and its length compared with the shortest path.

| world | at the goal | length of a path |
|---|---|---|
| images | in the cell that the goal picture was seen from | steps, failed ones included |
| rooms | at rest within a tenth of the room's width and 20 degrees of where it was seen from | distance covered |

SPL (Anderson et al., 2018) is the length of the shortest path over that of the path taken; 0 if the goal was missed.
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
"""Minimum distance of a goal in rooms, in widths of the room: SPL is undefined for a path of length 0."""
FINE = 0.04
"""Side of the grid cells in which the shortest path through a room is searched, in units of the walls' height."""


class Arrival(ABC):
    """Scores of a journey of the first agent in one kind of world, by true poses."""

    budget: int
    """Maximum number of steps of a journey."""
    rests: int = 0
    """Number of steps without an action after which an agent is at rest."""

    @abstractmethod
    def there(self, goal: Float[Tensor, "D"]) -> bool:
        """Whether the agent is at the goal."""

    @abstractmethod
    def shortest(self, goal: Float[Tensor, "D"]) -> float:
        """Length of the shortest path from the agent to the goal."""

    @abstractmethod
    def length(self, poses: Float[Tensor, "steps D"]) -> float:
        """Length of the path through these poses."""

    def fair(self, goal: Float[Tensor, "D"]) -> bool:
        """Whether this goal can be scored; by default, if the agent is not there yet."""
        return not self.there(goal)


class ImageArrival(Arrival):
    """Scores of journeys over images."""

    budget = 64

    def __init__(self, world: ImageWalk) -> None:
        """`world` holds the agent."""
        self.world = world

    def there(self, goal: Float[Tensor, "2"]) -> bool:
        """Whether the agent is in the goal's cell."""
        return bool((self.world.pose[0] == goal).all())

    def shortest(self, goal: Float[Tensor, "2"]) -> float:
        """Number of steps of the shortest path, by breadth-first search from the goal."""
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
        """Number of steps taken."""
        return float(len(poses) - 1)


class RoomArrival(Arrival):
    """Scores of journeys in rooms."""

    budget = 256
    rests = 8

    def __init__(self, world: Rooms) -> None:
        """`world` holds the agent."""
        self.world = world

    def there(self, goal: Float[Tensor, "3"]) -> bool:
        """Whether the agent is within `WIDTHS` and `DEGREES` of the goal."""
        off = PlaneWithHeading().difference(self.world.pose[0], goal)
        near = off[:2].norm() <= WIDTHS * self.world.width[0]
        return bool(near and off[2].abs() <= math.radians(DEGREES))

    def fair(self, goal: Float[Tensor, "3"]) -> bool:
        """Whether the goal is at least `FARTHER` away."""
        return bool((self.world.pose[0] - goal)[:2].norm() >= FARTHER * self.world.width[0])

    def shortest(self, goal: Float[Tensor, "3"]) -> float:
        """Length of the shortest path on which the agent's body touches nothing; the straight line if that is free."""
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
        # Paths on a grid with eight directions are up to 8% too long; 5% is the average over directions.
        return max(straight, 0.95 * FINE * float(MCP_Geometric(grid).find_costs([square[1]])[0][square[0]]))

    def length(self, poses: Float[Tensor, "steps 3"]) -> float:
        """The distance covered."""
        return float(poses.diff(dim=0)[:, :2].norm(dim=-1).sum())


ARRIVALS: dict[type, Callable[[Any], Arrival]] = {ImageWalk: ImageArrival, Rooms: RoomArrival}
"""The scorer of journeys for each kind of world."""


def arrival_in(world: World) -> Arrival:
    """The scorer of journeys in this world; other kinds of worlds are refused."""
    inner = unwrapped(world)
    if type(inner) not in ARRIVALS:
        known = "give a run of an image walk or of rooms"
        raise InputError(f"nobody can walk to a goal in a {type(inner).__name__}; {known}")
    return ARRIVALS[type(inner)](inner)


def spl(arrived: bool, shortest: float, length: float) -> float:
    """Success weighted by path length, of one journey."""
    return arrived * shortest / max(shortest, length, 1e-9)
