"""Walk over pictures the model has never seen, then predict the next 256 steps from actions alone."""

import torch

from gtmsm import WorldModel
from gtmsm.data.record import record
from gtmsm.evaluation.examine import examiner_for
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

WEIGHTS = "image-walk"  # or a run folder of your own
TAU = 256

model = WorldModel.load(WEIGHTS)
world = ImageWalk(load_images("builtin", size=32).test, ImageWalkConfig())
clip = record(world, PoissonWalker(), n=16, steps=2 * TAU, generator=torch.Generator().manual_seed(0))
past, future = clip.split(TAU)

with torch.no_grad():
    memory, here = model.memorise(past.x, past.a)
    dream = model.imagine(memory, here, future.a)  # poses now, frames when they are asked for

examiner = examiner_for(world, TAU)  # knows what a revisit is in this world
seen = examiner.revisited(clip)
right = examiner.hits(clip, dream.retrieved)[seen].float().mean()
error = frame_mse(future.x, dream.frames)
print(f"memory of {len(memory)} steps; standing at {[round(x, 2) for x in here.mean[0].tolist()]} in learned units")
print(f"right place retrieved at {right:.1%} of the steps that return to a memorised place")
print(f"PSNR {psnr_pooled(error, seen):.1f} dB there, {psnr_pooled(error, ~seen):.1f} dB at places never seen")
assert right > 0.99
