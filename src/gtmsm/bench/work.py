"""The least work that something can be done with: FLOPs and bytes, and the time that they take at the device's best.

Bytes are those of a perfect program: every input is read once, every output written once, what lies between never
leaves the chip. So a floor cannot be reached, only approached.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gtmsm.bench.ceilings import Ceilings, Precision
from gtmsm.bench.clock import Call
from gtmsm.kernels import operator
from gtmsm.kernels.choice import forced

ADAM = 3
"""Numbers that Adam reads and writes for every weight: the weight and its two moments."""


@dataclass(frozen=True)
class Work:
    """What has to be done, however it is done."""

    flops: int
    bytes: int
    precision: Precision = "float32"
    """Of the products."""

    def compute_seconds(self, ceilings: Ceilings) -> float:
        """What its arithmetic takes."""
        return self.flops / ceilings.flops.get(self.precision, ceilings.flops["float32"])

    def memory_seconds(self, ceilings: Ceilings) -> float:
        """What its traffic takes."""
        return self.bytes / ceilings.bandwidth

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds below which it cannot be done: arithmetic and traffic may overlap, the slower one remains."""
        return max(self.compute_seconds(ceilings), self.memory_seconds(ceilings))

    def bound(self, ceilings: Ceilings) -> str:
        """Which of the two that is."""
        if self.memory_seconds(ceilings) > self.compute_seconds(ceilings):
            return "memory"
        return self.precision if self.precision in ceilings.flops else "float32"


def count_flops(call: Call) -> int:
    """FLOPs of the products and convolutions of a call, gradients included.

    It is made with readable kernels and plain attention, for PyTorch cannot look into fused ones. What is neither a
    product nor a convolution is not counted.
    """
    readable = forced("readable"), operator.forced("readable")
    with readable[0], readable[1], sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def bytes_of(*tensors: Tensor) -> int:
    """What it takes to read or write them once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def weight_bytes(modules: Iterable[nn.Module]) -> int:
    """What it takes to read all weights once."""
    return bytes_of(*(parameter for module in modules for parameter in module.parameters()))


def update_bytes(model: nn.Module, frames: Tensor, *others: Tensor) -> int:
    """Traffic of an update: frames, as the bytes they are kept as, and all else once; weights and moments back, too."""
    learning = bytes_of(*(parameter for parameter in model.parameters() if parameter.requires_grad))
    held = bytes_of(*(parameter for parameter in model.parameters() if not parameter.requires_grad))
    return frames.numel() + bytes_of(*others) + 2 * ADAM * learning + held


def gate_flops(hidden: int, size: int) -> int:
    """sigma_d at one pose: each unit takes a product with the pose, a bias, a ReLU and its weight in the sum."""
    return hidden * (2 * size + 1 + 1 + 2)


def walled_step_flops(hidden: int, size: int) -> int:
    """A step between walls: where it would lead, the gate there, and what is made of it with the noise."""
    return gate_flops(hidden, size) + 4 * size


def fuse_flops(sights: int, size: int) -> int:
    """Bayes' rule at one step, by the lines of `fuse`; of a sight some fifty, at 2 coordinates."""
    geometry = size + size + 2 * size  # where it puts the agent, how far that is, and the square of it
    hypotheses = 2 * (4 + 6 + 1 + 4)  # what is free, a log-density, a gain, and its share of the softmax
    moments = 3 + 2 * size + 5 + 4  # beta, and its shares of the pose, the scatter and the variance
    return sights * (geometry + hypotheses + moments)


def search_flops(queries: int, entries: int, size: int) -> int:
    """All distances from queries to entries: a difference, a square and a sum for each coordinate."""
    return queries * entries * 3 * size


def no_gradients(call: Call) -> Call:
    """The same without a tape."""

    def quietly() -> object:
        with torch.no_grad():
            return call()

    return quietly
