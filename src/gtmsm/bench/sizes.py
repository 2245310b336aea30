"""Sizes of what `gtmsm bench` times: the paper's sizes on a GPU, smaller ones on a CPU."""

from dataclasses import replace

import torch

from gtmsm.config import config


@config
class Sizes:
    """Sizes of all tasks; they are no flags, so that two tables of one kind of device can be compared."""

    seconds: float = 1.0
    """Seconds to spend on repeating one call; there are at least two repetitions."""
    copied: int = 1 << 28
    """Numbers to copy for the memory's bandwidth: far more than any cache holds."""
    matmul: int = 8_192
    """Side of the matrices for the peak of arithmetic."""
    most_clips: tuple[int, int] = (64, 64)
    """Maximum number of clips per update in image walks and in rooms; presets with fewer keep theirs."""
    learned: int = 3
    """Hundreds of updates before an update is timed: learned poses retrieve other frames, and more of them."""
    pool: int = 256
    """Clips of rooms to cut windows from."""
    places: int = 64
    """Rooms to record and draw."""
    rollouts: tuple[int, int] = (4_096, 256)
    """Sequences of actions, and steps of each."""
    imagined: tuple[int, int] = (512, 128)
    """The same for imagination, where all frames are decoded."""
    nearest: tuple[int, int, int] = (32, 150, 100_000)
    """Memories, queries in each, entries of each."""
    remembered: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Entries of a long memory, one row for each."""
    drawn: int = 65_536
    """Frames for the ray-caster."""
    rays: int = 2
    """Rays per pixel and axis."""


ON_GPU = Sizes()
ON_CPU = Sizes(
    seconds=0.5, copied=1 << 24, matmul=1_536, most_clips=(16, 2), pool=8, places=4, rollouts=(1_024, 256),
    imagined=(4, 64), nearest=(8, 150, 10_000), drawn=1_024, rays=1, learned=0,
)  # fmt: skip
LARGEST = 10_000_000
"""Entries of the longest memory, timed with --large, since it takes a while to fill."""


def sizes_for(device: torch.device, large: bool = False) -> Sizes:
    """Sizes that fit the device; `large` adds the longest memory."""
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    return replace(sizes, remembered=(*sizes.remembered, LARGEST)) if large else sizes
