"""Ray-casting on a GPU: one Triton program draws one frame (or some rows of a large one), all of it in registers.

The rays of a pixel are cast one after the other and added up, so anti-aliasing needs no memory. Walls are intersected
once per column. An object is intersected only if it may be in view, which is decided for the program as a whole.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm import camera as definition
from gtmsm.kernels.operator import Fast
from gtmsm.kernels.walks.raycast import texture_side

NEAR, FAR, HIDDEN = (tl.constexpr(depth) for depth in (definition.NEAR, definition.FAR, definition.HIDDEN))
SLACK, DIM = tl.constexpr(definition.SLACK), tl.constexpr(definition.DIM)
NORTHWARD, EASTWARD = (tl.constexpr(light) for light in definition.WALL_LIGHT)
LAMP_X, LAMP_Y, LAMP_Z = (tl.constexpr(part) for part in definition.LAMP)
AMBIENT, DIRECT = tl.constexpr(definition.AMBIENT), tl.constexpr(definition.DIRECT)
NOTHING, COLUMN, SPHERE, CONE, BOX = (tl.constexpr(kind) for kind in range(5))
TURN = tl.constexpr(2 * math.pi)
DIAGONAL = tl.constexpr(math.sqrt(2))

PIXELS_AT_ONCE = 512
"""Pixels per program of four warps: four in each thread, few enough for its registers."""


@triton.jit
def _level_side(covered, SIDE: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Side of the level whose texels are about as large as what a ray covers."""
    texels = tl.minimum(tl.maximum(covered * SIDE, 1.0), SIDE * 1.0)
    level = tl.floor(tl.log2(texels) + 0.5).to(tl.int32)
    return (level * 0 + SIDE) >> level


@triton.jit
def _round(kind, eye, x, y, radius, height, dx, dy, slope):  # pragma: no cover - runs on the GPU
    """Depth where rays enter and leave a column, sphere or cone, and the cosine of the lamp where they enter."""
    is_sphere = kind == SPHERE
    is_cone = kind == CONE
    steepness = radius / height
    bend = tl.where(is_sphere, 1.0, tl.where(is_cone, -steepness * steepness, 0.0))
    above = tl.where(is_sphere, radius, tl.where(is_cone, height, eye)) - eye
    size = tl.where(is_cone, 0.0, radius * radius)
    a = dx * dx + dy * dy + bend * (slope * slope)
    b = dx * x + dy * y + bend * above * slope
    c = x * x + y * y + bend * above * above - size
    left = b * b - a * c
    outer = b + tl.sqrt(tl.maximum(left, 0.0))
    near = tl.where(left >= 0.0, c / outer, HIDDEN)
    far = tl.where(left >= 0.0, outer / a, -HIDDEN)
    normal_x = near * dx - x
    normal_y = near * dy - y
    normal_z = bend * (near * slope - above)
    length = tl.sqrt(tl.maximum(normal_x * normal_x + normal_y * normal_y + normal_z * normal_z, 1e-18))
    return near, far, (normal_x * LAMP_X + normal_y * LAMP_Y + normal_z * LAMP_Z) / length


@triton.jit
def _box(turn, x, y, half, dx, dy, slope):  # pragma: no cover - runs on the GPU
    """The same for a square prism; `slope` only lends its shape."""
    c = tl.cos(turn)
    s = tl.sin(turn)
    along_1 = dx * c + dy * s
    along_2 = dy * c - dx * s
    along_1 = tl.where(along_1 == 0.0, 1e-9, along_1)
    along_2 = tl.where(along_2 == 0.0, 1e-9, along_2)
    back_1 = tl.where(along_1 < 0.0, 1.0, -1.0)
    back_2 = tl.where(along_2 < 0.0, 1.0, -1.0)
    away_1 = x * c + y * s
    away_2 = y * c - x * s
    near_1 = (away_1 + half * back_1) / along_1
    near_2 = (away_2 + half * back_2) / along_2
    near = tl.maximum(near_1, near_2)
    far = tl.minimum((away_1 - half * back_1) / along_1, (away_2 - half * back_2) / along_2)
    cosine = tl.where(near_1 >= near_2, back_1 * (c * LAMP_X + s * LAMP_Y), back_2 * (c * LAMP_Y - s * LAMP_X))
    crossed = near <= far
    near = tl.where(crossed, near, HIDDEN)
    far = tl.where(crossed, far, -HIDDEN)
    return near + 0.0 * slope, far + 0.0 * slope, cosine + 0.0 * slope


@triton.jit
def _render(
    walls, wall_texture, floor, ceiling, corner, objects, object_kind, object_colour, pyramid, place, pose, frames,
    wall_count, object_count, tile_rows, tile_columns, tile, texels, edge, spread, widest, eye, antialias,
    SIDE: tl.constexpr, PIXELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    frame = tl.program_id(0)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    where = tl.load(place + frame).to(tl.int32)
    x = tl.load(pose + 3 * frame)
    y = tl.load(pose + 3 * frame + 1)
    heading = tl.load(pose + 3 * frame + 2)
    heading -= tl.floor(heading / TURN + 0.5) * TURN  # sines are exact for small angles only
    forward_x = tl.cos(heading)
    forward_y = tl.sin(heading)
    corner_x = tl.load(corner + 2 * where)
    corner_y = tl.load(corner + 2 * where + 1)
    red = tl.zeros([ROWS, COLUMNS], tl.float32)
    green = tl.zeros([ROWS, COLUMNS], tl.float32)
    blue = tl.zeros([ROWS, COLUMNS], tl.float32)
    for ray_column in range(antialias):
        u = ((c * antialias + ray_column).to(tl.float32) + 0.5) * spread - edge
        dx = forward_x + u * forward_y
        dy = forward_y - u * forward_x

        # the nearest wall of each column; a division by zero gives a crossing that is rejected
        wall_depth = tl.full([COLUMNS], HIDDEN, tl.float32)
        wall_along = tl.zeros([COLUMNS], tl.float32)
        wall_steep = tl.full([COLUMNS], 1.0, tl.float32)
        wall_light = tl.zeros([COLUMNS], tl.float32)
        wall_paper = tl.zeros([COLUMNS], tl.int32)
        for w in range(wall_count):
            wall = where * wall_count + w
            x0 = tl.load(walls + 4 * wall)
            y0 = tl.load(walls + 4 * wall + 1)
            ex = tl.load(walls + 4 * wall + 2) - x0
            ey = tl.load(walls + 4 * wall + 3) - y0
            paper = tl.load(wall_texture + wall).to(tl.int32)
            ax = x0 - x
            ay = y0 - y
            length = tl.sqrt(ex * ex + ey * ey)
            per_across = 1.0 / (dx * ey - dy * ex)
            t = (ax * ey - ay * ex) * per_across
            k = (ax * dy - ay * dx) * per_across
            nearer = (t > NEAR) & (t < wall_depth) & (k >= -SLACK) & (k <= 1.0 + SLACK)
            wall_depth = tl.where(nearer, t, wall_depth)
            wall_along = tl.where(nearer, k * length, wall_along)
            wall_steep = tl.where(nearer, tl.abs(per_across) * length, wall_steep)
            wall_light = tl.where(nearer, NORTHWARD + EASTWARD * tl.abs(ex) / length, wall_light)
            wall_paper = tl.where(nearer, paper, wall_paper)
        wall_side = _level_side(spread * wall_depth * tl.maximum(wall_steep, 1.0), SIDE)
        wall_column = tl.floor(wall_along * wall_side.to(tl.float32)).to(tl.int32) & (wall_side - 1)
        wall_first = wall_paper * texels + (SIDE * SIDE - wall_side * wall_side) * 4 // 3 + wall_column

        for ray_row in range(antialias):
            slope = edge - ((r * antialias + ray_row).to(tl.float32) + 0.5) * spread
            below = slope < 0.0
            height = tl.where(below, eye, 1.0 - eye)
            plane_depth = height / tl.maximum(tl.abs(slope), height / FAR)
            plane_side = _level_side(spread * plane_depth * tl.maximum(plane_depth / height, 1.0), SIDE)
            plane_first = (SIDE * SIDE - plane_side * plane_side) * 4 // 3

            # floor or ceiling
            is_wall = wall_depth[None, :] <= plane_depth[:, None]
            px = x + dx[None, :] * plane_depth[:, None]
            py = y + dy[None, :] * plane_depth[:, None]
            tile_column = tl.floor((px - corner_x) / tile).to(tl.int32)
            tile_row = tl.floor((py - corner_y) / tile).to(tl.int32)
            tile_column = tl.minimum(tl.maximum(tile_column, 0), tile_columns - 1)
            tile_row = tl.minimum(tl.maximum(tile_row, 0), tile_rows - 1)
            tile_at = (where * tile_rows + tile_row) * tile_columns + tile_column
            on_floor = (~is_wall) & below[:, None]
            on_ceiling = (~is_wall) & (~below)[:, None]
            paper_below = tl.load(floor + tile_at, mask=on_floor, other=0)
            paper_above = tl.load(ceiling + tile_at, mask=on_ceiling, other=0)
            plane_paper = (paper_below + paper_above).to(tl.int32)
            plane_size = plane_side.to(tl.float32)[:, None]
            last = (plane_side - 1)[:, None]
            plane_column = tl.floor(px * plane_size).to(tl.int32) & last
            plane_row = tl.floor(-py * plane_size).to(tl.int32) & last
            plane_texel = plane_paper * texels + plane_first[:, None] + plane_row * plane_side[:, None] + plane_column

            # or the wall
            down = 1.0 - eye - slope[:, None] * wall_depth[None, :]
            wall_row = tl.floor(down * wall_side.to(tl.float32)[None, :]).to(tl.int32)
            wall_row = tl.minimum(tl.maximum(wall_row, 0), (wall_side - 1)[None, :])
            wall_texel = wall_first[None, :] + wall_row * wall_side[None, :]

            texel = tl.load(pyramid + tl.where(is_wall, wall_texel, plane_texel))
            depth = tl.minimum(wall_depth[None, :], plane_depth[:, None])
            light = tl.where(is_wall, wall_light[None, :], 1.0)
            ray_red = (texel & 255).to(tl.float32)
            ray_green = ((texel >> 8) & 255).to(tl.float32)
            ray_blue = ((texel >> 16) & 255).to(tl.float32)

            for o in range(object_count):
                thing = where * object_count + o
                kind = tl.load(object_kind + thing).to(tl.int32)
                ox = tl.load(objects + 5 * thing) - x
                oy = tl.load(objects + 5 * thing + 1) - y
                radius = tl.load(objects + 5 * thing + 2)
                ahead = ox * forward_x + oy * forward_y
                aside = tl.abs(ox * forward_y - oy * forward_x)
                reach = tl.where(kind == BOX, DIAGONAL * radius, radius)
                if (kind != NOTHING) & (ahead > -reach) & (aside <= ahead * edge + reach * widest):
                    tall = tl.load(objects + 5 * thing + 3)
                    near = tl.full([ROWS, COLUMNS], HIDDEN, tl.float32)
                    far = tl.full([ROWS, COLUMNS], -HIDDEN, tl.float32)
                    cosine = tl.zeros([ROWS, COLUMNS], tl.float32)
                    if kind == BOX:
                        turn = tl.load(objects + 5 * thing + 4)
                        near, far, cosine = _box(turn, ox, oy, radius, dx[None, :], dy[None, :], slope[:, None])
                    else:
                        near, far, cosine = _round(
                            kind, eye, ox, oy, radius, tall, dx[None, :], dy[None, :], slope[:, None]
                        )
                    z = eye + near * slope[:, None]
                    highest = tl.where(kind == SPHERE, 2.0 * radius, tall)
                    on_side = (near > NEAR) & (z >= 0.0) & (z <= highest)
                    is_flat = (kind == COLUMN) | (kind == BOX)
                    top = ((tall - eye) / tl.minimum(slope, -1e-9))[:, None]
                    on_top = (near <= top) & (top <= far) & (top > NEAR) & below[:, None] & is_flat & (~on_side)
                    solid_depth = tl.where(on_top, top, tl.where(on_side, near, HIDDEN))
                    shown = solid_depth < depth
                    depth = tl.where(shown, solid_depth, depth)
                    light = tl.where(shown, AMBIENT + DIRECT * tl.where(on_top, LAMP_Z, cosine), light)
                    solid_red = tl.floor(tl.load(object_colour + 3 * thing) * 255.0 + 0.5)
                    solid_green = tl.floor(tl.load(object_colour + 3 * thing + 1) * 255.0 + 0.5)
                    solid_blue = tl.floor(tl.load(object_colour + 3 * thing + 2) * 255.0 + 0.5)
                    ray_red = tl.where(shown, solid_red, ray_red)
                    ray_green = tl.where(shown, solid_green, ray_green)
                    ray_blue = tl.where(shown, solid_blue, ray_blue)

            light = light / (1.0 + DIM * depth)
            red += ray_red * light
            green += ray_green * light
            blue += ray_blue * light

    weight = 1.0 / (antialias * antialias)
    at = frames + frame.to(tl.int64) * (3 * PIXELS * PIXELS) + r[:, None] * PIXELS + c[None, :]
    inside = (r < PIXELS)[:, None] & (c < PIXELS)[None, :]
    tl.store(at, (red * weight + 0.5).to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(at + PIXELS * PIXELS, (green * weight + 0.5).to(tl.int32).to(tl.uint8), mask=inside)
    tl.store(at + 2 * PIXELS * PIXELS, (blue * weight + 0.5).to(tl.int32).to(tl.uint8), mask=inside)


def _empty(walls, *rest) -> list[Tensor]:
    pose, pixels = rest[10:12]
    return [torch.empty(len(pose), 3, pixels, pixels, dtype=torch.uint8, device=walls.device)]


def _forward(
    walls, wall_texture, floor_texture, ceiling_texture, corner, tile, objects, object_kind, object_colour, pyramid,
    place, pose, pixels, antialias, edge, eye,
) -> list[Tensor]:  # fmt: skip
    """One launch, in float32; nothing waits for the device, so a CUDA graph can capture it."""
    frames = torch.empty(len(pose), 3, pixels, pixels, dtype=torch.uint8, device=walls.device)
    if not len(pose):
        return [frames]
    columns = triton.next_power_of_2(pixels)
    rows = min(columns, max(1, PIXELS_AT_ONCE // columns))
    numbers = (walls, corner, objects, object_colour, pose)
    walls, corner, objects, object_colour, pose = (part.float().contiguous() for part in numbers)
    _, tile_rows, tile_columns = floor_texture.shape
    _render[(len(pose), triton.cdiv(pixels, rows))](
        walls, wall_texture.contiguous(), floor_texture.contiguous(), ceiling_texture.contiguous(), corner, objects,
        object_kind.contiguous(), object_colour, pyramid, place.contiguous(), pose, frames,
        walls.shape[1], objects.shape[1], tile_rows, tile_columns, tile, pyramid.shape[1],
        edge, 2 * edge / (pixels * antialias), math.hypot(1.0, edge), eye, antialias,
        SIDE=texture_side(pyramid), PIXELS=pixels, ROWS=rows, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return [frames]


raycast = Fast(_forward, _empty)
