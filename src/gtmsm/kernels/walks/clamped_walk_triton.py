"""The clamped walk on a GPU: one program for each axis of a walk finds all positions by a parallel scan."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast

STEPS_AT_ONCE = 1024
"""Steps of one scan; a longer walk takes several scans, each from where the last one ended."""


@triton.jit
def _then(
    shift, low, high, then_shift, then_low, then_high
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """The composition of two maps x -> clamp(x + shift, low, high)."""
    low = tl.minimum(tl.maximum(low + then_shift, then_low), then_high)
    high = tl.minimum(tl.maximum(high + then_shift, then_low), then_high)
    return shift + then_shift, low, high


@triton.jit
def _walk(
    start, actions, moves, positions, last, T, D, start_walk, start_axis, action_walk, action_time, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    walk = tl.program_id(0)
    axis = tl.program_id(1)
    first = walk.to(tl.int64) * T * D + axis
    position = tl.load(start + walk * start_walk + axis * start_axis).to(tl.int64)
    for begin in range(0, T, BLOCK):
        t = begin + tl.arange(0, BLOCK)
        action = tl.load(actions + walk.to(tl.int64) * action_walk + t * action_time, t < T, 0)
        shift = tl.load(moves + action * D + axis, t < T, 0).to(tl.int64)
        low = shift * 0
        shift, low, high = tl.associative_scan((shift, low, low + last), 0, _then)
        there = tl.minimum(tl.maximum(position + shift, low), high)
        tl.store(positions + first + t * D, there, t < T)
        position = tl.sum(tl.where(t == begin + BLOCK - 1, there, 0), 0)


def _forward(start: Tensor, actions: Tensor, moves: Tensor, high: int) -> list[Tensor]:
    """One launch."""
    positions = moves.new_empty(*actions.shape, moves.shape[1])
    if positions.numel():
        n, time, size = positions.shape
        BLOCK = max(128, min(STEPS_AT_ONCE, triton.next_power_of_2(time)))
        _walk[(n, size)](
            start, actions, moves.contiguous(), positions, high, time, size, *start.stride(), *actions.stride(),
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return [positions]


clamped_walk = Fast(_forward)
