"""A walk between walls: where steps lead when a step into a wall leaves the walker where it is."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.scans.prefix import prefix_scan


def clamped_walk_by_steps(
    start: Int[Tensor, "n D"], steps: Int[Tensor, "n time D"], high: int
) -> Int[Tensor, "n time D"]:
    """The readable twin: position_t = clamp(position_{t-1} + step_t, 0, high), one t after the other."""
    position = start
    positions = torch.empty_like(steps)
    for t in range(steps.shape[1]):
        position = (position + steps[:, t]).clamp(0, high)
        positions[:, t] = position
    return positions


def clamped_walk(start: Int[Tensor, "n D"], steps: Int[Tensor, "n time D"], high: int) -> Int[Tensor, "n time D"]:
    """All positions at once, since "shift, then clamp" composes into "shift, then clamp".

    >>> clamped_walk(torch.tensor([[1]]), torch.tensor([[[1], [1], [-1]]]), high=2).flatten().tolist()
    [2, 2, 1]
    """
    if choose(steps, triton=True) == "triton":
        from gtmsm.kernels.walks import clamped_walk_triton

        return clamped_walk_triton.walk(start, steps, high)
    walls = (torch.zeros_like(steps), torch.full_like(steps, high))
    shift, lowest, highest = prefix_scan(_then, (steps, *walls))
    return (start[:, None] + shift).clamp(lowest, highest)


def clamped_moves(
    start: Int[Tensor, "n D"], actions: Int[Tensor, "n time"], moves: Int[Tensor, "A D"], high: int
) -> Int[Tensor, "n time D"]:
    """The clamped walk whose steps are `moves[actions]`, which a GPU need not write down."""
    if choose(actions, triton=actions.dtype == moves.dtype) == "triton":
        from gtmsm.kernels.walks import clamped_walk_triton

        return clamped_walk_triton.walk(start, actions[..., None].expand(-1, -1, moves.shape[1]), high, moves)
    return clamped_walk(start, moves[actions], high)


def _then(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
    """Two maps x -> clamp(x + shift, lowest, highest), one after the other, as one."""
    shift, lowest, highest = later
    low, high = ((wall + shift).clamp(lowest, highest) for wall in earlier[1:])
    return earlier[0] + shift, low, high
