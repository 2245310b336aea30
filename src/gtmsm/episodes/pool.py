"""Episodes kept in memory, on the device that trains, and cut into windows for every update."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot, steps_of
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.errors import InputError


class Episodes(Protocol):
    """The part of a `Store` that training needs."""

    @property
    def kind(self) -> Kind:
        """What all episodes share."""

    @property
    def lengths(self) -> Int64[np.ndarray, "_"]:
        """Steps of each episode."""

    @property
    def places(self) -> Sequence[str]:
        """Place of each episode."""

    @property
    def seeds(self) -> Iterable[int]:
        """Seed of each episode."""

    def __len__(self) -> int:
        """Number of episodes."""

    def episode(self, i: int) -> Episode:
        """Read a whole episode."""

    def window(self, i: int, first: int, steps: int, frames: np.ndarray | None = None) -> Episode:
        """Read part of an episode, which starts at the pose before it; `frames` is memory for its frames."""


@dataclass(frozen=True)
class Pool:
    """All steps of some episodes, one episode after the other. Drawing from it can be captured in a CUDA graph."""

    frames: UInt8[Tensor, "steps channel height width"]
    a: Float[Tensor, "steps A"]
    pose: Float[Tensor, "steps D"]
    step: Float[Tensor, "steps D"]
    first: Int64[Tensor, "episodes"]
    """The row of each episode's first step; the longest episode comes first."""
    length: Int64[Tensor, "episodes"]
    lengths: tuple[int, ...]
    """The same, on the host."""
    from_start: bool
    """Whether windows begin at the start of episodes, or anywhere in them."""

    @classmethod
    def of(
        cls,
        store: Episodes,
        which: Int64[np.ndarray, "_"],
        device: torch.device,
        unit: float = 1.0,
        from_start: bool = False,
    ) -> "Pool":
        """Load the episodes `which`; `unit` is the length, in the units of their poses, that counts as 1."""
        kind, order = store.kind, which[np.argsort(-store.lengths[which], kind="stable")]
        height, width, channels = kind.frame_shape
        length = torch.from_numpy(store.lengths[order])
        first, total = length.cumsum(0) - length, int(length.sum())
        frames = torch.empty(total, channels, height, width, dtype=torch.uint8, device=device)
        sizes = kind.action_size, kind.pose_size, kind.pose_size
        a, pose, step = moves = [torch.empty(total, size, device=device) for size in sizes]
        for i, begin in zip(order.tolist(), first.tolist(), strict=True):
            episode = store.episode(i)
            here = slice(begin, begin + episode.steps)
            frames[here] = torch.from_numpy(episode.frames).to(device).permute(0, 3, 1, 2)
            for all_steps, some in zip(moves, moves_of(episode, kind, unit), strict=True):
                all_steps[here] = some.to(device)
        rows = first.to(device), length.to(device)
        return cls(frames, a, pose, step, *rows, lengths=tuple(length.tolist()), from_start=from_start)

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Draw `n` windows of `steps` consecutive steps, from different episodes if there are enough of them."""
        which, begin = drawn(self.length, self.lengths, n, steps, self.from_start, generator)
        row = ((self.first[which] + begin)[:, None] + torch.arange(steps, device=which.device)).flatten()

        def cut(part: Tensor) -> Tensor:
            return part.index_select(0, row).unflatten(0, (n, steps))

        return Clip(cut(self.frames) / 255, cut(self.a), cut(self.pose), cut(self.step))


def drawn(
    length: Int64[Tensor, "episodes"], lengths: tuple[int, ...], n: int, steps: int, from_start: bool,
    generator: torch.Generator,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:  # fmt: skip
    """Draw numbers of episodes, which are sorted with the longest first, and the first step of a window in each."""
    fitting = bisect_right(lengths, -steps, key=lambda length: -length)
    if not fitting:
        raise InputError(
            f"asked for windows of {steps} steps but the longest of these episodes has {lengths[0]}; lower tau or "
            "horizon, or record longer episodes"
        )
    lots = torch.rand(-(-n // fitting), fitting, device=generator.device, generator=generator)
    which = lots.topk(min(n, fitting), sorted=True).indices.flatten()[:n].to(length.device)
    later = torch.rand(n, device=generator.device, generator=generator).to(length.device)
    return which, (later * (length[which] - steps + 1)).long() * (not from_start)


def moves_of(episode: Episode, kind: Kind, unit: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Actions as vectors; poses and displacements, of zero size where they are unknown.

    `episode` may be a batch of windows: its arrays then have an additional first dimension.
    """
    actions = torch.from_numpy(episode.actions)
    a = one_hot(actions, kind.action_size) if kind.discrete else actions.float()
    if episode.poses is None or episode.start is None:
        return a, a[..., :0], a[..., :0]
    poses = np.concatenate([episode.start[..., None, :], episode.poses], -2).astype(np.float64)
    poses[..., :2] /= unit
    if kind.pose_size == 3:
        poses[..., 2] = np.unwrap(poses[..., 2])  # else a turn across ±pi would count as nearly a full circle
    path = torch.from_numpy(poses)
    ways = path.view(-1, *path.shape[-2:])
    step = steps_of(ways[:, 0], ways[:, 1:]).view(*path.shape[:-2], -1, kind.pose_size)
    return a, path[..., 1:, :].float(), step.float()
