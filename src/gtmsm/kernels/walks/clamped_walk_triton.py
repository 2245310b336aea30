"""The clamped walk on a GPU: one program for every axis of a walk, all of its positions by a parallel scan."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

STEPS_AT_ONCE = 1024
"""Per round; the next one begins where the last one led."""


@triton.jit
def _then(
    shift, low, high, then_shift, then_low, then_high
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Two maps x -> clamp(x + shift, low, high), one after the other, as one."""
    low = tl.minimum(tl.maximum(low + then_shift, then_low), then_high)
    high = tl.minimum(tl.maximum(high + then_shift, then_low), then_high)
    return shift + then_shift, low, high


@triton.jit
def _walk(
    start, steps, moves, positions, last, T, D, start_walk, start_axis, step_walk, step_time, step_axis,
    BY_MOVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    walk = tl.program_id(0)
    axis = tl.program_id(1)
    first = walk.to(tl.int64) * T * D + axis
    position = tl.load(start + walk * start_walk + axis * start_axis).to(tl.int64)
    for begin in range(0, T, BLOCK):
        t = begin + tl.arange(0, BLOCK)
        shift = tl.load(steps + walk.to(tl.int64) * step_walk + t * step_time + axis * step_axis, t < T, 0)
        if BY_MOVES:
            shift = tl.load(moves + shift * D + axis, t < T, 0)
        shift = shift.to(tl.int64)
        low = shift * 0
        shift, low, high = tl.associative_scan((shift, low, low + last), 0, _then)
        there = tl.minimum(tl.maximum(position + shift, low), high)
        tl.store(positions + first + t * D, there, t < T)
        position = tl.sum(tl.where(t == begin + BLOCK - 1, there, 0), 0)  # after the last step nobody asks


def walk(start: Tensor, steps: Tensor, high: int, moves: Tensor | None = None) -> Tensor:
    """`clamped_walk_by_steps` in one launch; where there are `moves`, each step is the number of one."""
    start = start.to(steps.dtype)
    positions, (n, time, size) = steps.new_empty(steps.shape), steps.shape
    if positions.numel():
        BLOCK = max(128, min(STEPS_AT_ONCE, triton.next_power_of_2(time)))
        _walk[(n, size)](
            start, steps, steps if moves is None else moves.contiguous(), positions, high, time, size,
            *start.stride(), *steps.stride(), BY_MOVES=moves is not None, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return positions
