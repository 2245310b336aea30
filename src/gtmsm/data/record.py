"""A world and a walker become a clip."""

import torch
from jaxtyping import Int64
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World


def record(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator) -> Clip:
    """`n` agents dropped into the world walk for `steps`; the same generator state gives the same clip."""
    world.reset(n, generator)
    return as_clip(world, walker(n, steps, generator))


def as_clip(world: World, actions: Int64[Tensor, "n steps"]) -> Clip:
    """The clip of these actions, from where the agents of `world` are."""
    walk = world.walk(actions)
    # Not F.one_hot, which may read the numbers on the host: recording must fit into a CUDA graph.
    numbers = torch.arange(len(world.action_names), device=actions.device)
    one_hot = (actions[..., None] == numbers).to(walk.frames.dtype)
    return Clip(x=walk.frames, a=one_hot, true_pose=walk.poses)
