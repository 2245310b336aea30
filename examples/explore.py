"""Walk through a picture step by step: remember, imagine, save, and come back to an unknown place. Seconds on a CPU."""

import tempfile

import torch

from gtmsm import Explorer, WorldModel
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

model = WorldModel.load("obstacles-celeba")
world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())  # pictures that it was not trained on
chance = torch.Generator().manual_seed(0)


def walk(explorer: Explorer, row: int, column: int, steps: int) -> None:
    """From this cell of picture 7, by random actions."""
    world.place(torch.tensor([7]), torch.tensor([[row, column]]))
    explorer.step(world.look()[0])
    for action in PoissonWalker()(world, steps, chance)[0]:
        world.step(action[None])
        explorer.step(world.look()[0], int(action))


explorer = Explorer(model, closure=64)
walk(explorer, 4, 4, 300)
print(f"{len(explorer)} views; believed at {explorer.here.mean[0].tolist()}, really {(world.pose[0] - 4).tolist()}")
dream = explorer.imagine([[0, 0, 2], [1, 1, 3]])  # up, up, left; down, down, right
print(f"two plans of three actions show frames of shape {tuple(dream.frames.shape)}")

with tempfile.TemporaryDirectory() as folder:
    explorer.save(f"{folder}/walk.safetensors")
    known = Explorer.load(f"{folder}/walk.safetensors", model).memory
second = Explorer(model, known, here=model.anywhere(1))  # put somewhere else on the same picture
walk(second, 1, 6, 20)
print(f"found: {not second.lost}; {second.here.mean[0].tolist()}, really {(world.pose[0] - 4).tolist()}")
