"""Actions that are held for a while: what is done at every step, given how long each choice lasts."""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from gtmsm.kernels.choice import choose

MOST_STEPS = 8192
"""That one program holds in registers."""


def held_actions_by_search(
    choices: Int64[Tensor, "n time"], uniform: Float64[Tensor, "n time"], cdf: Float64[Tensor, "counts"]
) -> Int64[Tensor, "n time"]:
    """The readable twin: how often each choice is repeated, when it ends, and which one is under way at each step.

    >>> half = torch.tensor([0.5, 1.0]).double()  # once or twice, by a coin
    >>> held_actions_by_search(torch.tensor([[7, 8, 9]]), torch.tensor([[0.6, 0.1, 0.9]]).double(), half).tolist()
    [[7, 7, 8]]
    """
    repeats = torch.searchsorted(cdf, uniform.contiguous(), right=True)
    time = torch.arange(choices.shape[1], device=choices.device).repeat(len(choices), 1)
    return choices.gather(1, torch.searchsorted((1 + repeats).cumsum(1), time, right=True))


def held_actions(
    choices: Int64[Tensor, "n time"], uniform: Float64[Tensor, "n time"], cdf: Float64[Tensor, "counts"]
) -> Int64[Tensor, "n time"]:
    """The action of every step where choice i is made once and repeated as often as `cdf`, inverted, says.

    `uniform` are numbers from [0, 1), one for each choice. The twins agree to the bit: the same numbers, the same walk.
    """
    if choose(choices, triton=choices.shape[1] <= MOST_STEPS) == "triton":
        from gtmsm.kernels.walks import held_actions_triton

        return held_actions_triton.hold(choices, uniform, cdf)
    return held_actions_by_search(choices, uniform, cdf)
