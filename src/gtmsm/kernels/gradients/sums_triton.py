"""Sums of what many programs found: in a fixed order, or into sinks, in whatever order programs come."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.gradients.aside import aside, noted
from gtmsm.kernels.gradients.sinks import sinks_of

MOST_SINKS = 3
SUNK_AT_ONCE = 256
"""Rows that one program adds up for a sink: some kernels leave 2,000 of them, which one program would read in turn."""


@triton.jit
def _sum(shares, sums, count, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # pragma: no cover - runs on the GPU
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < size
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        at = shares + row.to(tl.int64)[:, None] * size + column[None, :]
        total += tl.load(at, (row < count)[:, None] & there[None, :], 0.0)
    tl.store(sums + column, tl.sum(total, 0), there)


@triton.jit
def _sink(
    shares, first, second, third, count, width, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # pragma: no cover - runs on the GPU
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    there = column < width
    at = shares + row.to(tl.int64)[:, None] * size + part * width + column[None, :]
    total = tl.sum(tl.load(at, (row < count)[:, None] & there[None, :], 0.0), 0)
    # Atomic: rows are shared out among programs, and a parameter used several times is added to by several launches.
    if part == 0:
        tl.atomic_add(first + column, total, there, sem="relaxed")
    elif part == 1:
        tl.atomic_add(second + column, total, there, sem="relaxed")
    else:
        tl.atomic_add(third + column, total, there, sem="relaxed")


def summed(shares: Tensor) -> Tensor:
    """The sum of all rows: what PyTorch does, but faster where there are few of them."""
    count, size = shares.shape
    sums = shares.new_empty(size)
    _sum[(triton.cdiv(size, 16),)](shares, sums, count, size, ROWS=128, COLUMNS=16, num_warps=4)
    return sums


def sink(shares: Tensor, sinks: Sequence[Tensor]) -> None:
    """Add the sum over programs to one sink for each part: `shares` is [programs, part, width]."""
    count, parts, width = shares.shape
    assert parts == len(sinks) <= MOST_SINKS
    spare = [sinks[0]] * (MOST_SINKS - parts)
    _sink[(triton.cdiv(width, 16), parts, triton.cdiv(count, SUNK_AT_ONCE))](
        shares, *sinks, *spare, count, width, parts * width, ROWS=SUNK_AT_ONCE, COLUMNS=16, num_warps=4
    )


class Learners:
    """Parameters of one width each, some of which learn from what many programs find.

    To be made where they are used, on the way forward; asked for their gradients on the way back.
    """

    def __init__(self, *parameters: Tensor | None) -> None:
        learning: list[Tensor] = []
        self.slots: list[int] = []
        """Which part of the shares is for each parameter; -1 where it learns nothing."""
        for part in parameters:
            learns = part is not None and part.requires_grad
            self.slots.append(len(learning) if learns else -1)
            learning += [part] if part is not None and learns else []
        self.count = len(learning)
        self._sinks, self._noted = sinks_of(*learning), noted(*learning)

    def gradients(self, shares: Tensor) -> list[Tensor | None]:
        """For each parameter, from what programs found, [programs, part, width]; none where it has gone to a sink."""
        found: list[Tensor | None] = [None] * len(self.slots)
        if self.count == 0:
            return found
        with aside(shares, learning=() if self._sinks else self._noted):
            if self._sinks:
                sink(shares, self._sinks)
                return found
            sums = summed(shares.flatten(1)) if len(shares) > 1 else shares
            sums = sums.view(self.count, -1)
            return [None if slot < 0 else sums[slot] for slot in self.slots]
