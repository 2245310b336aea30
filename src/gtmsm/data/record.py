"""A world and a walker become a clip."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.tensors import felt
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World


def record(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator) -> Clip:
    """`n` agents dropped into the world walk for `steps`; the same generator state gives the same clip."""
    world.reset(n, generator)
    return as_clip(world, walker(world, steps, generator))


def as_clip(world: World, actions: Int64[Tensor, "n steps"]) -> Clip:
    """The clip of these actions, from where the agents of `world` are."""
    start = world.pose
    walk = world.walk(actions)
    return Clip(
        x=walk.frames,
        a=one_hot(actions, len(world.action_names)),
        true_pose=walk.poses,
        true_step=steps_of(start, walk.poses),
    )


def steps_of(start: Float[Tensor, "n D"], poses: Float[Tensor, "n steps D"]) -> Float[Tensor, "n steps D"]:
    """What the agents felt at every step of a walk."""
    return felt(torch.cat([start[:, None], poses[:, :-1]], dim=1), poses)


def one_hot(actions: Int64[Tensor, "*n"], count: int) -> Float[Tensor, "*n count"]:
    """Action numbers as vectors; a number that is no action (-1: no key pressed) is the zero vector."""
    # Not F.one_hot, which may read the numbers on the host: recording must fit into a CUDA graph.
    vectors = torch.empty(*actions.shape, count, device=actions.device)
    return torch.eq(actions[..., None], torch.arange(count, device=actions.device), out=vectors)
