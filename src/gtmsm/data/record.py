"""A world and a walker become a clip."""

from collections.abc import Iterator
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.config import require, require_whole
from gtmsm.data.clip import Clip
from gtmsm.errors import shown
from gtmsm.pose import space_of
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

AT_ONCE = 50
"""Clips of a batch to score on: where a generator stands after it is part of what a fixed set is."""


@runtime_checkable
class Replayed(Protocol):
    """A world that was recorded: nobody walks in it, its clips are played again."""

    def replay(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Clips of what was recorded."""


def record(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator, truth: bool = True) -> Clip:
    """`n` agents dropped into the world walk for `steps`; the same generator state gives the same clip.

    Of a world that was recorded, clips are drawn instead. Without `truth`, true poses and steps have zero dimensions,
    which saves their computation.
    """
    require(hasattr(world, "walk"), f"world is {shown(world)}; give one that can be walked, such as ImageWalk")
    require(callable(walker), f"walker is {shown(walker)}; give one that chooses actions, such as PoissonWalker()")
    drawn_by = isinstance(generator, torch.Generator)
    require(drawn_by, f"generator is {shown(generator)}; give torch.Generator().manual_seed(0)")
    require_whole("steps", steps)
    if isinstance(world, Replayed):
        return world.replay(n, steps, generator)
    world.reset(n, generator)
    return as_clip(world, walker(world, steps, generator), truth)


def record_in_batches(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator) -> Iterator[Clip]:
    """As `record`, in portions that fit into memory; agents of `world` are those of a portion until the next."""
    for begin in range(0, n, AT_ONCE):
        yield record(world, walker, min(AT_ONCE, n - begin), steps, generator)


def as_clip(world: World, actions: Int64[Tensor, "n steps"], truth: bool = True) -> Clip:
    """The clip of these actions, from where the agents of `world` are."""
    a = one_hot(actions, len(world.action_names))
    if not truth:
        nothing = a[..., :0]
        return Clip(world.walk(actions).frames, a, nothing, nothing)
    start = world.pose
    walk = world.walk(actions)
    return Clip(walk.frames, a, walk.poses, steps_of(start, walk.poses))


def steps_of(start: Float[Tensor, "n D"], poses: Float[Tensor, "n steps D"]) -> Float[Tensor, "n steps D"]:
    """The displacement of every step of a walk, in the agent's own frame."""
    return space_of(poses.shape[-1]).displacement(torch.cat([start[:, None], poses[:, :-1]], dim=1), poses)


def one_hot(actions: Int64[Tensor, "*n"], count: int) -> Float[Tensor, "*n count"]:
    """Action numbers as vectors; a number that is no action (-1: no key pressed) is the zero vector."""
    # Not F.one_hot, which may read the numbers on the host: recording must fit into a CUDA graph.
    vectors = torch.empty(*actions.shape, count, device=actions.device)
    return torch.eq(actions[..., None], _numbers(count, actions.device), out=vectors)


@cache  # a captured graph reads them, and does not keep them alive
def _numbers(count: int, device: torch.device) -> Int64[Tensor, "count"]:
    """0, 1, 2, ...; kept, since a GPU would make them anew for every update."""
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
