"""How much of everything is timed: the paper's sizes on a GPU, a little of each on a CPU."""

from dataclasses import replace

import torch

from gtmsm.config import config


@config
class Sizes:
    """What `gtmsm bench` measures with; no flags, so that two tables of one kind of device can be compared."""

    seconds: float = 1.0
    """To spend on repeating one thing; two or three repetitions are made, whatever they take."""
    copied: int = 1 << 28
    """Numbers to move about for the memory's bandwidth: far more than any cache holds."""
    matmul: int = 8_192
    """Side of the matrices that the peak of arithmetic is measured with."""
    batch: tuple[int, int, int] = (64, 32, 12)
    """Clips per update of image-walk, walk and walk-strong, as the presets have them."""
    pool: int = 256
    """Clips of rooms to cut windows from; an update takes no longer for there being more."""
    places: int = 64
    """Rooms to record and draw them in."""
    rollouts: tuple[int, int] = (4_096, 256)
    """Sequences of actions, and steps of each."""
    imagined: tuple[int, int] = (512, 128)
    """Sequences of actions, and steps of each, to see all frames of."""
    nearest: tuple[int, int, int] = (32, 150, 100_000)
    """Memories, queries in each, entries of each."""
    scan: tuple[int, int] = (128, 288)
    """Walks, and steps of each."""
    drawn: int = 65_536
    """Frames for the ray-caster."""
    rays: int = 2
    """Rays per pixel and axis."""
    remembered: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Entries of a long memory, one row for each."""


ON_GPU = Sizes()
ON_CPU = Sizes(
    seconds=0.5,
    copied=1 << 24,
    matmul=1_536,
    batch=(16, 2, 1),
    pool=8,
    places=4,
    rollouts=(1_024, 256),
    imagined=(4, 64),
    nearest=(8, 150, 10_000),
    drawn=1_024,
    rays=1,
)
LARGEST = 10_000_000
"""Entries of the longest memory, where somebody has the time: --large."""


def sizes_for(device: torch.device, large: bool = False) -> Sizes:
    """What fits the device; `large` adds a long memory that takes a while to fill."""
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    return replace(sizes, remembered=(*sizes.remembered, LARGEST)) if large else sizes
