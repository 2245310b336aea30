"""What the same memory and decoder would show if they knew less than the model, or more."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory, nearest
from gtmsm.tensors import Belief, Frames, gather


@dataclass(frozen=True)
class Guess:
    """Predicted frames and, where they were made from one memory entry each that was searched for, which."""

    frames: Frames
    retrieved: Int[Tensor, "batch future"] | None


def controls(
    model: WorldModel, past: Clip, future: Clip, memory: Memory, dream: Dream,
    true_places: Float[Tensor, "batch time P"], known_places: Float[Tensor, "batch time P"], generator: torch.Generator,
) -> dict[str, Guess]:  # fmt: skip
    """Every control, by the name it has in scores.json.

    `true_places` are where the agent was, in the world's own units; `known_places` the same in the model's.
    """
    tau = past.steps
    reading = replace(model.settings.recall, distance="euclidean")
    keys, queries = Belief(known_places[:, :tau]), Belief(known_places[:, tau:])
    knowing = model.read(Memory(keys, memory.code, memory.digest), queries, reading)
    closest = nearest(Belief(true_places[:, :tau]), Belief(true_places[:, tau:]), 1).index[..., 0]
    believed = nearest(Belief(memory.place.mean), Belief(model.motion.place(dream.poses)), 1).index[..., 0]
    guessed = torch.randint(tau, closest.shape, device=generator.device, generator=generator).to(closest.device)
    still, blend = past.x[:, -1:].expand_as(future.x), past.x.mean(1, keepdim=True).expand_as(future.x)
    return {
        "vae_ceiling": Guess(model.vae.decode(model.vae.encode(future.x).mean), None),
        # Told the true pose, they retrieve the right place by construction: that is no score of theirs.
        "true_pose_memory": Guess(model.vae.decode(knowing.peak()), None),
        "copy_nearest_true_pose": Guess(gather(past.x, closest), None),
        "copy_nearest_predicted_pose": Guess(gather(past.x, believed), believed),
        "last_frame": Guess(still, None),
        "mean_frame": Guess(blend, None),
        "random_retrieval": Guess(model.vae.decode(gather(memory.code.mean, guessed)), guessed),
    }
