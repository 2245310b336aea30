"""Ray-casting on a CPU: a few dozen large tensor operations on as many frames as fit into the cache.

Walls are met once per column of the picture, not once per pixel; floor and ceiling have one depth per row. An object is
followed only along the columns whose rays cross it in plan, and only where no wall stands before it, so what is absent,
hidden or out of view costs next to nothing.

Everything inside is (frame, column, row). Rays of the same offset within their pixels lie together, so that averaging
them adds contiguous pieces.
"""

import functools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32, Int64, UInt8
from torch import Tensor

from gtmsm.kernels.walks.raycast import (
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
    Camera,
    Scene,
)

RAYS = 2**18
"""Rays cast at a time: a megabyte per tensor; fewer, and PyTorch's dispatch would cost more than the rays."""
HIDDEN = 2 * FAR
"""Depth of what is not there."""


def render(
    scene: Scene, camera: Camera, place: Int[Tensor, "n"], pose: Float[Tensor, "n 3"]
) -> UInt8[Tensor, "n 3 pixels pixels"]:
    """`by_rays` in float32, faster: frames only."""
    frames = torch.empty(len(pose), 3, camera.pixels, camera.pixels, dtype=torch.uint8)
    at_once = max(1, RAYS // camera.rays**2)
    parts = (part.split(at_once) for part in (frames, place.long(), pose.float()))
    for frame, where, stand in zip(*parts, strict=True):
        if len(frame):
            _render(scene, camera, where, stand, frame)
    return frames


class _Fan(NamedTuple):
    """The rays of a camera: what depends on neither place nor pose."""

    across: Float[Tensor, "column"]
    slope: Float[Tensor, "row"]
    plane_depth: Float[Tensor, "row"]
    plane_light: Float[Tensor, "row"]
    plane_side: Int32[Tensor, "row"]
    """Texels along a side, in the level of detail of the floor or ceiling there."""
    plane_level: Int32[Tensor, "row"]
    """Where that level begins in the pyramid."""
    is_floor: Int64[Tensor, "row"]


@functools.lru_cache(maxsize=8)
def _fan(camera: Camera, side: int) -> _Fan:
    """In float64 first: a row whose level of detail is a close call must fall as it does for the twin."""
    order = torch.arange(camera.rays).view(camera.pixels, camera.antialias).T.flatten()
    across = ((2 * order.double() + 1) / camera.rays - 1) * camera.edge
    slope = -across
    height = torch.where(slope < 0, camera.eye, 1 - camera.eye).double()
    depth = height / slope.abs().maximum(height / FAR)
    level_side = _level_side(camera.spread * depth * (depth / height).clamp(min=1), side)
    return _Fan(
        across.float(), slope.float(), depth.float(), (1 / (1 + DIM * depth)).float(),
        level_side, _level_start(level_side, side), (slope < 0).long(),
    )  # fmt: skip


def _level_side(covered: Float[Tensor, "*any"], side: int) -> Int32[Tensor, "*any"]:
    """Side of the level whose texels are about as large as what a ray covers."""
    level = (covered * side).clamp(1, side).log2().round().int()
    return torch.full_like(level, side) >> level


def _level_start(level_side: Int32[Tensor, "*any"], side: int) -> Int32[Tensor, "*any"]:
    """Texels of all finer levels."""
    return (side**2 - level_side**2) * 4 // 3


def _render(
    scene: Scene,
    camera: Camera,
    place: Int64[Tensor, "f"],
    pose: Float[Tensor, "f 3"],
    frames: UInt8[Tensor, "f 3 pixels pixels"],
) -> None:
    """Fill in the frames of one cacheful."""
    fan = _fan(camera, scene.textures.shape[1])
    x, y, heading = pose.unbind(1)
    c, s = heading.cos()[:, None], heading.sin()[:, None]
    dx, dy = c + fan.across * s, s - fan.across * c
    wall = _walls(scene, camera, place, x, y, dx, dy)
    is_wall = wall.depth[..., None] <= fan.plane_depth
    texel = torch.where(is_wall, _wall_texel(camera, fan, wall), _plane_texel(scene, fan, place, x, y, dx, dy))
    picture = scene.pyramid.view(-1).index_select(0, texel.view(-1)).view(texel.shape)
    light = torch.where(is_wall, wall.light[..., None], fan.plane_light)
    if scene.objects.shape[1]:
        depth = torch.minimum(wall.depth[..., None], fan.plane_depth)
        _draw_objects(scene, camera, fan, place, x, y, dx, dy, wall.depth, depth, picture, light)
    _develop(picture, light, camera, frames)


def _develop(
    picture: Int32[Tensor, "f column row"],
    light: Float[Tensor, "f column row"],
    camera: Camera,
    frames: UInt8[Tensor, "f 3 pixels pixels"],
) -> None:
    """Colours times light, averaged over the rays of a pixel."""
    a = range(camera.antialias)
    for channel in range(3):
        value = (picture >> 8 * channel).bitwise_and_(255).float().mul_(light)
        rays = value.view(-1, len(a), camera.pixels, len(a), camera.pixels)
        total = functools.reduce(Tensor.add_, (rays[:, i, :, j] for i in a for j in a))
        frames[:, channel] = total.mul_(1 / len(a) ** 2).add_(0.5).transpose(1, 2)


# ---- walls, floor, ceiling


class _Walls(NamedTuple):
    """What every column of rays meets first."""

    depth: Float[Tensor, "f column"]
    light: Float[Tensor, "f column"]
    level_side: Int32[Tensor, "f column"]
    texel: Int32[Tensor, "f column"]
    """In the pyramid, at the top of the wall."""


def _walls(
    scene: Scene,
    camera: Camera,
    place: Int64[Tensor, "f"],
    x: Float[Tensor, "f"],
    y: Float[Tensor, "f"],
    dx: Float[Tensor, "f column"],
    dy: Float[Tensor, "f column"],
) -> _Walls:
    """The nearest wall of each column; a division by zero gives a crossing that is refused, here as in the twin."""
    walls, paper = scene.walls.float()[place], scene.wall_texture[place]
    if not walls.shape[1]:  # one of no length, so that there is a nearest
        walls, paper = walls.new_zeros(len(place), 1, 4), paper.new_zeros(len(place), 1)
    ax, ay = walls[..., 0] - x[:, None], walls[..., 1] - y[:, None]
    ex, ey = walls[..., 2] - walls[..., 0], walls[..., 3] - walls[..., 1]
    dx, dy = dx[:, None], dy[:, None]
    per_across = (dx * ey[..., None]).sub_(dy * ex[..., None]).reciprocal_()
    t = (ax * ey - ay * ex)[..., None] * per_across
    k = (dy * ax[..., None]).sub_(dx * ay[..., None]).mul_(per_across)
    t.masked_fill_(~((t > NEAR) & ((k - 0.5).abs_() <= 0.5 + SLACK)), HIDDEN)
    depth, nearest = t.min(1)
    found = depth < HIDDEN
    length = torch.hypot(ex, ey)
    light = WALL_LIGHT[0] + WALL_LIGHT[1] * ex.abs() / length
    length, light = length.gather(1, nearest), light.gather(1, nearest)
    steep = per_across.gather(1, nearest[:, None])[:, 0].abs() * length
    u = k.gather(1, nearest[:, None])[:, 0] * length
    steep, u = torch.where(found, steep, 1.0), torch.where(found, u, 0.0)
    side = scene.textures.shape[1]
    level_side = _level_side(camera.spread * depth * steep.clamp(min=1), side)
    column = (u * level_side).floor().int() & level_side - 1
    texture = paper.gather(1, nearest).int() * scene.pyramid.shape[1]
    return _Walls(depth, light / (1 + DIM * depth), level_side, texture + _level_start(level_side, side) + column)


def _wall_texel(camera: Camera, fan: _Fan, wall: _Walls) -> Int32[Tensor, "f column row"]:
    """Index into the pyramid, were everything wall."""
    side = wall.level_side[..., None]
    down = (-wall.depth[..., None] * fan.slope).add_(1 - camera.eye).mul_(side).int()
    return down.clamp_(min=0).minimum(side - 1).mul_(side).add_(wall.texel[..., None])


def _plane_texel(
    scene: Scene,
    fan: _Fan,
    place: Int64[Tensor, "f"],
    x: Float[Tensor, "f"],
    y: Float[Tensor, "f"],
    dx: Float[Tensor, "f column"],
    dy: Float[Tensor, "f column"],
) -> Int32[Tensor, "f column row"]:
    """Index into the pyramid, were everything floor or ceiling."""
    side, last = fan.plane_side, fan.plane_side - 1
    x, y, dx, dy = x[:, None, None], y[:, None, None], dx[..., None], dy[..., None]
    reach = fan.plane_depth * side
    column = torch.addcmul(x * side, dx, reach).floor_().int().bitwise_and_(last)
    row = torch.addcmul(-y * side, dy, -reach).floor_().int().bitwise_and_(last)
    within = row.mul_(side).add_(column).add_(fan.plane_level)
    _, rows, columns = scene.floor_texture.shape
    tiles = torch.stack([scene.ceiling_texture, scene.floor_texture], 1)[place].int() * scene.pyramid.shape[1]
    if rows == columns == 1:
        return within.add_(tiles.view(-1, 1, 2)[..., fan.is_floor])
    corner = scene.corner.float()[place, :, None, None]
    far = fan.plane_depth / scene.tile
    column = torch.addcmul((x - corner[:, 0]) / scene.tile, dx, far).clamp_(0, columns - 1).int()
    row = torch.addcmul((y - corner[:, 1]) / scene.tile, dy, far).clamp_(0, rows - 1).int()
    first = (torch.arange(len(place))[:, None, None] * 2 + fan.is_floor) * (rows * columns)
    tile = row.mul_(columns).add_(column).add_(first.int())
    return within.add_(tiles.view(-1).index_select(0, tile.view(-1)).view(tile.shape))


# ---- objects


def _draw_objects(
    scene: Scene,
    camera: Camera,
    fan: _Fan,
    place: Int64[Tensor, "f"],
    x: Float[Tensor, "f"],
    y: Float[Tensor, "f"],
    dx: Float[Tensor, "f column"],
    dy: Float[Tensor, "f column"],
    wall_depth: Float[Tensor, "f column"],
    depth: Float[Tensor, "f column row"],
    picture: Int32[Tensor, "f column row"],
    light: Float[Tensor, "f column row"],
) -> None:
    """Paint objects over what is farther away than they are."""
    kind, objects = scene.object_kind[place], scene.objects.float()[place]
    x, y = objects[..., 0] - x[:, None], objects[..., 1] - y[:, None]
    radius = objects[..., 2]
    reach2 = torch.where(kind == BOX, 2.0, 1.0) * radius**2
    away2 = x**2 + y**2 - reach2
    along = dx[:, None] * x[..., None] + dy[:, None] * y[..., None]
    length2 = 1 + fan.across**2
    left = along**2 - length2 * away2[..., None]
    # in plan the ray crosses the circle around the object, ahead of the eye and before the wall
    root = left.clamp(min=0).sqrt()
    met = (left > 0) & (along + root > 0) & (along - root < length2 * wall_depth[:, None])
    met &= (kind != NOTHING)[..., None]
    colour = (scene.object_colour.float() * 255).round().int()[place]
    paint = colour[..., 0] | colour[..., 1] << 8 | colour[..., 2] << 16
    is_box = (kind == BOX)[..., None]
    for crossed, follow in ((met & ~is_box, _round), (met & is_box, _box)):
        frame, thing, column = crossed.nonzero(as_tuple=True)
        if not len(frame):
            continue
        solid = _Solids(kind[frame, thing], x[frame, thing], y[frame, thing], *objects[frame, thing, 2:].unbind(1))
        t, cosine = follow(solid, camera, fan, dx[frame, column], dy[frame, column], length2[column])
        at = (frame * camera.rays + column)[:, None] * camera.rays + torch.arange(camera.rays)
        flat = depth.view(-1)
        flat.scatter_reduce_(0, at.view(-1), t.view(-1), "amin")
        ahead = (t == flat[at]).nonzero(as_tuple=True)
        shown, t = at[ahead], t[ahead]
        picture.view(-1)[shown] = paint[frame, thing][ahead[0]]
        light.view(-1)[shown] = (AMBIENT + DIRECT * cosine[ahead]) / (1 + DIM * t)


class _Solids(NamedTuple):
    """Objects, one per column of rays that may cross them; x and y from where the eye stands."""

    kind: Int64[Tensor, "m"]
    x: Float[Tensor, "m"]
    y: Float[Tensor, "m"]
    radius: Float[Tensor, "m"]
    height: Float[Tensor, "m"]
    turn: Float[Tensor, "m"]


Hits = tuple[Float[Tensor, "m row"], Float[Tensor, "m row"]]
"""Depth, and the cosine between the surface's normal and the direction of the lamp."""


def _round(
    solid: _Solids,
    camera: Camera,
    fan: _Fan,
    dx: Float[Tensor, "m"],
    dy: Float[Tensor, "m"],
    length2: Float[Tensor, "m"],
) -> Hits:
    """Columns, spheres and cones: see `quadric`."""
    is_sphere, is_cone = solid.kind == SPHERE, solid.kind == CONE
    bend = torch.where(is_sphere, 1.0, torch.where(is_cone, -((solid.radius / solid.height) ** 2), 0.0))
    above = torch.where(is_sphere, solid.radius, torch.where(is_cone, solid.height, camera.eye)) - camera.eye
    size = torch.where(is_cone, 0.0, solid.radius**2)
    tall = torch.where(is_sphere, 2 * solid.radius, solid.height)[:, None]
    slope = fan.slope
    a = length2[:, None] + bend[:, None] * slope**2
    b = (dx * solid.x + dy * solid.y)[:, None] + (bend * above)[:, None] * slope
    c = (solid.x**2 + solid.y**2 + bend * above**2 - size)[:, None]
    outer = b + (b**2 - a * c).sqrt()  # nan where the ray misses: every comparison below is then false
    t = c / outer
    z = camera.eye + t * slope
    hit = (t > NEAR) & (z >= 0) & (z <= tall)
    normal_x, normal_y = t * dx[:, None] - solid.x[:, None], t * dy[:, None] - solid.y[:, None]
    normal_z = bend[:, None] * (t * slope - above[:, None])
    cosine = normal_x * LAMP[0] + normal_y * LAMP[1] + normal_z * LAMP[2]
    cosine = cosine * (normal_x**2 + normal_y**2 + normal_z**2).clamp(min=1e-18).rsqrt()
    flat = (solid.kind == COLUMN)[:, None]
    return _with_tops(t, hit, cosine, t, outer / a, flat, solid.height, camera, slope)


def _box(
    solid: _Solids,
    camera: Camera,
    fan: _Fan,
    dx: Float[Tensor, "m"],
    dy: Float[Tensor, "m"],
    length2: Float[Tensor, "m"],
) -> Hits:
    """Square prisms: inside one, a ray is between two pairs of parallel sides."""
    c, s = solid.turn.cos(), solid.turn.sin()
    sides = torch.stack([torch.stack([c, s]), torch.stack([-s, c])])  # two normals
    along = sides[:, 0] * dx + sides[:, 1] * dy
    along = torch.where(along == 0, 1e-9, along)
    away = sides[:, 0] * solid.x + sides[:, 1] * solid.y
    half = torch.copysign(solid.radius, along)
    near, which = ((away - half) / along).max(0)
    far = ((away + half) / along).amin(0)
    near = torch.where(near > far, torch.nan, near)
    lamp = -along.sign() * (sides[:, 0] * LAMP[0] + sides[:, 1] * LAMP[1])
    cosine = lamp.gather(0, which[None])[0]
    z = camera.eye + near[:, None] * fan.slope
    hit = (near > NEAR)[:, None] & (z >= 0) & (z <= solid.height[:, None])
    t = near[:, None].expand_as(z)
    flat = torch.ones(1, 1, dtype=torch.bool)
    return _with_tops(t, hit, cosine[:, None].expand_as(z), t, far[:, None], flat, solid.height, camera, fan.slope)


def _with_tops(
    t: Float[Tensor, "m row"],
    hit: Bool[Tensor, "m row"],
    cosine: Float[Tensor, "m row"],
    near: Float[Tensor, "m row"],
    far: Float[Tensor, "m _row"],
    flat: Bool[Tensor, "_m _one"],
    height: Float[Tensor, "m"],
    camera: Camera,
    slope: Float[Tensor, "row"],
) -> Hits:
    """Hits of the sides, and of the flat tops of what is lower than the eye."""
    top = (height - camera.eye)[:, None] / slope
    on_top = flat & (slope < 0) & (top > NEAR) & (near <= top) & (top <= far) & ~hit
    depth = torch.where(on_top, top, torch.where(hit, t, HIDDEN))
    return depth, torch.where(on_top, LAMP[2], cosine)
