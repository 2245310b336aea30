"""Empty places: walls, floors and ceilings, and how rooms are connected."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

FAR = 1e6
"""Where a door is that does not exist."""

PADDING: dict[str, float] = {"doors": FAR, "region": -1.0}
"""What fills up an array of a place with fewer walls, tiles or rooms than another; zero unless said here."""


@dataclass(frozen=True)
class Shells:
    """Empty places. Regions are convex: from any point of one a straight walk leads to any other, but for objects."""

    walls: Float[np.ndarray, "places walls 4"]
    wall_texture: Int[np.ndarray, "places walls"]
    floor_texture: Int[np.ndarray, "places rows columns"]
    ceiling_texture: Int[np.ndarray, "places rows columns"]
    corner: Float[np.ndarray, "places 2"]
    width: Float[np.ndarray, "places"]
    """Of a typical room: the side of a square of the same area."""
    bounds: Float[np.ndarray, "places regions 4"]
    """West, south, east and north of each region."""
    is_room: Bool[np.ndarray, "places regions"]
    """Rooms hold objects and starts; corridors do not."""
    region: Int[np.ndarray, "places rows columns"]
    """Of each tile; -1 where it is solid."""
    doors: Float[np.ndarray, "places doors 2"]
    """Where one region opens into another."""
    doorway: Float[np.ndarray, "places regions regions 4"]
    """From one region to any other: a point before the next door on the way (x, y), and a point behind it (x, y)."""

    @property
    def places(self) -> int:
        """How many."""
        return len(self.walls)

    def with_new(self, index: Int[np.ndarray, "new"], new: "Shells") -> "Shells":
        """The same with some places replaced."""
        changed = {}
        for name, old in vars(self).items():
            fresh = getattr(new, name)
            shape = [max(sizes) for sizes in zip(old.shape[1:], fresh.shape[1:], strict=True)]
            changed[name], fresh = (padded(x, (len(x), *shape), PADDING.get(name, 0.0)) for x in (old, fresh))
            changed[name][index] = fresh
        return Shells(**changed)


def padded(array: np.ndarray, shape: tuple[int, ...], fill: float) -> np.ndarray:
    """The array in the first corner of a larger one."""
    larger = np.full(shape, fill, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def stacked(arrays: list[np.ndarray], fill: float) -> np.ndarray:
    """Arrays of several sizes as one, filled up to the largest."""
    shape = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    return np.stack([padded(array, shape, fill) for array in arrays])
