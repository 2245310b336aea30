"""The ray-caster: frames of rooms, drawn."""

from collections.abc import Iterator

import torch

from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Task
from gtmsm.bench.work import Work, bytes_of
from gtmsm.kernels.walks.raycast import raycast
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms

WALL_FLOPS, OBJECT_FLOPS, PIXEL_FLOPS = 12, 24, 20
"""Where a column of rays meets a wall, where a ray meets an object, and what colour it then is; by the lines of
`by_rays`, and only about so."""


def drawn_frames(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Single rooms with four objects, from anywhere in them."""
    settings = RoomsConfig(antialias=sizes.rays, train_places=1, test_places=sizes.places)
    world = draw_rooms(settings, settings.test_places, seed=0, device=device)
    generator = torch.Generator(device).manual_seed(0)
    place = torch.randint(settings.test_places, (sizes.drawn,), device=device, generator=generator)
    heading = 6.28 * torch.rand(sizes.drawn, 1, device=device, generator=generator)
    pose = torch.cat([world.plans.spots[place, 0], heading], dim=1)
    scene, side = world.plans.scene, world.camera.rays
    each = side * scene.walls.shape[1] * WALL_FLOPS + side**2 * (scene.objects.shape[1] * OBJECT_FLOPS + PIXEL_FLOPS)
    least = Work(
        sizes.drawn * each,
        bytes_of(place, pose, scene.walls, scene.objects, scene.textures) + sizes.drawn * 3 * settings.pixels**2,
    )
    yield Task(
        "ray-caster",
        f"{sizes.drawn:,} frames, {sizes.rays**2} {'rays' if sizes.rays > 1 else 'ray'}/pixel",
        lambda: raycast(scene, world.camera, place, pose),
        sizes.drawn,
        "frames",
        least,
    )
