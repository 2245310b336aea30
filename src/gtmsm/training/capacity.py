"""Capacity: how many memorised frames a captured update encodes."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

MANY = 20
"""Number of updates whose maximum bounds that of later updates up to a few percent."""


class Capacity:
    """The capacity of `FrameMemory`: the number of distinct frames that recent updates retrieved, plus headroom.

    A CUDA graph has fixed shapes, but how many distinct frames are retrieved depends on the data. Steps that exceed the
    capacity are left out of the loss; the fraction of such steps is logged. `review` says when to change the capacity.
    """

    def __init__(self, device: torch.device) -> None:
        self.frames: int | None = None
        """The capacity; None: unlimited."""
        self._most = torch.zeros((), dtype=torch.int64, device=device)
        """Maximum over the updates since the last review."""

    def note(self, needed: Int[Tensor, ""] | None) -> None:
        """Record the number of distinct frames of an update, on the device; None if it was not counted."""
        if needed is not None:
            torch.maximum(self._most, needed, out=self._most)

    def forget(self) -> None:
        """Start again without a limit: clips or poses have changed."""
        self.frames = None
        self._most.zero_()

    def settle(self) -> None:
        """Choose the capacity from the first updates; it stays None if nothing was counted."""
        if needed := self._take():
            self.frames = with_headroom(needed)

    def review(self, updates: int) -> bool:
        """Change the capacity if the last `updates` updates exceeded it or used less than half; return whether so."""
        if self.frames is None:
            return False
        needed = self._take()
        if needed > self.frames or 0 < 2 * with_headroom(needed) < self.frames:
            self.frames = with_headroom(needed, updates)
            return True
        return False

    def _take(self) -> int:
        """Return the maximum so far and reset it to 0; waits for the device."""
        needed = int(self._most)
        self._most.zero_()
        return needed


def with_headroom(needed: int, updates: int = 2) -> int:
    """A capacity that later updates rarely exceed: a multiple of 128, with more headroom after few updates."""
    headroom = 0.2 if updates < MANY else 0.05
    return 128 * math.ceil((1 + headroom) * needed / 128)
