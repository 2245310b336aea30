"""Networks compiled for learning: PyTorch's compiler fuses what lies between their large products."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Network = Callable[..., Tensor]


def compiled_to_learn(network: Network) -> Network:
    """The same function, compiled where gradients are wanted: what is merely looked at comes in too many shapes.

    The first axis of every input may vary from call to call without compiling anew.
    """
    fast: Network = torch.compile(network)

    @functools.wraps(network)
    def call(*inputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return network(*inputs)
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
        return fast(*inputs)

    return call
