"""Record clips of a walker in a world."""

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
"""Clips per batch when scoring. Fixed sets depend on it: it determines the generator's state after each batch."""


@runtime_checkable
class Replayed(Protocol):
    """A recorded world: no agent walks in it, its clips are replayed."""

    def replay(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Draw clips of the recording."""


def record(world: World, walker: Walker, n: int, steps: int, generator: torch.Generator, truth: bool = True) -> Clip:
    """Record `n` agents that are put into the world and walk for `steps`; equal generator states give equal clips.

    Of a recorded world, clips are drawn instead. Without `truth`, true poses and steps have size zero, which saves
    their computation.
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
    """As `record`, in batches that fit into memory; `world` holds the agents of a batch until the next one."""
    for begin in range(0, n, AT_ONCE):
        yield record(world, walker, min(AT_ONCE, n - begin), steps, generator)


def as_clip(world: World, actions: Int64[Tensor, "n steps"], truth: bool = True) -> Clip:
    """Walk these actions from where the agents of `world` are, and return the clip."""
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
    """0, 1, 2, ...; cached, since a GPU would compute them again for every update."""
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
