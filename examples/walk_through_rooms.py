"""Walk through rooms the model has never seen, then imagine what the next actions would show."""

from pathlib import Path

import torch
from PIL import Image

from gtmsm import WorldModel
from gtmsm.data.record import record
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.textures import load_textures

WEIGHTS = "walk-strong"  # or a run folder of your own
PICTURE = Path("runs") / "imagined_rooms.png"
TAU, HORIZON, AGENTS = 150, 24, 3

model = WorldModel.load(WEIGHTS)
textures = load_textures("auto")
if textures.name != "lab":
    print("the model was trained with Lab's textures: these drawn ones are out of its distribution")
plans = draw_floorplans("room", 32, objects=4, textures=textures, seed=0)
clip = record(Rooms(plans, RoomsConfig()), ScavengerWalker(), AGENTS, TAU + HORIZON, torch.Generator().manual_seed(0))
past, future = clip.split(TAU)

with torch.no_grad():
    memory, here = model.memorise(past.x, past.a)
    dream = model.imagine(memory, here, future.a)
    imagined = psnr_pooled(frame_mse(future.x, dream.frames))
still = psnr_pooled(frame_mse(future.x, past.x[:, -1:].expand_as(future.x)))
print(f"{TAU} steps memorised in each of {AGENTS} rooms, {HORIZON} imagined: PSNR {imagined:.1f} dB")
print(f"showing the last memorised frame again and again: {still:.1f} dB")

# For each room a row of true frames above a row of imagined ones, every third step.
rows = torch.stack([future.x, dream.frames], dim=1)[:, :, 2::3]
sheet = rows.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(0, 2)
pixels = Image.fromarray((255 * sheet).round().byte().numpy())
PICTURE.parent.mkdir(exist_ok=True)
pixels.resize((3 * pixels.width, 3 * pixels.height), Image.Resampling.NEAREST).save(PICTURE)
print(f"truth above imagination: {PICTURE}")
assert imagined is not None and still is not None and imagined > still
