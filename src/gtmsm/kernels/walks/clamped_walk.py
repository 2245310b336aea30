"""A walk on a grid: a step off the grid leaves the walker on its edge.

Without the fast implementation an update of `image-walk` takes 37% longer.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from gtmsm.kernels.operator import operator
from gtmsm.tensors import prefix_scan


@operator(cuda="gtmsm.kernels.walks.clamped_walk_triton")
def clamped_walk(
    start: Int[Tensor, "n D"], actions: Int[Tensor, "n time"], moves: Int[Tensor, "A D"], high: int
) -> Int[Tensor, "n time D"]:
    """position_t = clamp(position_{t-1} + moves[action_t], 0, high) for every t.

    All steps are computed at once, since two maps "shift, then clamp" compose into one of the same form.

    >>> moves = torch.tensor([[-1], [1]])
    >>> clamped_walk(torch.tensor([[1]]), torch.tensor([[1, 1, 0]]), moves, high=2).flatten().tolist()
    [2, 2, 1]
    """
    steps = moves[actions]
    shift, lowest, highest = prefix_scan(_then, (steps, torch.zeros_like(steps), torch.full_like(steps, high)))
    return (start[:, None] + shift).clamp(lowest, highest)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """The composition of two maps x -> clamp(x + shift, lowest, highest)."""
    shift, lowest, highest = later
    low, high = ((bound + shift).clamp(lowest, highest) for bound in earlier[1:])
    return earlier[0] + shift, low, high
