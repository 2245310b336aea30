"""What cases begin with: a small run with landmarks, pictures, a walk, and a view of it."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gtmsm import WorldModel, cli
from gtmsm.evaluation.score import evaluate
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.run import Run

TOY = (
    "--world.size 20 --world.obstacles 1 --world.obstacle-side 2 --model.vae.width 32 --model.vae.code-size 8 "
    "--batch 4 --tau 16 --horizon 4 --warm-up 1 --model.landmark.matches 6 --model.landmark.width 16 --log-every 1 "
    "--updates 3 --evaluation.tau 16 --evaluation.horizon 8 --evaluation.clips 2 --evaluation.landmarks.walks 1 "
    "--evaluation.landmarks.steps 24 --images images.npz --device cpu --no-evaluate"
)
ROOMS = WorldModelConfig(
    vae=FrameVAEConfig(coder="spatial", width=16, code_size=16),
    motion=MotionConfig(kind="turning"),
    recall=RecallConfig(prior="rays", neighbours=4, width=64, layers=1),
)


def make() -> None:
    """In the current folder, the same every time."""
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 20, 20, 3), dtype=np.uint8) for n in (6, 3))
    np.savez("images.npz", train=train, test=test)
    Path("folder").mkdir()
    for i, pixels in enumerate(train):
        Image.fromarray(pixels).save(f"folder/{i}.png")
    for words in (f"train obstacles-small --run run {TOY}", "record run walk.npz --seed 1"):
        try:
            cli.main(words.split())
        except SystemExit as end:
            assert end.code == 0, words
    run, device = Run.open(Path("run")), torch.device("cpu")
    setting = run.set_up(device)
    scores = evaluate(run.load_model(device), setting.test_world, setting.walker, run.experiment.evaluation, device)
    Path("run/scores.json").write_text(json.dumps(scores.scores))
    with np.load("walk.npz") as walk:
        Image.fromarray(walk["frames"][3]).save("view.png")
    WorldModel(ROOMS, (3, 16, 16), 8).save("rooms.safetensors")
