"""Batched ray-casting: frames of a camera among walls, floors, ceilings and solid objects.

An H200 draws 16 million frames of rooms a second with the Triton implementation, 2,000 times as many as this function.

A ray starts at the eye and runs along (forward + u right, slope), so that its parameter t is the depth along forward.
It shows the nearest surface, dimmed with the depth. Walls are intersected once per column of the picture, since
all walls are upright; floor and ceiling have one depth per row. An object is intersected only with the columns whose
rays cross it in plan, and only where no wall stands before it.

Round objects share one equation, |p - centre|^2 + bend (z - middle)^2 = size, cut off at the floor and at the object's
height: bend is 0 for columns, 1 for spheres, and minus the squared steepness for cones.

All tensors inside are (frame, column, row). Rays of the same offset within their pixels lie together, so that
averaging over a pixel adds contiguous pieces.
"""

import functools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int32, Int64, UInt8
from torch import Tensor

from gtmsm import camera
from gtmsm.camera import Eyes, Fan, camera_rays, level_side_for, level_start
from gtmsm.kernels.operator import operator
from gtmsm.kernels.walks.raycast_objects import draw_objects

RAYS = 2**18
"""Rays cast at a time: a megabyte per tensor. With fewer, PyTorch's dispatch would cost more than the rays."""


@operator(cuda="gtmsm.kernels.walks.raycast_triton")
def raycast(
    walls: Float[Tensor, "places walls 4"],
    wall_texture: Int64[Tensor, "places walls"],
    floor_texture: Int64[Tensor, "places rows columns"],
    ceiling_texture: Int64[Tensor, "places rows columns"],
    corner: Float[Tensor, "places 2"],
    tile: float,
    objects: Float[Tensor, "places objects 5"],
    object_kind: Int64[Tensor, "places objects"],
    object_colour: Float[Tensor, "places objects 3"],
    pyramid: Int32[Tensor, "textures texels"],
    place: Int[Tensor, "n"],
    pose: Float[Tensor, "n 3"],
    pixels: int,
    antialias: int,
    edge: float,
    eye: float,
) -> UInt8[Tensor, "n 3 pixels pixels"]:
    """The frame seen in `place` from each pose (x, y, heading in radians).

    `gtmsm.worlds.scene` describes the tensors of a place. `edge` is the tangent of half the field of view, `eye` the
    height of the camera, `antialias` the number of rays per pixel and axis.
    """
    fan = camera_rays(pixels, antialias, edge, eye, texture_side(pyramid), walls.device)
    frames = torch.empty(len(pose), 3, pixels, pixels, dtype=torch.uint8, device=walls.device)
    at_once = max(1, RAYS // len(fan.across) ** 2)
    for first in range(0, len(pose), at_once):
        part = slice(first, first + at_once)
        there, (x, y, heading) = place[part].long(), pose[part].float().unbind(1)
        c, s = heading.cos()[:, None], heading.sin()[:, None]
        eyes = Eyes(x, y, c + fan.across * s, s - fan.across * c)
        wall = nearest_walls(fan, eyes, walls[there].float(), wall_texture[there], pyramid.shape[1])
        tiles = torch.stack([ceiling_texture[there], floor_texture[there]], 1).int() * pyramid.shape[1]
        is_wall = wall.depth[..., None] <= fan.plane_depth
        planes = _plane_texel(fan, eyes, tiles, corner[there].float(), tile)
        texel = torch.where(is_wall, _wall_texel(fan, wall), planes)
        colour = pyramid.view(-1).index_select(0, texel.view(-1)).view(texel.shape)
        light = torch.where(is_wall, wall.light[..., None], fan.plane_light)
        if objects.shape[1]:
            depth = torch.minimum(wall.depth[..., None], fan.plane_depth)
            red, green, blue = (object_colour[there].float() * 255).round().int().unbind(-1)
            paint = red | green << 8 | blue << 16
            draw_objects(fan, eyes, objects[there].float(), object_kind[there], paint, wall.depth, depth, colour, light)
        _develop(colour, light, antialias, frames[part])
    return frames


def texture_side(pyramid: Int32[Tensor, "textures texels"]) -> int:
    """Texels along a side of the finest level: a pyramid has (4 side^2 - 1) / 3 texels."""
    return math.isqrt((3 * pyramid.shape[1] + 1) // 4)


def _develop(
    colour: Int32[Tensor, "f column row"],
    light: Float[Tensor, "f column row"],
    antialias: int,
    frames: UInt8[Tensor, "f 3 pixels pixels"],
) -> None:
    """Write colours times light, averaged over the rays of a pixel, to `frames`."""
    a, pixels = range(antialias), frames.shape[-1]
    for channel in range(3):
        value = (colour >> 8 * channel).bitwise_and_(255).float().mul_(light)
        rays = value.view(-1, antialias, pixels, antialias, pixels)
        total = functools.reduce(Tensor.add_, (rays[:, i, :, j] for i in a for j in a))
        frames[:, channel] = total.mul_(1 / antialias**2).add_(0.5).transpose(1, 2)


class _Walls(NamedTuple):
    """The nearest wall of every column of rays."""

    depth: Float[Tensor, "f column"]
    light: Float[Tensor, "f column"]
    level_side: Int32[Tensor, "f column"]
    texel: Int32[Tensor, "f column"]
    """Index into the pyramid of the texel at the top of the wall."""


def nearest_walls(
    fan: Fan, eyes: Eyes, walls: Float[Tensor, "f walls 4"], paper: Int64[Tensor, "f walls"], texels: int
) -> _Walls:
    """Intersect all walls, keep the nearest; a division by zero gives an intersection that is rejected."""
    if not walls.shape[1]:  # a wall of no length, so that there is a nearest one
        walls, paper = walls.new_zeros(len(walls), 1, 4), paper.new_zeros(len(walls), 1)
    ax, ay = walls[..., 0] - eyes.x[:, None], walls[..., 1] - eyes.y[:, None]
    ex, ey = walls[..., 2] - walls[..., 0], walls[..., 3] - walls[..., 1]
    dx, dy = eyes.dx[:, None], eyes.dy[:, None]
    per_across = (dx * ey[..., None]).sub_(dy * ex[..., None]).reciprocal_()
    t = (ax * ey - ay * ex)[..., None] * per_across
    k = (dy * ax[..., None]).sub_(dx * ay[..., None]).mul_(per_across)
    t.masked_fill_(~((t > camera.NEAR) & ((k - 0.5).abs_() <= 0.5 + camera.SLACK)), camera.HIDDEN)
    depth, nearest = t.min(1)
    found = depth < camera.HIDDEN
    length = torch.hypot(ex, ey)
    light = camera.WALL_LIGHT[0] + camera.WALL_LIGHT[1] * ex.abs() / length
    length, light = length.gather(1, nearest), light.gather(1, nearest)
    steep = per_across.gather(1, nearest[:, None])[:, 0].abs() * length
    u = k.gather(1, nearest[:, None])[:, 0] * length
    steep, u = torch.where(found, steep, 1.0), torch.where(found, u, 0.0)
    level_side = level_side_for(fan.spread * depth * steep.clamp(min=1), fan.side)
    column = (u * level_side).floor().int() & level_side - 1
    first = paper.gather(1, nearest).int() * texels + level_start(level_side, fan.side)
    return _Walls(depth, light / (1 + camera.DIM * depth), level_side, first + column)


def _wall_texel(fan: Fan, wall: _Walls) -> Int32[Tensor, "f column row"]:
    """Index into the pyramid, as if every ray met its wall."""
    side = wall.level_side[..., None]
    down = (-wall.depth[..., None] * fan.slope).add_(1 - fan.eye).mul_(side).int()
    return down.clamp_(min=0).minimum(side - 1).mul_(side).add_(wall.texel[..., None])


def _plane_texel(
    fan: Fan, eyes: Eyes, tiles: Int32[Tensor, "f 2 rows columns"], corner: Float[Tensor, "f 2"], tile: float
) -> Int32[Tensor, "f column row"]:
    """Index into the pyramid, as if every ray met the floor or the ceiling."""
    side, last = fan.plane_side, fan.plane_side - 1
    x, y, dx, dy = eyes.x[:, None, None], eyes.y[:, None, None], eyes.dx[..., None], eyes.dy[..., None]
    reach = fan.plane_depth * side
    column = torch.addcmul(x * side, dx, reach).floor_().int().bitwise_and_(last)
    row = torch.addcmul(-y * side, dy, -reach).floor_().int().bitwise_and_(last)
    within = row.mul_(side).add_(column).add_(fan.plane_level)
    frames, _, rows, columns = tiles.shape
    if rows == columns == 1:
        return within.add_(tiles.view(-1, 1, 2)[..., fan.is_floor])
    far, corner = fan.plane_depth / tile, corner[..., None, None]
    column = torch.addcmul((x - corner[:, 0]) / tile, dx, far).clamp_(0, columns - 1).int()
    row = torch.addcmul((y - corner[:, 1]) / tile, dy, far).clamp_(0, rows - 1).int()
    first = (torch.arange(frames, device=x.device)[:, None, None] * 2 + fan.is_floor) * (rows * columns)
    which = row.mul_(columns).add_(column).add_(first.int())
    return within.add_(tiles.view(-1).index_select(0, which.view(-1)).view(which.shape))
