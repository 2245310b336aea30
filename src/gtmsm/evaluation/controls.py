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
    places: tuple[Float[Tensor, "batch time _"], Float[Tensor, "batch time _"]] | None, generator: torch.Generator,
) -> dict[str, Guess]:  # fmt: skip
    """Every control, by the name it has in scores.json.

    `places` are where the agent was, in the world's own units, and the same in the model's; where they are unknown,
    controls that are told them are left out.
    """
    tau = past.steps
    believed = nearest(Belief(memory.place.mean), Belief(model.motion.place(dream.poses)), 1).index[..., 0]
    guessed = torch.randint(tau, believed.shape, device=generator.device, generator=generator).to(believed.device)
    likest = torch.cdist(future.x.flatten(2), past.x.flatten(2)).argmin(-1)
    still, blend = past.x[:, -1:].expand_as(future.x), past.x.mean(1, keepdim=True).expand_as(future.x)
    return {
        "vae_ceiling": Guess(model.vae.decode(model.vae.encode(future.x).mean), None),
        **({} if places is None else _told_places(model, past, memory, *places)),
        "best_copy": Guess(gather(past.x, likest), None),
        "copy_nearest_predicted_pose": Guess(gather(past.x, believed), believed),
        "last_frame": Guess(still, None),
        "mean_frame": Guess(blend, None),
        "random_retrieval": Guess(model.vae.decode(gather(memory.code.mean, guessed)), guessed),
    }


def _told_places(
    model: WorldModel, past: Clip, memory: Memory, true: Float[Tensor, "batch time _"],
    known: Float[Tensor, "batch time _"],
) -> dict[str, Guess]:  # fmt: skip
    """Told the true pose, they retrieve the right place by construction: that is no score of theirs."""
    tau, reading = past.steps, replace(model.settings.recall, distance="euclidean")
    keys, queries = Belief(known[:, :tau]), Belief(known[:, tau:])
    knowing = model.read(Memory(keys, memory.code, memory.digest), queries, reading)
    closest = nearest(Belief(true[:, :tau]), Belief(true[:, tau:]), 1).index[..., 0]
    return {
        "true_pose_memory": Guess(model.vae.decode(knowing.peak()), None),
        "copy_nearest_true_pose": Guess(gather(past.x, closest), None),
    }
