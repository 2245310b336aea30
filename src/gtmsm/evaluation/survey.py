"""What it is to know where you are, in each kind of world: how far off, near enough, been there before."""

import math
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.evaluation.examine.image_walk import HALF_A_CELL
from gtmsm.evaluation.examine.rooms import NEAR, NEAR_TURN, wrapped
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.slip import unwrapped
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

NEAR_IN_WIDTHS = 0.05
"""In rooms a position is right within this share of the room's width ..."""
RIGHT_TURN = 10.0
"""... if its heading is within as many degrees."""


@runtime_checkable
class Survey(Protocol):
    """Poses are compared in the world's units, both as they lie from the start of the walk that drew the map."""

    unit: str
    """Of errors in position."""
    right: str
    """What counts as knowing where one is."""

    @property
    def where(self) -> Int[Tensor, "n"]:
        """The place of each agent."""

    def errors(
        self, believed: Float[Tensor, "n time D"], true: Float[Tensor, "n time D"]
    ) -> dict[str, Float[Tensor, "n time"]]:
        """How far off beliefs are, by name; headings in degrees."""

    def within(self, errors: dict[str, Float[Tensor, "n time"]]) -> Bool[Tensor, "n time"]:
        """Whether that is near enough."""

    def as_claimed(
        self, errors: dict[str, Float[Tensor, "n time"]], settings: LandmarkConfig
    ) -> Bool[Tensor, "n time"]:
        """Whether it is as near as whoever says that a place is known claims it to be."""

    def same_place(
        self, past: Float[Tensor, "n before D"], now: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time before"]:
        """Which poses of the past each pose of now is at or near, on the world's own map."""

    def move_in(self, generator: torch.Generator) -> None:
        """New agents anywhere in the places where agents are now."""

    def clumsy(self, walker: Walker) -> Walker | None:
        """The walker, if it took no care of what is in its way; None where that makes no difference."""


def survey_of(world: World) -> Survey:
    """Who knows this kind of world."""
    inner = unwrapped(world)
    if isinstance(inner, ImageWalk):
        return ImageSurvey(inner)
    if isinstance(inner, Rooms):
        return RoomsSurvey(inner)
    raise InputError(f"landmarks in a {type(inner).__name__} cannot be scored; give an ImageWalk or Rooms")


class ImageSurvey:
    """In cells."""

    unit = "cells"
    right = "within half a cell"

    def __init__(self, world: ImageWalk) -> None:
        self.world = world

    @property
    def where(self) -> Int[Tensor, "n"]:
        """Images."""
        return self.world.image

    def errors(
        self, believed: Float[Tensor, "n time 2"], true: Float[Tensor, "n time 2"]
    ) -> dict[str, Float[Tensor, "n time"]]:
        """Distances."""
        return {"position_error": (believed - true).norm(dim=-1)}

    def within(self, errors: dict[str, Float[Tensor, "n time"]]) -> Bool[Tensor, "n time"]:
        """Within half a cell."""
        return errors["position_error"] <= HALF_A_CELL

    def as_claimed(
        self, errors: dict[str, Float[Tensor, "n time"]], settings: LandmarkConfig
    ) -> Bool[Tensor, "n time"]:
        """The same: where poses are no cells, the model's own units mean nothing here."""
        return self.within(errors)

    def same_place(
        self, past: Float[Tensor, "n before 2"], now: Float[Tensor, "n time 2"]
    ) -> Bool[Tensor, "n time before"]:
        """The very same cell."""
        return (past[:, None] == now[:, :, None]).all(-1)

    def move_in(self, generator: torch.Generator) -> None:
        """Any free cell is as likely as any other."""
        world, cells = self.world, self.world.config.cells
        chosen = torch.multinomial((~world.solid).flatten(1).float(), 1, generator=generator)[:, 0]
        cell = torch.stack([chosen // cells, chosen % cells], dim=-1)
        world.place(world.image, cell, world.solid if world.config.obstacles else None)

    def clumsy(self, walker: Walker) -> None:
        """Nobody sees obstacles here: everyone is."""
        return None


class RoomsSurvey:
    """In heights of a wall and degrees."""

    unit = "wall heights"
    right = f"within {100 * NEAR_IN_WIDTHS:.0f}% of the room's width and {RIGHT_TURN:.0f}°"

    def __init__(self, world: Rooms) -> None:
        self.world = world

    @property
    def where(self) -> Int[Tensor, "n"]:
        """Floor plans."""
        return self.world.where

    def errors(
        self, believed: Float[Tensor, "n time 3"], true: Float[Tensor, "n time 3"]
    ) -> dict[str, Float[Tensor, "n time"]]:
        """Distances, also in widths of the room, and turns."""
        off = (believed - true)[..., :2].norm(dim=-1)
        return {
            "position_error": off,
            "position_error_relative": off / self.world.width[:, None],
            "heading_error": wrapped(believed[..., 2] - true[..., 2]).abs().rad2deg(),
        }

    def within(self, errors: dict[str, Float[Tensor, "n time"]]) -> Bool[Tensor, "n time"]:
        """Near, and facing the right way."""
        return (errors["position_error_relative"] <= NEAR_IN_WIDTHS) & (errors["heading_error"] <= RIGHT_TURN)

    def as_claimed(
        self, errors: dict[str, Float[Tensor, "n time"]], settings: LandmarkConfig
    ) -> Bool[Tensor, "n time"]:
        """Within the tolerances that the model learned to be sure of."""
        turn = errors["heading_error"] <= settings.tolerance_turn
        return turn & (errors["position_error"] <= settings.tolerance)

    def same_place(
        self, past: Float[Tensor, "n before 3"], now: Float[Tensor, "n time 3"]
    ) -> Bool[Tensor, "n time before"]:
        """Near enough to a pose of the past to see nearly the same."""
        step = now[:, :, None] - past[:, None]
        return (step[..., :2].norm(dim=-1) <= NEAR) & (wrapped(step[..., 2]).abs() <= NEAR_TURN)

    def move_in(self, generator: torch.Generator) -> None:
        """At rest on free spots, facing anywhere."""
        place, spots = self.world.where, self.world.plans.spots
        spot = torch.randint(spots.shape[1], place.shape, device=place.device, generator=generator)
        heading = 2 * math.pi * torch.rand(len(place), 1, device=place.device, generator=generator)
        self.world.place(place, torch.cat([spots[place, spot], heading], dim=1))

    def clumsy(self, walker: Walker) -> Walker | None:
        """Whoever walks from object to object, straight into what is in the way."""
        if not isinstance(walker, ScavengerWalker):
            return None
        return ScavengerWalker(replace(walker.config, may_bump=True))
