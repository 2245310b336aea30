"""Places as a camera sees them: their walls, floors, ceilings and objects."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int32, Int64, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.kernels.walks.raycast import raycast


@dataclass(frozen=True)
class Scene:
    """Places, padded to equally many walls and objects. A unit is the height of a wall: walls reach from z = 0 to 1.

    Axes are right-handed: x to the east, y to the north, headings counter-clockwise from x.
    """

    walls: Float[Tensor, "places walls 4"]
    """Segments x0, y0, x1, y1, seen from both sides; padding is a segment of no length."""
    wall_texture: Int64[Tensor, "places walls"]
    """Textures begin at the first end of a wall."""
    floor_texture: Int64[Tensor, "places rows columns"]
    """Of square tiles; row 0 is the southernmost, column 0 the westernmost."""
    ceiling_texture: Int64[Tensor, "places rows columns"]
    """Of the same tiles."""
    corner: Float[Tensor, "places 2"]
    """x and y of the south-western corner of the tiles; beyond the tiles the outermost one goes on."""
    tile: float
    """Side of a floor tile, in units."""
    objects: Float[Tensor, "places objects 5"]
    """x, y, radius (a box: half of its side), height, turn about the vertical in radians. They stand on the floor; a
    sphere's height is twice its radius, whatever is given."""
    object_kind: Int64[Tensor, "places objects"]
    """One of `gtmsm.camera`: NOTHING is padding."""
    object_colour: Float[Tensor, "places objects 3"]
    """In [0, 1]."""
    textures: UInt8[Tensor, "textures side side 3"]
    """Each covers one unit by one unit, and repeats; the first row is at the top of a wall, in the north of a floor."""

    def to(self, device: torch.device | str) -> "Scene":
        """The same on another device."""
        names = (name for name in self.__dataclass_fields__ if name != "tile")
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        return Scene(tile=self.tile, **moved)

    @cached_property
    def pyramid(self) -> Int32[Tensor, "textures texels"]:
        """Every texture at its full side, at half of it, and so on to one texel; red, green, blue in the low bytes.

        Computed once: the textures of a scene must not change afterwards.
        """
        side = self.textures.shape[1]
        require(
            side & (side - 1) == 0 and side > 0,
            f"textures have a side of {side} texels; expected a power of two, such as 32: resize them",
        )
        levels = [self.textures.permute(0, 3, 1, 2).float()]
        while levels[-1].shape[-1] > 1:
            levels.append(F.avg_pool2d(levels[-1], 2))
        red, green, blue = torch.cat([level.flatten(2) for level in levels], dim=2).round().int().unbind(1)
        return red | green << 8 | blue << 16


@dataclass(frozen=True)
class Camera:
    """A pinhole at a fixed height that looks level."""

    pixels: int = 32
    """Side of the square picture."""
    field_of_view: float = 80.0
    """Degrees from its left to its right edge."""
    antialias: int = 2
    """Rays per pixel and axis, averaged."""
    eye: float = 0.5
    """Height above the floor."""

    def __post_init__(self) -> None:
        """Refuse a camera that sees nothing."""
        require(self.pixels >= 1, f"pixels is {self.pixels}; a picture has at least 1")
        require(0 < self.field_of_view < 180, f"field_of_view is {self.field_of_view}; choose from 1 to 179 degrees")
        require(self.antialias >= 1, f"antialias is {self.antialias}; a pixel takes at least 1 ray")
        require(0 < self.eye < 1, f"eye is {self.eye}; it must lie between the floor at 0 and the ceiling at 1")

    @property
    def rays(self) -> int:
        """Rays per row and per column."""
        return self.pixels * self.antialias

    @property
    def edge(self) -> float:
        """Tangent of half the field of view: the slope of the outermost rays."""
        return math.tan(math.radians(self.field_of_view) / 2)


def draw_frames(
    scene: Scene, camera: Camera, place: Int[Tensor, "n"], pose: Float[Tensor, "n 3"]
) -> UInt8[Tensor, "n 3 pixels pixels"]:
    """What the camera sees in `place` from each pose (x, y, heading in radians), on the scene's device."""
    return raycast(
        scene.walls, scene.wall_texture, scene.floor_texture, scene.ceiling_texture, scene.corner, float(scene.tile),
        scene.objects, scene.object_kind, scene.object_colour, scene.pyramid,
        place, pose, camera.pixels, camera.antialias, camera.edge, camera.eye,
    )  # fmt: skip
