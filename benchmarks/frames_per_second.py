"""How many frames the ray-caster draws in a second: `python benchmarks/frames_per_second.py [cpu|cuda]`.

32x32 pixels, single rooms with 4 objects; on a CPU one thread and one ray per pixel, on a GPU 2x2 rays.
"""

import sys
import time

import torch

from gtmsm.kernels.raycast import raycast
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
torch.set_num_threads(1)
on_gpu = device.type == "cuda"
config = RoomsConfig(antialias=2 if on_gpu else 1)
world = draw_rooms(config, config.test_places, seed=0, device=device)
n = 65_536 if on_gpu else 1_024
place = torch.randint(config.test_places, (n,), device=device)
pose = torch.cat([world.plans.spots[place, 0], 6.28 * torch.rand(n, 1, device=device)], dim=1)


def draw() -> None:
    raycast(world.plans.scene, world.camera, place, pose)
    if on_gpu:
        torch.cuda.synchronize()


draw()
clock = time.perf_counter if on_gpu else time.process_time
rates = []
for _ in range(20):
    start = clock()
    draw()
    rates.append(n / (clock() - start))
rates.sort()
print(f"{device}: {rates[10]:,.0f} frames/s (median of 20; {rates[0]:,.0f} to {rates[-1]:,.0f})")
