"""Memorise what an agent sees in a Gymnasium environment, then ask the model what other actions would show."""

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F

from gtmsm import WorldModel

WEIGHTS = "image-walk"
UP, DOWN, LEFT, RIGHT, STAY = range(5)

model = WorldModel.load(WEIGHTS)
env = gymnasium.make("gtmsm/ImageWalk-v0", split="test")
env.reset(seed=0)


def act(actions: list[int]) -> np.ndarray:
    """What the environment shows after each action."""
    return np.stack([env.step(action)[0] for action in actions])


def as_batch(frames: np.ndarray) -> torch.Tensor:
    """uint8 `time height width channel` to floats `1 time channel height width`."""
    return torch.from_numpy(frames).permute(0, 3, 1, 2)[None].float() / 255


def one_hot(actions: list[int]) -> torch.Tensor:
    """`1 time 5`."""
    return F.one_hot(torch.tensor(actions), 5)[None].float()


# A lap to the right wall, down, and back to the left: bumping into walls on the way.
explored = [STAY] + [RIGHT] * 6 + [DOWN] * 2 + [LEFT] * 9
with torch.no_grad():
    memory, here = model.memorise(as_batch(act(explored)), one_hot(explored))

    # The same way back, imagined before it is walked.
    planned = [RIGHT] * 8 + [UP] * 2 + [LEFT] * 4
    dream = model.imagine(memory, here, one_hot(planned))
    truth = as_batch(act(planned))

error = (dream.frames - truth).square().mean((0, 2, 3, 4))
names = ["up", "down", "left", "right", "stay"]
for action, mse in zip(planned, error.tolist(), strict=True):
    print(f"{names[action]:>6}: imagined with {-10 * np.log10(mse):4.1f} dB")
assert error.mean() < 0.01  # 20 dB
