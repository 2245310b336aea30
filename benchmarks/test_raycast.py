"""Ray-casting on a CPU, against the same geometry ray by ray, in the same run."""

import math
import time

import torch
from ray_by_ray import ray_by_ray

from gtmsm.camera import BOX, COLUMN, CONE, SPHERE
from gtmsm.worlds.scene import Camera, Scene, draw_frames
from gtmsm.worlds.textures import load_textures

FRAMES, BY_RAYS = 512, 4
CAMERA = Camera(pixels=32, antialias=1)
AT_LEAST = 50


def a_room_and_poses():
    """Eight walls, one object of each kind, poses all over the room."""
    corners = [(3 * math.cos(turn), 3 * math.sin(turn)) for turn in (i * math.pi / 4 for i in range(9))]
    textures = load_textures("procedural")
    scene = Scene(
        walls=torch.tensor([[(*a, *b) for a, b in zip(corners[:-1], corners[1:], strict=True)]]),
        wall_texture=textures.walls[None, :8],
        floor_texture=textures.floors[:36].view(1, 6, 6),
        ceiling_texture=textures.ceilings[:1].expand(1, 6, 6).contiguous(),
        corner=torch.tensor([[-3.0, -3.0]]),
        tile=1.0,
        objects=torch.tensor(
            [[[1.5, 0, 0.3, 0.4, 0], [0, 1.5, 0.25, 0.5, 0], [-1.5, 0, 0.3, 0.8, 0], [0, -1, 0.3, 0.4, 1]]]
        ),
        object_kind=torch.tensor([[COLUMN, SPHERE, CONE, BOX]]),
        object_colour=torch.rand(1, 4, 3, generator=torch.Generator().manual_seed(0)),
        textures=textures.bank,
    )
    spread = torch.tensor([2.0, 2.0, 2 * math.pi])
    poses = spread * (torch.rand(FRAMES, 3, generator=torch.Generator().manual_seed(1)) - 0.5)
    return scene, torch.zeros(FRAMES, dtype=torch.long), poses


def test_a_frame_is_many_times_faster_than_ray_by_ray(benchmark, capsys):
    scene, place, poses = a_room_and_poses()
    few = slice(BY_RAYS)
    fast, (plain, _) = (cast(scene, CAMERA, place[few], poses[few]) for cast in (draw_frames, ray_by_ray))
    assert ((fast.int() - plain.int()).abs() <= 2).float().mean() > 0.995

    benchmark.pedantic(draw_frames, (scene, CAMERA, place, poses), rounds=20, warmup_rounds=2)
    if benchmark.disabled:
        return
    began = time.perf_counter()
    ray_by_ray(scene, CAMERA, place[few], poses[few])
    slow = BY_RAYS / (time.perf_counter() - began)
    fast_rate = FRAMES / benchmark.stats.stats.median
    benchmark.extra_info.update(frames_per_second_by_rays=slow, frames_per_second=fast_rate, ratio=fast_rate / slow)
    with capsys.disabled():
        print(
            f"\n{CAMERA.pixels}x{CAMERA.pixels} pixels, 8 walls, 4 objects: ray by ray {slow:.0f} frames/s, gtmsm "
            f"{fast_rate:.0f} frames/s, {fast_rate / slow:.0f} times faster (at least {AT_LEAST} asked for)"
        )
    assert fast_rate >= AT_LEAST * slow
