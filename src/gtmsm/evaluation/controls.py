"""What the same memory and decoder would show without the model's knowledge, or with more of it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.model.gtmsm import Dream, WorldModel
from gtmsm.model.memory import Memory, gather
from gtmsm.model.recall import RecallConfig, recall
from gtmsm.tensors import Belief


@dataclass(frozen=True)
class Guess:
    """Predicted frames and, where they were made from one memory entry each, which."""

    frames: Float[Tensor, "batch future channel height width"]
    retrieved: Int[Tensor, "batch future"] | None


def controls(
    model: WorldModel, past: Clip, future: Clip, memory: Memory, dream: Dream, generator: torch.Generator
) -> dict[str, Guess]:
    """Every control, by the name it has in scores.json."""
    reading = RecallConfig(neighbours=model.settings.recall.neighbours, delta=model.settings.recall.delta)
    knowing = recall(Memory(Belief(past.true_pose), memory.code), Belief(future.true_pose), reading)
    nearest = knowing.heaviest
    guessed = torch.randint(past.steps, nearest.shape, device=nearest.device, generator=generator)
    still, blend = past.x[:, -1:].expand_as(future.x), past.x.mean(1, keepdim=True).expand_as(future.x)
    return {
        "vae_ceiling": Guess(model.vae.decode(model.vae.encode(future.x).mean), None),
        "true_pose_memory": Guess(model.vae.decode(knowing.peak()), nearest),
        "copy_nearest_true_pose": Guess(gather(past.x, nearest), nearest),
        "copy_nearest_predicted_pose": Guess(gather(past.x, dream.retrieved), dream.retrieved),
        "last_frame": Guess(still, None),
        "mean_frame": Guess(blend, None),
        "random_retrieval": Guess(model.vae.decode(gather(memory.code.mean, guessed)), guessed),
    }
