"""Places drawn from a seed: what is seen there, and how rooms are connected."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gtmsm.config import require, require_choice, require_seed, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.floorplan.furniture import GAP, SPOT_GAP, Furniture, furnish
from gtmsm.worlds.floorplan.grid_plans import DOOR_WIDTH, draw_mazes, draw_several_rooms
from gtmsm.worlds.floorplan.shells import Shells
from gtmsm.worlds.floorplan.single_rooms import draw_single_rooms
from gtmsm.worlds.lab import import_labmaze
from gtmsm.worlds.scene import Scene
from gtmsm.worlds.textures import Textures

Plan = Literal["room", "rooms", "maze"]

DRAW = {"room": draw_single_rooms, "rooms": draw_several_rooms, "maze": draw_mazes}
MOST_OBJECTS = 12
"""With more, most places could not be walked."""


@dataclass(frozen=True)
class FloorPlans:
    """Places, with the spots, regions and doors that a walker needs."""

    scene: Scene
    width: Float[Tensor, "places"]
    """Of a typical room: the side of a square of the same area. Errors are given relative to it."""
    spots: Float[Tensor, "places spots 2"]
    """Points in rooms that are free of walls and objects; walks start there."""
    region: Int64[Tensor, "places rows columns"]
    """The convex region (a room or a piece of corridor) of each floor tile; -1 where it is solid."""
    is_room: Bool[Tensor, "places regions"]
    doorway: Float[Tensor, "places regions regions 4"]
    """On the way from a region to another: a point before the next door (x, y), and a point behind it (x, y)."""

    @property
    def places(self) -> int:
        """How many."""
        return len(self.width)

    def to(self, device: torch.device | str) -> "FloorPlans":
        """The same on another device."""
        return FloorPlans(**{name: value.to(device) for name, value in vars(self).items()})

    def region_at(self, place: Int64[Tensor, "n"], position: Float[Tensor, "n 2"]) -> Int64[Tensor, "n"]:
        """Which region of its place each agent stands in."""
        rows, columns = self.region.shape[1:]
        column, row = ((position - self.scene.corner[place]) / self.scene.tile).floor().long().unbind(-1)
        return self.region[place, row.clamp(0, rows - 1), column.clamp(0, columns - 1)]


def draw_floorplans(kind: Plan, count: int, objects: int, textures: Textures, seed: int) -> FloorPlans:
    """`count` places with `objects` objects each, on the CPU; the same seed draws the same places."""
    require_choice("plan", kind, get_args(Plan))
    require_whole("number of places", count, most=10**6)
    require_objects(kind, objects)
    require_seed(seed)
    random = np.random.default_rng(seed)
    shells = DRAW[kind](count, textures, random)
    furniture = furnish(shells, objects, random)
    for _ in range(100):  # places whose objects do not fit are drawn anew
        tight = np.flatnonzero(~furniture.fits)
        if not len(tight):
            return _as_plans(shells, furniture, textures)
        larger = DRAW[kind](len(tight), textures, random)
        shells = shells.with_new(tight, larger)
        for name, values in vars(furnish(larger, objects, random)).items():
            getattr(furniture, name)[tight] = values
    raise InputError(f"{objects} objects do not fit into a {kind} plan; ask for fewer")


def require_objects(kind: str, objects: int) -> None:
    """Refuse more objects than a place can hold."""
    require(0 <= objects <= MOST_OBJECTS, f'objects is {objects}; a place of plan "{kind}" holds 0 to {MOST_OBJECTS}')


def require_walkable(kind: str, objects: int, radius: float) -> None:
    """Refuse a plan whose generator is missing, too many objects, and a body that some way is too narrow for."""
    if kind == "maze":
        import_labmaze('plan "maze"')
    require_objects(kind, objects)
    ways = {"around a start": 2 * SPOT_GAP}
    if objects:
        ways["past an object"] = GAP
    if kind != "room":
        ways["through a door"] = DOOR_WIDTH
    where, width = min(ways.items(), key=lambda way: way[1])
    require(
        2 * radius < width,
        f"radius is {radius}; the narrowest way, {where}, is {width:g} wide: make it less than {width / 2:g}",
    )


def _as_plans(shells: Shells, furniture: Furniture, textures: Textures) -> FloorPlans:
    """Arrays to tensors, of float32 or int64; a tile is a cell of the grid, a unit wide."""
    kinds = {"f": torch.float32, "i": torch.int64, "b": torch.bool}
    arrays = vars(shells) | vars(furniture)
    tensors = {name: torch.from_numpy(array).to(kinds[array.dtype.kind]) for name, array in arrays.items()}
    scene, plans = (
        {field.name: tensors[field.name] for field in fields(kind) if field.name in tensors}
        for kind in (Scene, FloorPlans)
    )
    return FloorPlans(scene=Scene(tile=1.0, textures=textures.bank, **scene), **plans)
