"""Which pixels of a frame show what earlier frames have shown: what a memory of frames can know."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.camera import Eyes, camera_rays
from gtmsm.kernels.walks.raycast import nearest_walls
from gtmsm.kernels.walks.raycast_objects import draw_objects
from gtmsm.worlds.scene import Camera, Scene

FINER = 2
"""Depths of earlier frames are cast at as many times their pixels, so that edges lie within half a pixel."""
SLACK = 0.02
"""Share of its depth by which a point may lie behind what an earlier frame saw there: rounding, not another surface."""
POINTS_AT_ONCE = 2**22
"""Points looked at from an earlier frame in one go; more would only need more memory."""


def depths(
    scene: Scene, camera: Camera, place: Int[Tensor, "n"], pose: Float[Tensor, "n 3"], finer: int = 1
) -> Float[Tensor, "n rays rays"]:
    """How far ahead the surface in the middle of every pixel lies: along the view, not along the ray."""
    fan = camera_rays(camera.pixels * finer, 1, camera.edge, camera.eye, 1, scene.walls.device)
    x, y, heading = pose.float().unbind(1)
    c, s = heading.cos()[:, None], heading.sin()[:, None]
    eyes = Eyes(x, y, c + fan.across * s, s - fan.across * c)
    wall = nearest_walls(fan, eyes, scene.walls[place].float(), scene.wall_texture[place], 1).depth
    depth = torch.minimum(wall[..., None], fan.plane_depth)
    if scene.objects.shape[1]:
        kind, paint = scene.object_kind[place], torch.zeros_like(depth, dtype=torch.int32)
        draw_objects(fan, eyes, scene.objects[place].float(), kind, kind.int(), wall, depth, paint, paint.float())
    return depth.transpose(1, 2)


def seen_before(
    scene: Scene,
    camera: Camera,
    place: Int[Tensor, "n"],
    past: Float[Tensor, "n tau 3"],
    pose: Float[Tensor, "n time 3"],
) -> Bool[Tensor, "n time pixels pixels"]:
    """Whether the surface in the middle of each pixel of the frames at `pose` was in sight at any pose of `past`."""
    clips = zip(place.split(1), past, pose, strict=True)
    return torch.stack([_seen_in_one(scene, camera, *clip) for clip in clips])


def _seen_in_one(
    scene: Scene, camera: Camera, place: Int[Tensor, "1"], past: Float[Tensor, "tau 3"], pose: Float[Tensor, "time 3"]
) -> Bool[Tensor, "time pixels pixels"]:
    """In one place."""
    before = depths(scene, camera, place.expand(len(past)), past, FINER)
    # The farthest of the rays around: a surface that slants away is not hidden by itself.
    before = F.max_pool2d(before[:, None], 3, stride=1, padding=1)[:, 0]
    points = _surfaces(camera, depths(scene, camera, place.expand(len(pose)), pose), pose)
    some = points.split(max(1, POINTS_AT_ONCE // len(past)))
    return torch.cat([_in_sight(camera, before, past, part) for part in some]).view(-1, camera.pixels, camera.pixels)


def _surfaces(
    camera: Camera, depth: Float[Tensor, "time row column"], pose: Float[Tensor, "time 3"]
) -> Float[Tensor, "points 3"]:
    """x, y and height of what every pixel shows."""
    pixels = depth.shape[-1]
    across = ((2 * torch.arange(pixels, device=depth.device) + 1) / pixels - 1) * camera.edge
    x, y, heading = (part[:, None, None] for part in pose.float().unbind(1))
    c, s, down = heading.cos(), heading.sin(), across[:, None]
    points = x + depth * (c + across * s), y + depth * (s - across * c), camera.eye - depth * down
    return torch.stack(points, dim=-1).flatten(0, -2)


def _in_sight(
    camera: Camera,
    before: Float[Tensor, "tau rays rays"],
    past: Float[Tensor, "tau 3"],
    points: Float[Tensor, "points 3"],
) -> Bool[Tensor, "points"]:
    """Whether each point lies within some earlier frame, and not behind what that frame shows."""
    x, y, z = points.unbind(-1)
    c, s = past[:, 2:].cos(), past[:, 2:].sin()
    dx, dy = x - past[:, :1], y - past[:, 1:2]
    ahead, right, rays = c * dx + s * dy, s * dx - c * dy, before.shape[-1]
    per = 1 / ahead.clamp_min(1e-6)
    column = (right * per / camera.edge + 1) * (rays / 2)
    row = (1 - (z - camera.eye) * per / camera.edge) * (rays / 2)
    inside = (ahead > 1e-3) & (column >= 0) & (column < rays) & (row >= 0) & (row < rays)
    at = row.long().clamp_(0, rays - 1) * rays + column.long().clamp_(0, rays - 1)
    return (inside & (ahead <= (1 + SLACK) * before.flatten(1).gather(1, at))).any(0)
