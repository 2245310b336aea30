"""How many memorised frames a captured update encodes."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

MANY = 20
"""Number of updates whose maximum is hardly exceeded by later ones."""


class Capacity:
    """The capacity of `FrameMemory`, chosen from what recent updates needed.

    A CUDA graph has fixed shapes, and how many distinct frames are retrieved depends on the data. The capacity is what
    the updates so far needed and some headroom; steps that exceed it are left out of the loss, and their share is
    logged. `review` says when the capacity no longer fits.
    """

    def __init__(self, device: torch.device) -> None:
        self.frames: int | None = None
        """The capacity; None: whatever an update needs."""
        self._most = torch.zeros((), dtype=torch.int64, device=device)
        """Most that any update has needed since the last review."""

    def note(self, needed: Int[Tensor, ""] | None) -> None:
        """What an update needed, on the device; None where nothing was counted."""
        if needed is not None:
            torch.maximum(self._most, needed, out=self._most)

    def forget(self) -> None:
        """Start anew: clips or poses have changed."""
        self.frames = None
        self._most.zero_()

    def settle(self) -> None:
        """Choose the capacity from the first updates; stays None where nothing was counted."""
        if needed := self._take():
            self.frames = with_headroom(needed)

    def review(self, updates: int) -> bool:
        """Whether `updates` updates since the last review needed more than the capacity, or far less: it is changed."""
        if self.frames is None:
            return False
        needed = self._take()
        if needed > self.frames or 0 < 2 * with_headroom(needed) < self.frames:
            self.frames = with_headroom(needed, updates)
            return True
        return False

    def _take(self) -> int:
        """The maximum so far, which is then forgotten; waits for the device."""
        needed = int(self._most)
        self._most.zero_()
        return needed


def with_headroom(needed: int, updates: int = 2) -> int:
    """A capacity that later updates rarely exceed: a multiple of 128, with more headroom after few updates."""
    headroom = 0.2 if updates < MANY else 0.05
    return 128 * math.ceil((1 + headroom) * needed / 128)
