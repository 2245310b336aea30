"""Ray-casting as one would first write it: one ray after the other, in float64."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

from gtmsm.camera import (
    AMBIENT,
    BOX,
    COLUMN,
    CONE,
    DIM,
    DIRECT,
    FAR,
    LAMP,
    NEAR,
    NOTHING,
    SLACK,
    SPHERE,
    WALL_LIGHT,
)
from gtmsm.worlds.scene import Camera, Scene

Colour = tuple[float, float, float]


def ray_by_ray(
    scene: Scene, camera: Camera, place: Int[Tensor, "n"], pose: Float[Tensor, "n 3"]
) -> tuple[UInt8[Tensor, "n 3 pixels pixels"], Float64[Tensor, "n pixels pixels"]]:
    """Frames, and the depth of the nearest surface at every pixel, on the CPU."""
    across = [((2 * i + 1) / camera.rays - 1) * camera.edge for i in range(camera.rays)]  # from left to right
    seen = []
    for where, (x, y, heading) in zip(place.tolist(), pose.double().tolist(), strict=True):
        eye = _Eye(scene, camera, where, x, y)
        c, s = math.cos(heading), math.sin(heading)
        seen.append([[eye.see(Ray(c + u * s, s - u * c, -v)) for u in across] for v in across])
    shape = (len(seen), camera.pixels, camera.antialias, camera.pixels, camera.antialias, 4)
    pixels = torch.tensor(seen, dtype=torch.float64).reshape(shape).mean((2, 4))
    return (pixels[..., 1:] + 0.5).byte().permute(0, 3, 1, 2).contiguous(), pixels[..., 0]


class Ray(NamedTuple):
    """A direction whose component along forward is 1."""

    x: float
    y: float
    slope: float


class Quadric(NamedTuple):
    """|p - centre|^2 + bend (z - middle)^2 = size."""

    bend: float
    middle: float
    size: float


def quadric(kind: int, radius: float, height: float) -> Quadric:
    """The surface of a round object; a column's top is not part of it."""
    if kind == SPHERE:
        return Quadric(1.0, radius, radius**2)
    if kind == CONE:
        return Quadric(-((radius / height) ** 2), height, 0.0)
    return Quadric(0.0, 0.0, radius**2)


class _Eye:
    """A camera at x, y."""

    def __init__(self, scene: Scene, camera: Camera, place: int, x: float, y: float) -> None:
        self.scene, self.camera, self.place, self.x, self.y = scene, camera, place, x, y
        self.side = scene.textures.shape[1]
        self.spread = 2 * camera.edge / camera.rays
        self.walls = list(zip(scene.walls[place].double().tolist(), scene.wall_texture[place].tolist(), strict=True))
        self.corner = scene.corner[place].tolist()
        parts = (scene.objects[place].double(), scene.object_kind[place], scene.object_colour[place].double())
        self.objects = list(zip(*(part.tolist() for part in parts), strict=True))

    def see(self, ray: Ray) -> tuple[float, float, float, float]:
        """Depth and colour of the nearest surface."""
        depth, colour = min((*self._walls(ray), self._plane(ray), *self._objects(ray)), key=lambda hit: hit[0])
        red, green, blue = (part / (1 + DIM * depth) for part in colour)
        return depth, red, green, blue

    def _walls(self, ray: Ray) -> Iterator[tuple[float, Colour]]:
        for (x0, y0, x1, y1), texture in self.walls:
            ax, ay, ex, ey = x0 - self.x, y0 - self.y, x1 - x0, y1 - y0
            across = ray.x * ey - ray.y * ex
            if across == 0:  # along the wall, or a wall of no length
                continue
            t, k = (ax * ey - ay * ex) / across, (ax * ray.y - ay * ray.x) / across
            z = self.camera.eye + t * ray.slope
            if t > NEAR and -SLACK <= k <= 1 + SLACK and 0 <= z <= 1:
                length = math.hypot(ex, ey)
                covered = self.spread * t * max(1.0, length / abs(across))
                light = WALL_LIGHT[0] + WALL_LIGHT[1] * abs(ex) / length
                yield t, self._texel(texture, k * length, min(1 - z, 1 - 1e-9), covered, light)

    def _plane(self, ray: Ray) -> tuple[float, Colour]:
        """Floor, or else the ceiling."""
        down = ray.slope < 0
        height = self.camera.eye if down else 1 - self.camera.eye
        t = height / max(abs(ray.slope), height / FAR)
        x, y = self.x + t * ray.x, self.y + t * ray.y
        textures = (self.scene.floor_texture if down else self.scene.ceiling_texture)[self.place]
        row, column = (
            min(max(math.floor((at - start) / self.scene.tile), 0), count - 1)
            for at, start, count in zip((y, x), self.corner[::-1], textures.shape, strict=True)
        )
        covered = self.spread * t * max(1.0, t / height)
        return t, self._texel(int(textures[row, column]), x, -y, covered, 1.0)

    def _texel(self, texture: int, u: float, v: float, covered: float, light: float) -> Colour:
        """The texel there, from the level whose texels are about as large as what the ray covers."""
        level = round(math.log2(min(max(covered * self.side, 1), self.side)))
        side = self.side >> level
        before = 4 * (self.side**2 - side**2) // 3  # texels of the finer levels
        texel = int(
            self.scene.pyramid[texture, before + math.floor(v * side) % side * side + math.floor(u * side) % side]
        )
        return (texel & 255) * light, (texel >> 8 & 255) * light, (texel >> 16 & 255) * light

    def _objects(self, ray: Ray) -> Iterator[tuple[float, Colour]]:
        for (x, y, radius, height, turn), kind, colour in self.objects:
            if kind == NOTHING:
                continue
            x, y = x - self.x, y - self.y
            tall = 2 * radius if kind == SPHERE else height
            if kind == BOX:
                near, far, normal = _box(ray, x, y, radius, turn)
            else:
                near, far, normal = _round(ray, self.camera.eye, x, y, quadric(kind, radius, height))
            if near > NEAR and 0 <= self.camera.eye + near * ray.slope <= tall:
                yield near, _lit(colour, normal)
            if kind in (COLUMN, BOX) and ray.slope < 0:
                top = (height - self.camera.eye) / ray.slope
                if top > NEAR and near <= top <= far:
                    yield top, _lit(colour, (0.0, 0.0, 1.0))


def _round(ray: Ray, eye: float, x: float, y: float, surface: Quadric) -> tuple[float, float, Colour]:
    """Where a ray enters a round object and leaves it, and the normal where it enters; nan where it misses."""
    above = surface.middle - eye
    a = ray.x**2 + ray.y**2 + surface.bend * ray.slope**2
    b = ray.x * x + ray.y * y + surface.bend * ray.slope * above
    c = x**2 + y**2 + surface.bend * above**2 - surface.size
    root = math.sqrt(b**2 - a * c) if b**2 >= a * c else math.nan
    if b + root == 0:
        return math.nan, math.nan, (0.0, 0.0, 0.0)
    t = c / (b + root)  # (b - root) / a, without its cancellation
    return t, (b + root) / a, (t * ray.x - x, t * ray.y - y, surface.bend * (t * ray.slope - above))


def _box(ray: Ray, x: float, y: float, half: float, turn: float) -> tuple[float, float, Colour]:
    """The same for a square prism: inside it a ray is between two pairs of parallel sides."""
    c, s = math.cos(turn), math.sin(turn)
    enters = []
    leaves = []
    for side_x, side_y in ((c, s), (-s, c)):
        along, away = ray.x * side_x + ray.y * side_y, x * side_x + y * side_y
        along = along or 1e-9
        enters.append(((away - math.copysign(half, along)) / along, side_x, side_y, along))
        leaves.append((away + math.copysign(half, along)) / along)
    near, side_x, side_y, along = max(enters)
    far = min(leaves)
    if near > far:
        return math.nan, math.nan, (0.0, 0.0, 0.0)
    back = -math.copysign(1.0, along)
    return near, far, (back * side_x, back * side_y, 0.0)


def _lit(colour: list[float], normal: Colour) -> Colour:
    """An object's colour under the lamp, in [0, 255]."""
    cosine = sum(n * lamp for n, lamp in zip(normal, LAMP, strict=True)) / max(math.hypot(*normal), 1e-9)
    red, green, blue = (round(255 * part) * (AMBIENT + DIRECT * cosine) for part in colour)
    return red, green, blue
