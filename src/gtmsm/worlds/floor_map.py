"""Maps of places from above: floors, walls and objects, and on them paths, agents and memories."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from gtmsm.camera import BOX, CONE, NOTHING, SPHERE
from gtmsm.config import require
from gtmsm.worlds.scene import Scene

Colour = tuple[int, int, int]

OUTSIDE: Colour = (247, 246, 242)
WALL: Colour = (38, 38, 46)
EARLY, LATE = np.array([68, 1, 84]), np.array([253, 160, 40])
"""A path begins in violet and ends in orange."""

SHARP = 2
"""Maps are drawn this much larger, then shrunk: smooth edges."""


@dataclass(frozen=True)
class FloorMap:
    """A place from above. Drawing on it makes a new map, so one map serves many paths."""

    image: Image.Image
    corner: tuple[float, float]
    """x and y at the bottom left of the picture."""
    scale: float
    """Pixels of `image` per unit."""

    @classmethod
    def of(cls, scene: Scene, place: int, size: int) -> "FloorMap":
        """The empty place, with its objects; a picture of `size` by `size` pixels, north up."""
        require(size >= 16, f"size is {size}; a map needs at least 16 pixels")
        walls = scene.walls[place].cpu().numpy()
        walls = walls[(walls[:, :2] != walls[:, 2:]).any(1)]
        ends = walls.reshape(-1, 2)
        low, high = ends.min(0), ends.max(0)
        side = float((high - low).max()) + 2 * 0.35  # a margin on each side
        middle = (low + high) / 2
        corner = (float(middle[0]) - side / 2, float(middle[1]) - side / 2)
        empty = cls(Image.new("RGB", (SHARP * size, SHARP * size), OUTSIDE), corner, SHARP * size / side)
        return empty._with_floor(scene, place, walls)._with_walls(walls)._with_objects(scene, place)

    def path(self, poses: Float[Tensor, "time D"], width: float = 0.05) -> "FloorMap":
        """A line through the positions, from violet to orange as time goes by."""
        points = [self._pixel(x, y) for x, y in poses[:, :2].tolist()]
        drawn, pen = self._pen()
        thick = max(1, round(width * self.scale))
        for step, (start, end) in enumerate(zip(points, points[1:], strict=False)):
            share = step / max(1, len(points) - 2)
            colour = _rgb(EARLY + share * (LATE - EARLY))
            pen.line([start, end], colour, thick)
            pen.ellipse(_box(end, thick / 2), colour)
        return drawn

    def dots(
        self, places: Float[Tensor, "dots D"], colour: Colour = (255, 255, 255), radius: float = 0.05
    ) -> "FloorMap":
        """A dot with a dark rim at each position, such as memorised places."""
        drawn, pen = self._pen()
        for x, y in places[:, :2].tolist():
            pen.ellipse(_box(self._pixel(x, y), radius * self.scale), colour, WALL, max(1, round(0.015 * self.scale)))
        return drawn

    def agent(self, pose: Float[Tensor, "3"], colour: Colour = (255, 214, 10), radius: float = 0.22) -> "FloorMap":
        """An arrow head that points where the agent looks."""
        x, y, heading = pose.tolist()
        outline = ((0.0, 1.0), (2.5, 0.9), (math.pi, 0.35), (-2.5, 0.9))
        corners = [
            self._pixel(x + radius * r * math.cos(heading + turn), y + radius * r * math.sin(heading + turn))
            for turn, r in outline
        ]
        drawn, pen = self._pen()
        pen.polygon(corners, colour, WALL, max(1, round(0.03 * self.scale)))
        return drawn

    def pixels(self) -> UInt8[np.ndarray, "size size 3"]:
        """The picture."""
        size = self.image.width // SHARP
        return np.array(self.image.resize((size, size), Image.Resampling.BOX))

    def _with_floor(self, scene: Scene, place: int, walls: Float[np.ndarray, "walls 4"]) -> "FloorMap":
        """The mean colour of the floor's texture wherever the walls enclose a pixel."""
        size = self.image.width
        centre = (np.arange(size) + 0.5) / self.scale
        x, y = self.corner[0] + centre, self.corner[1] + centre[::-1]
        shown, tiles = scene.floor_texture[place].unique(return_inverse=True)
        colours = scene.textures[shown].float().mean((1, 2)).round().byte().cpu().numpy()
        tiles = tiles.cpu().numpy()
        west, south = scene.corner[place].tolist()
        column = np.floor((x - west) / scene.tile).astype(int).clip(0, tiles.shape[1] - 1)
        row = np.floor((y - south) / scene.tile).astype(int).clip(0, tiles.shape[0] - 1)
        floor = colours[tiles[row[:, None], column[None]]]
        picture = np.where(_enclosed(x, y, walls)[..., None], floor, np.array(OUTSIDE, np.uint8))
        return replace(self, image=Image.fromarray(picture))

    def _with_walls(self, walls: Float[np.ndarray, "walls 4"]) -> "FloorMap":
        """Dark lines with round ends."""
        drawn, pen = self._pen()
        thick = max(2, round(0.07 * self.scale))
        for x0, y0, x1, y1 in walls.tolist():
            ends = [self._pixel(x0, y0), self._pixel(x1, y1)]
            pen.line(ends, WALL, thick)
            for end in ends:
                pen.ellipse(_box(end, thick / 2), WALL)
        return drawn

    def _with_objects(self, scene: Scene, place: int) -> "FloorMap":
        """Discs and squares in their colours; a sphere has a highlight, a cone its tip."""
        drawn, pen = self._pen()
        rim = max(1, round(0.025 * self.scale))
        solids, kinds = scene.objects[place].tolist(), scene.object_kind[place].tolist()
        colours = scene.object_colour[place].cpu().numpy()
        for (x, y, radius, _, turn), kind, colour in zip(solids, kinds, colours, strict=True):
            if kind == NOTHING:
                continue
            fill, tip = _rgb(255 * colour), _rgb(255 - 0.5 * (255 - 255 * colour))
            if kind == BOX:
                corners = [turn + math.pi / 4 + quarter * math.pi / 2 for quarter in range(4)]
                reach = math.sqrt(2) * radius
                outline = [self._pixel(x + reach * math.cos(a), y + reach * math.sin(a)) for a in corners]
                pen.polygon(outline, fill, WALL, rim)
                continue
            pen.ellipse(_box(self._pixel(x, y), radius * self.scale), fill, WALL, rim)
            if kind == SPHERE:
                pen.ellipse(_box(self._pixel(x - 0.3 * radius, y + 0.3 * radius), 0.3 * radius * self.scale), tip)
            if kind == CONE:
                pen.ellipse(_box(self._pixel(x, y), 0.25 * radius * self.scale), tip, WALL, rim)
        return drawn

    def _pen(self) -> "tuple[FloorMap, ImageDraw.ImageDraw]":
        """A copy of this map, and what draws on it."""
        image = self.image.copy()
        return replace(self, image=image), ImageDraw.Draw(image)

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        """Where a position is in `image`, from its top left."""
        return (x - self.corner[0]) * self.scale, self.image.height - (y - self.corner[1]) * self.scale


def _enclosed(
    x: Float[np.ndarray, "columns"], y: Float[np.ndarray, "rows"], walls: Float[np.ndarray, "walls 4"]
) -> Bool[np.ndarray, "rows columns"]:
    """Whether a ray to the east crosses the walls an odd number of times."""
    x0, y0, x1, y1 = walls.T
    crossed = (y0 > y[:, None]) != (y1 > y[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(crossed, x0 + (y[:, None] - y0) * (x1 - x0) / (y1 - y0), -np.inf)
    inside = np.zeros((len(y), len(x)), bool)
    for at in crossing.T:
        inside ^= at[:, None] > x
    return inside


def _box(centre: tuple[float, float], radius: float) -> tuple[float, float, float, float]:
    """The square around a disc, as Pillow wants it."""
    return centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius


def _rgb(colour: np.ndarray) -> Colour:
    """Three whole numbers."""
    red, green, blue = (int(part) for part in np.clip(np.round(colour), 0, 255))
    return red, green, blue
