"""Pose spaces: a Euclidean space of any dimension, and a plane with a heading.

A space defines the difference of two poses, the effect of a displacement in the agent's own frame, and coordinates
("places") whose Euclidean distance measures how near two poses are. D is the size of a pose, P the size of a place,
and G the number of groups of coordinates.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.tensors import Place, Pose

PosePath: TypeAlias = Float[Tensor, "*#batch time D"]


def wrapped(angle: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The angle, wrapped to [-pi, pi]."""
    return torch.atan2(angle.sin(), angle.cos())


class Space(ABC):
    """Interface of all pose spaces."""

    size: int
    """D, the number of coordinates of a pose: position first, then angles."""
    angles: int = 0
    """Number of coordinates that are angles."""

    @property
    def positions(self) -> int:
        """Number of coordinates of the position."""
        return self.size - self.angles

    @property
    def groups(self) -> tuple[slice, ...]:
        """Coordinates that share a unit and a variance: the position and, if there is one, the heading."""
        return (slice(0, self.size),)

    @abstractmethod
    def difference(self, before: Pose, after: Pose) -> Pose:
        """after - before in map coordinates, with angles in [-pi, pi]."""

    @abstractmethod
    def displacement(self, before: Pose, after: Pose) -> Pose:
        """The displacement from `before` to `after` in the frame of `before`; angles are not wrapped."""

    @abstractmethod
    def step(self, before: Pose, displacement: Pose) -> Pose:
        """The pose after a displacement in the frame of `before`: the inverse of `displacement`."""

    @abstractmethod
    def path(self, start: Pose, displacement: PosePath, noise: PosePath | None = None) -> PosePath:
        """Poses after each of a sequence of displacements; noise is added in map coordinates."""

    @abstractmethod
    def place(self, pose: Pose) -> Place:
        """Coordinates whose Euclidean distance measures how near two poses are."""

    @abstractmethod
    def pose_at(self, place: Place) -> Pose:
        """The pose of a place: the inverse of `place`, up to full turns."""

    @abstractmethod
    def relative(self, place: Place, query: Place) -> Place:
        """`place` in the frame of `query`."""

    def start_of(self, path: Pose, end: Pose) -> Pose:
        """The start of a walk that ends at `end`, where `path` is the end of the same walk from the origin.

        Relative to the end of a walk, its start lies where the origin lies relative to `path`.
        """
        return self.step(end, self.displacement(path, torch.zeros_like(path)))

    def squared_lengths(self, difference: Pose) -> list[Float[Tensor, "*batch"]]:
        """The squared length of every group of coordinates."""
        return [difference[..., group].square().sum(-1) for group in self.groups]


@dataclass(frozen=True)
class Plane(Space):
    """Euclidean space of `size` dimensions: poses are vectors, and places are the poses themselves."""

    size: int

    def difference(self, before: Pose, after: Pose) -> Pose:
        """after - before."""
        return after - before

    displacement = difference

    def step(self, before: Pose, displacement: Pose) -> Pose:
        """A sum."""
        return before + displacement

    def path(self, start: Pose, displacement: PosePath, noise: PosePath | None = None) -> PosePath:
        """A running sum."""
        moved = displacement if noise is None else displacement + noise
        return start[..., None, :] + moved.cumsum(-2)

    def place(self, pose: Pose) -> Pose:
        """The pose itself."""
        return pose

    def pose_at(self, place: Pose) -> Pose:
        """The place itself."""
        return place

    def relative(self, place: Pose, query: Pose) -> Pose:
        """A difference."""
        return place - query


XYTurn: TypeAlias = Float[Tensor, "*#batch 3"]
XYTurnPath: TypeAlias = Float[Tensor, "*#batch time 3"]
XYCosSin: TypeAlias = Float[Tensor, "*#batch 4"]


class PlaneWithHeading(Space):
    """Poses (x, y, heading in radians) and places (x, y, cos, sin), in which 30 and 390 degrees are equal."""

    size = 3
    angles = 1

    @property
    def groups(self) -> tuple[slice, ...]:
        """The position; the heading."""
        return slice(0, 2), slice(2, 3)

    def difference(self, before: XYTurn, after: XYTurn) -> XYTurn:
        """after - before, with the difference of headings wrapped to [-pi, pi]."""
        step = after - before
        turn = step[..., 2:]
        return torch.cat([step[..., :2], wrapped(turn)], dim=-1)

    def displacement(self, before: XYTurn, after: XYTurn) -> XYTurn:
        """Distance ahead, distance to the left, and turn."""
        x, y, turn = (after - before).unbind(-1)
        c, s = before[..., 2].cos(), before[..., 2].sin()
        return torch.stack([c * x + s * y, c * y - s * x, turn], dim=-1)

    def step(self, before: XYTurn, displacement: XYTurn) -> XYTurn:
        """Move along the heading before the step, and turn."""
        ahead, left, turn = displacement.unbind(-1)
        c, s = before[..., 2].cos(), before[..., 2].sin()
        moved = torch.broadcast_tensors(c * ahead - s * left, s * ahead + c * left, turn)
        return before + torch.stack(moved, dim=-1)

    def path(self, start: XYTurn, displacement: XYTurnPath, noise: XYTurnPath | None = None) -> XYTurnPath:
        """Running sums of turns, then of moves along the heading before each step."""
        ahead, left, turn = displacement.unbind(-1)
        first = start[..., None, 2]
        heading = first + (turn if noise is None else turn + noise[..., 2]).cumsum(-1)
        before = torch.cat([first.expand(*heading.shape[:-1], 1), heading], dim=-1)[..., :-1]
        c, s = before.cos(), before.sin()
        moved = torch.stack([c * ahead - s * left, s * ahead + c * left], dim=-1)
        xy = start[..., None, :2] + (moved if noise is None else moved + noise[..., :2]).cumsum(-2)
        return torch.cat([xy, heading[..., None]], dim=-1)

    def place(self, pose: XYTurn) -> XYCosSin:
        """(x, y, cos, sin), App. A.2."""
        return torch.cat([pose[..., :2], pose[..., 2:].cos(), pose[..., 2:].sin()], dim=-1)

    def pose_at(self, place: XYCosSin) -> XYTurn:
        """The pose of a place, with its heading in [-pi, pi]."""
        return torch.cat([place[..., :2], torch.atan2(place[..., 3:], place[..., 2:3])], dim=-1)

    def relative(self, place: XYCosSin, query: XYCosSin) -> XYCosSin:
        """Distances ahead and to the left of `query`, and cos and sin of the turn; both pairs are rotated at once."""
        away = place - torch.nn.functional.pad(query[..., :2], (0, 2))
        x, y = away.unflatten(-1, (2, 2)).unbind(-1)
        c, s = query[..., 2:3], query[..., 3:]
        return torch.stack([c * x + s * y, c * y - s * x], dim=-1).flatten(-2)


def space_of(size: int) -> Space:
    """The space of recorded poses with this number of coordinates: 3 are x, y and a heading."""
    return PlaneWithHeading() if size == PlaneWithHeading.size else Plane(size)
