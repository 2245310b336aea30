"""Held actions on a GPU: one program a walk, whose choices write themselves into the steps they last for."""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _hold(
    choices, uniform, cdf, actions, T, counts, BLOCK: tl.constexpr, FIRST: tl.constexpr, HALVINGS: tl.constexpr
):  # pragma: no cover - runs on the GPU
    row = tl.program_id(0).to(tl.int64) * T
    i = tl.arange(0, BLOCK)
    used = i < T
    choice = tl.load(choices + row + i, used, 0)
    chance = tl.load(uniform + row + i, used, 0.0)
    # how many entries of the table are no larger than the chance, a binary digit at a time
    repeats = tl.zeros([BLOCK], tl.int32)
    for halving in tl.static_range(HALVINGS):
        digit = FIRST >> halving
        there = used & (repeats + digit <= counts)
        bound = tl.load(cdf + repeats + digit - 1, there, 2.0)
        repeats += tl.where(bound <= chance, digit, 0)
    length = tl.where(used, 1 + repeats, 0)
    begin = tl.cumsum(length, 0) - length
    length = tl.minimum(length, tl.maximum(T - begin, 0))
    # no two choices share a step, and none is left out
    for k in range(tl.max(length, 0)):
        tl.store(actions + row + begin + k, choice, k < length)


def hold(choices: Tensor, uniform: Tensor, cdf: Tensor) -> Tensor:
    """`held_actions_by_search` in one launch."""
    choices, uniform, cdf = choices.contiguous(), uniform.contiguous(), cdf.contiguous()
    actions, (n, steps) = torch.empty_like(choices), choices.shape
    if not actions.numel():
        return actions
    first = triton.next_power_of_2(len(cdf) + 1) // 2
    _hold[(n,)](
        choices, uniform, cdf, actions, steps, len(cdf),
        BLOCK=max(128, triton.next_power_of_2(steps)), FIRST=first, HALVINGS=first.bit_length(),
        num_warps=4 if steps <= 1024 else 8,
    )  # fmt: skip
    return actions
