"""The solid objects of a ray-cast picture: columns, spheres, cones and boxes."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from gtmsm import camera
from gtmsm.camera import Eyes, Fan


class _Solids(NamedTuple):
    """Pairs of an object and a column of rays that may cross it; x and y are seen from the eye."""

    kind: Int64[Tensor, "m"]
    x: Float[Tensor, "m"]
    y: Float[Tensor, "m"]
    dx: Float[Tensor, "m"]
    dy: Float[Tensor, "m"]
    length2: Float[Tensor, "m"]
    """dx^2 + dy^2."""
    radius: Float[Tensor, "m"]
    height: Float[Tensor, "m"]
    turn: Float[Tensor, "m"]


Hits = tuple[Float[Tensor, "m row"], Float[Tensor, "m row"]]
"""Depth, and the cosine between the surface's normal and the direction of the lamp."""


def draw_objects(
    fan: Fan,
    eyes: Eyes,
    objects: Float[Tensor, "f objects 5"],
    kind: Int64[Tensor, "f objects"],
    paint: Int32[Tensor, "f objects"],
    wall_depth: Float[Tensor, "f column"],
    depth: Float[Tensor, "f column row"],
    colour: Int32[Tensor, "f column row"],
    light: Float[Tensor, "f column row"],
) -> None:
    """Paint objects over everything that is farther away."""
    x, y = objects[..., 0] - eyes.x[:, None], objects[..., 1] - eyes.y[:, None]
    away2 = x**2 + y**2 - torch.where(kind == camera.BOX, 2.0, 1.0) * objects[..., 2] ** 2
    along = eyes.dx[:, None] * x[..., None] + eyes.dy[:, None] * y[..., None]
    length2 = 1 + fan.across**2
    left = along**2 - length2 * away2[..., None]
    # in plan the ray crosses the circle around the object, ahead of the eye and before the wall
    root = left.clamp(min=0).sqrt()
    met = (left > 0) & (along + root > 0) & (along - root < length2 * wall_depth[:, None])
    met &= (kind != camera.NOTHING)[..., None]
    is_box = (kind == camera.BOX)[..., None]
    rays, flat = fan.slope.shape[0], depth.view(-1)
    for crossed, intersect in ((met & ~is_box, _round), (met & is_box, _box)):
        frame, thing, column = crossed.nonzero(as_tuple=True)
        if not len(frame):
            continue
        solid = _Solids(
            kind[frame, thing], x[frame, thing], y[frame, thing], eyes.dx[frame, column], eyes.dy[frame, column],
            length2[column], *objects[frame, thing, 2:].unbind(1),
        )  # fmt: skip
        t, cosine = intersect(fan, solid)
        at = (frame * rays + column)[:, None] * rays + torch.arange(rays, device=x.device)
        flat.scatter_reduce_(0, at.view(-1), t.view(-1), "amin")
        ahead = (t == flat[at]).nonzero(as_tuple=True)
        shown, t = at[ahead], t[ahead]
        colour.view(-1)[shown] = paint[frame, thing][ahead[0]]
        light.view(-1)[shown] = (camera.AMBIENT + camera.DIRECT * cosine[ahead]) / (1 + camera.DIM * t)


def _round(fan: Fan, solid: _Solids) -> Hits:
    """Columns, spheres and cones."""
    is_sphere, is_cone = solid.kind == camera.SPHERE, solid.kind == camera.CONE
    bend = torch.where(is_sphere, 1.0, torch.where(is_cone, -((solid.radius / solid.height) ** 2), 0.0))
    above = torch.where(is_sphere, solid.radius, torch.where(is_cone, solid.height, fan.eye)) - fan.eye
    size = torch.where(is_cone, 0.0, solid.radius**2)
    tall = torch.where(is_sphere, 2 * solid.radius, solid.height)[:, None]
    slope = fan.slope
    a = solid.length2[:, None] + bend[:, None] * slope**2
    b = (solid.dx * solid.x + solid.dy * solid.y)[:, None] + (bend * above)[:, None] * slope
    c = (solid.x**2 + solid.y**2 + bend * above**2 - size)[:, None]
    outer = b + (b**2 - a * c).sqrt()  # nan where the ray misses: every comparison below is then false
    t = c / outer
    z = fan.eye + t * slope
    hit = (t > camera.NEAR) & (z >= 0) & (z <= tall)
    normal_x, normal_y = t * solid.dx[:, None] - solid.x[:, None], t * solid.dy[:, None] - solid.y[:, None]
    normal_z = bend[:, None] * (t * slope - above[:, None])
    cosine = normal_x * camera.LAMP[0] + normal_y * camera.LAMP[1] + normal_z * camera.LAMP[2]
    cosine = cosine * (normal_x**2 + normal_y**2 + normal_z**2).clamp(min=1e-18).rsqrt()
    return _with_tops(fan, solid, t, hit, cosine, outer / a)


def _box(fan: Fan, solid: _Solids) -> Hits:
    """Square prisms: inside one, a ray is between two pairs of parallel sides."""
    c, s = solid.turn.cos(), solid.turn.sin()
    sides = torch.stack([torch.stack([c, s]), torch.stack([-s, c])])  # two normals
    along = sides[:, 0] * solid.dx + sides[:, 1] * solid.dy
    along = torch.where(along == 0, 1e-9, along)
    away = sides[:, 0] * solid.x + sides[:, 1] * solid.y
    half = torch.copysign(solid.radius, along)
    near, which = ((away - half) / along).max(0)
    far = ((away + half) / along).amin(0)
    near = torch.where(near > far, torch.nan, near)
    lamp = -along.sign() * (sides[:, 0] * camera.LAMP[0] + sides[:, 1] * camera.LAMP[1])
    cosine = lamp.gather(0, which[None])[0]
    z = fan.eye + near[:, None] * fan.slope
    hit = (near > camera.NEAR)[:, None] & (z >= 0) & (z <= solid.height[:, None])
    return _with_tops(fan, solid, near[:, None].expand_as(z), hit, cosine[:, None].expand_as(z), far[:, None])


def _with_tops(
    fan: Fan,
    solid: _Solids,
    t: Float[Tensor, "m row"],
    hit: Bool[Tensor, "m row"],
    cosine: Float[Tensor, "m row"],
    far: Float[Tensor, "m _row"],
) -> Hits:
    """Hits of the sides between t and far, and of the flat tops of columns and boxes lower than the eye."""
    flat = ((solid.kind == camera.COLUMN) | (solid.kind == camera.BOX))[:, None]
    top = (solid.height - fan.eye)[:, None] / fan.slope
    on_top = flat & (fan.slope < 0) & (top > camera.NEAR) & (t <= top) & (top <= far) & ~hit
    depth = torch.where(on_top, top, torch.where(hit, t, camera.HIDDEN))
    return depth, torch.where(on_top, camera.LAMP[2], cosine)
