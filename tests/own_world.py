"""Our own worlds as if they were somebody else's: recorded, with or without poses, and kept in memory."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from gtmsm.data.record import record
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig, SpinWalker, SpinWalkerConfig


@dataclass
class InMemory:
    """As much of a store as training asks for."""

    kind: Kind
    episodes: list[Episode]
    path: Path = Path("memory")

    @property
    def lengths(self) -> np.ndarray:
        return np.array([episode.steps for episode in self.episodes], np.int64)

    @property
    def places(self) -> list[str]:
        return [episode.place for episode in self.episodes]

    @property
    def seeds(self) -> list[int]:
        return [episode.seed for episode in self.episodes]

    def __len__(self) -> int:
        return len(self.episodes)

    def episode(self, i: int) -> Episode:
        return self.episodes[i]

    def window(self, i: int, first: int, steps: int, frames: np.ndarray | None = None) -> Episode:
        """It has its frames already, and needs no memory for them."""
        whole, part = self.episodes[i], slice(first, first + steps)
        cut = replace(whole, frames=whole.frames[part], actions=whole.actions[part])
        if whole.poses is None:
            return cut
        return replace(cut, poses=whole.poses[part], start=whole.poses[first - 1] if first else whole.start)


def recorded(world, walker, names, n: int, steps: int, poses: bool = True, seed: int = 0) -> InMemory:
    """`n` walks, each in a place of its own."""
    clip = record(world, walker, n, steps, torch.Generator().manual_seed(seed))
    size = clip.true_pose.shape[-1] if poses else 0
    frames = (255 * clip.x).round().byte().permute(0, 1, 3, 4, 2).numpy()
    numbers = torch.where(clip.a.any(-1), clip.a.argmax(-1), -1).numpy()
    truth, start = clip.true_pose.numpy(), clip.true_start.numpy()
    known = [dict(poses=truth[i], start=start[i]) if poses else {} for i in range(n)]
    kind = Kind(frames.shape[2:], names, len(names), size, "ours")
    return InMemory(kind, [Episode(frames[i], numbers[i], place=f"place {i}", seed=i, **known[i]) for i in range(n)])


def image_walks(n: int, steps: int, poses: bool, size: int = 20, repeats: float = 0.0) -> InMemory:
    """Walks over pictures of slowly changing colours, which no place repeats; all begin in the middle."""
    coarse = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(7))
    images = (F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1) * 255).byte()
    world = ImageWalk(images, ImageWalkConfig(size=size))
    return recorded(
        world, PoissonWalker(PoissonWalkerConfig(mean_repeats=repeats)), world.action_names, n, steps, poses
    )


def spins(n: int, steps: int, poses: bool = True) -> InMemory:
    """Agents that turn on the spot in bare rooms."""
    config = RoomsConfig(textures="procedural", objects=0, train_places=n, test_places=1, antialias=1)
    world = draw_rooms(config, n, 0, torch.device("cpu"))
    return recorded(world, SpinWalker(SpinWalkerConfig()), world.action_names, n, steps, poses)


def grid_walks(n: int, steps: int, side: int = 5) -> InMemory:
    """Left, right and forward among walls, as in MiniGrid: every pose has a view of its own, and many steps fail."""
    rng = np.random.default_rng(1)
    episodes = []
    for i in range(n):
        views = rng.integers(0, 256, (side, side, 4, 2, 2, 3), dtype=np.uint8).repeat(4, 3).repeat(4, 4)
        x, y, heading = rng.integers(side), rng.integers(side), rng.integers(4)
        start, poses, frames, actions = (x, y, heading), [], [], rng.choice(3, steps, p=(0.2, 0.2, 0.6))
        for action in actions:
            if action == 2:
                dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[heading]
                x, y = min(max(x + dx, 0), side - 1), min(max(y + dy, 0), side - 1)
            else:
                heading = (heading + (1, -1)[action]) % 4
            poses.append((x, y, heading))
            frames.append(views[x, y, heading])
        scale = np.array([10.0, 10.0, np.pi / 2])
        known = {"poses": (poses * scale).astype(np.float32), "start": (start * scale).astype(np.float32)}
        episodes.append(Episode(np.stack(frames), actions.astype(np.int64), place=f"grid {i}", seed=i, **known))
    return InMemory(Kind((8, 8, 3), ("left", "right", "forward"), 3, 3, "a grid"), episodes)


def without_poses(store: InMemory) -> InMemory:
    """The same, had nobody noted where the agent was."""
    bare = [replace(episode, poses=None, start=None) for episode in store.episodes]
    return InMemory(replace(store.kind, pose_size=0), bare)


def without_headings(store: InMemory) -> InMemory:
    """The same, had only positions been noted."""
    cut = [replace(e, poses=e.poses[:, :2].copy(), start=e.start[:2].copy()) for e in store.episodes]
    return InMemory(replace(store.kind, pose_size=2), cut)
