"""The motion from loops: the moves made between two equal views add up to zero.

Views are equal if their codes are, up to their own variances. If a view is the same after a step, the step was not
made. This needs neither a search nor displacements: the summed actions of all loops form a matrix, and the rows of M
span its null space.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.tensors import Actions, Gaussian, PerStep

SAME = 1e-4
"""Squared difference of two codes, in their own variances and per number of the code, below which views are equal."""
SPAN = 32
"""Maximum number of steps of a loop: in longer ones most moves cancel, and more views are equal by chance."""
ENOUGH = 100
"""Minimum number of loops from which M is estimated."""
CLOSED = 0.25
"""Maximum distance between the ends of a closed loop, if the squares of all moves along an axis add up to 1."""


@dataclass(frozen=True)
class Loops:
    """The move of each action, estimated from loops."""

    M: Float[Tensor, "S A"]
    """Defined up to a linear map: loops tell which moves cancel, not how long they are."""
    count: int
    closed: float
    """Fraction of the loops that M closes."""
    runner_up: float
    """The same if the axis that closes loops worst is replaced by the next best."""

    @property
    def found(self) -> bool:
        """Whether M closes most loops, and clearly more than the next best axes do."""
        return self.count >= ENOUGH and self.closed >= 0.6 and self.runner_up < 0.75 * self.closed

    @property
    def score(self) -> float:
        """Higher is better."""
        return self.closed

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.count < ENOUGH:
            return f"{self.count} views came back, too few to tell the motion by"
        closed = f"{self.count} loops, of which {self.closed:.1%} close (by the next best axes {self.runner_up:.1%})"
        return f"motion {'found' if self.found else 'not found'} by {closed}"


def look_same(one: Gaussian, other: Gaussian) -> Bool[Tensor, "*batch"]:
    """Whether two views are the same, up to the variances of their codes."""
    variance = one.log_var.exp() + other.log_var.exp()
    return ((one.mean - other.mean).square() / variance).mean(-1) < SAME


def moved(code: Gaussian) -> PerStep:
    """1 where a step changed the view, 0 where it did not; 1 for the first step of a clip, for which it is unknown."""
    still = look_same(code[:, 1:], code[:, :-1])
    return torch.cat([torch.ones_like(still[:, :1]), ~still], dim=1).to(code.mean)


def find_by_loops(code: Gaussian, a: Actions, dimensions: int, length: float) -> Loops:
    """Estimate M from the loops of these clips, scaled to a norm of `length` (0: no scaling)."""
    made = a * moved(code)[..., None]
    total = made.cumsum(1)
    spans = []
    for span in range(2, min(SPAN, a.shape[1] - 1) + 1):
        same = look_same(code[:, span:], code[:, :-span])
        spans.append((total[:, span:] - total[:, :-span])[same])
    sums = torch.cat([total[:0].flatten(0, 1), *spans]).double()
    sums = sums[sums.abs().sum(-1) > 0.5]
    used = sums.abs().sum(0) > 0  # other actions never moved the agent
    M = torch.zeros(dimensions, a.shape[-1], dtype=a.dtype, device=a.device)
    if len(sums) < ENOUGH or int(used.sum()) <= dimensions:
        return Loops(M, len(sums), 0.0, 0.0)
    sums = sums[:, used]
    axes = _null_axes(sums / sums.norm(dim=1, keepdim=True), dimensions)

    def closed(chosen: Float[Tensor, "A S"]) -> float:
        return float(((sums @ chosen).norm(dim=1) < CLOSED).double().mean())

    others = axes[:, [*range(dimensions - 1), dimensions]]
    M[:, used] = (axes[:, :dimensions].T * (length / dimensions**0.5 if length else 1.0)).to(M)
    return Loops(M, len(sums), closed(axes[:, :dimensions]), closed(others))


def _null_axes(loops: Float[Tensor, "n A"], dimensions: int) -> Float[Tensor, "A A"]:
    """Orthonormal axes, first those along which loops add up to zero: a minimum of summed distances, by reweighting."""
    weight = torch.ones_like(loops[:, 0])
    for _ in range(20):
        axes = torch.linalg.eigh((loops * weight[:, None]).T @ loops).eigenvectors
        weight = 1 / ((loops @ axes[:, :dimensions]).norm(dim=1) + 1e-3)
    return axes
