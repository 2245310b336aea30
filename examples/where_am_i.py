"""Walk over pictures with obstacles, on slippery ground, and know where you are all the same; find a view again."""

import torch

from gtmsm import WorldModel
from gtmsm.data.record import record
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.slip import SlipConfig, Slipping
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig

# Trained on faces, walked here on photographs: the README has the figures for faces.
WEIGHTS = "obstacles-celeba"
STEPS = 256

model = WorldModel.load(WEIGHTS)
images = load_images("builtin", 32).test
world = Slipping(ImageWalk(images, ImageWalkConfig(obstacles=2)), SlipConfig(probability=0.05))
walker = PoissonWalker(PoissonWalkerConfig(look_first=True))
clip = record(world, walker, 20, STEPS + 64, torch.Generator().manual_seed(0))
past, later = clip.split(STEPS)


def share_of_right_cells(poses: torch.Tensor) -> float:
    """Poses are in cells from where the walk began."""
    miss = poses + past.true_start[:, None] - past.true_pose
    return float((miss.norm(dim=-1) < 0.5).float().mean())


with torch.no_grad():
    reckoned = model.motion.unroll(model.motion.start(len(past.a)), past.a)
    print(f"right cell by actions alone: {share_of_right_cells(reckoned):.0%} of {STEPS} steps")
    print(f"by landmarks: {share_of_right_cells(model.follow(past.x, past.a).mean):.0%}")
    memory, here = model.memorise(past.x, past.a, closure=64)
    print(f"by landmarks, once loops are closed: {share_of_right_cells(memory.place.mean):.0%}")

    # A view from later in each walk: was it seen before, and where?
    view = later.x[:, -1:]
    found = model.localise(memory, view)
    cell = (found.pose[:, 0] + past.true_start).round().long()
    truth = later.true_pose[:, -1].long()
    for n in range(4):
        place = f"cell {cell[n].tolist()}" if found.known[n] > 0.5 else "never seen"
        been = bool((past.true_pose[n].long() == truth[n]).all(-1).any())
        print(f"picture {n}: {place} (known: {found.known[n]:.2f}); truth {truth[n].tolist()}, visited: {been}")
    strange = model.localise(memory, view.roll(1, 0))
    print(f"views of other pictures taken for known: {float((strange.known > 0.5).float().mean()):.0%}")
