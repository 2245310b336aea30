"""The motion from views that come back: the moves made between two equal views add up to nothing.

Codes tell which views are equal: their own variances are the tolerance. A view that is the same after a step says that
the step was not made. No search, no displacements: the moves of all loops are a matrix, and M is its null space.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from gtmsm.model.recognition import Lookup
from gtmsm.tensors import Actions, Gaussian, PerStep, Poses

SAME = 1e-4
"""Squared difference of two codes, in their own variances and per number of the code, below which views are equal."""
SPAN = 32
"""Most steps of a loop: in longer ones most moves cancel, and more views are equal by chance."""
ENOUGH = 100
"""Fewest loops from which M is estimated."""
CLOSED = 0.25
"""Steps by which the ends of a closed loop may differ."""

ROUNDS = 3
"""Of reweighting; more hardly change a path."""
DESCENTS = 12
"""Conjugate gradients in each of them."""
FIRM = 30.0
"""Weight of a step that did not change the view, where a step that did has 1: the agent was not moved by it."""
SMALL = 0.05
"""Steps: corrections below it count as squares."""
TINY = 1e-12


@dataclass(frozen=True)
class Loops:
    """What closed loops say of the moves of each action."""

    M: Float[Tensor, "S A"]
    """Up to a linear map: loops tell which moves cancel, not how long they are."""
    count: int
    closed: float
    """Fraction of the loops that M closes, to a quarter of a step."""
    runner_up: float
    """The same where the axis that closes loops worst is replaced by the next best."""

    @property
    def found(self) -> bool:
        """Whether most loops close, and not by any axes."""
        return self.count >= ENOUGH and self.closed >= 0.6 and self.runner_up < 0.75 * self.closed

    @property
    def verdict(self) -> str:
        """In words."""
        if self.count < ENOUGH:
            return f"{self.count} views came back, too few to tell the motion by"
        closed = f"{self.count} loops, of which {self.closed:.1%} close (by the next best axes {self.runner_up:.1%})"
        return f"motion {'found' if self.found else 'not found'} by {closed}"


def look_same(one: Gaussian, other: Gaussian) -> Bool[Tensor, "*batch"]:
    """Whether two views are the same as far as their codes can tell."""
    variance = one.log_var.exp() + other.log_var.exp()
    return ((one.mean - other.mean).square() / variance).mean(-1) < SAME


def moved(code: Gaussian) -> PerStep:
    """1 where a step changed the view, 0 where it did not; 1 for the first step of a clip, for which it is unknown."""
    still = look_same(code[:, 1:], code[:, :-1])
    return torch.cat([torch.ones_like(still[:, :1]), ~still], dim=1).to(code.mean)


def find_by_loops(code: Gaussian, a: Actions, dimensions: int, length: float) -> Loops:
    """M by the loops of these clips, scaled to `length`."""
    made = a * moved(code)[..., None]
    total = made.cumsum(1)
    spans = []
    for span in range(2, min(SPAN, a.shape[1] - 1) + 1):
        same = look_same(code[:, span:], code[:, :-span])
        spans.append((total[:, span:] - total[:, :-span])[same])
    sums = torch.cat(spans).double()
    sums = sums[sums.abs().sum(-1) > 0.5]
    used = sums.abs().sum(0) > 0  # others never moved the agent
    M = torch.zeros(dimensions, a.shape[-1], dtype=a.dtype, device=a.device)
    if len(sums) < ENOUGH or int(used.sum()) <= dimensions:
        return Loops(M, len(sums), 0.0, 0.0)
    sums = sums[:, used]
    axes = _null_axes(sums / sums.norm(dim=1, keepdim=True), dimensions)

    def closed(chosen: Float[Tensor, "A S"]) -> float:
        unit = chosen * (dimensions * used.sum() / chosen.numel()) ** 0.5  # a move is about one unit long
        return float(((sums @ unit).norm(dim=1) < CLOSED).double().mean())

    others = axes[:, [*range(dimensions - 1), dimensions]]
    M[:, used] = (axes[:, :dimensions].T * (length / dimensions**0.5 if length else 1.0)).to(M)
    return Loops(M, len(sums), closed(axes[:, :dimensions]), closed(others))


def _null_axes(loops: Float[Tensor, "n A"], dimensions: int) -> Float[Tensor, "A A"]:
    """Orthonormal axes, first those along which loops come to nothing: the least sum of distances, by reweighting."""
    weight = torch.ones_like(loops[:, 0])
    for _ in range(20):
        axes = torch.linalg.eigh((loops * weight[:, None]).T @ loops).eigenvectors
        weight = 1 / ((loops @ axes[:, :dimensions]).norm(dim=1) + 1e-3)
    return axes


def close_loops(made: Poses, lookup: Lookup) -> Poses:
    """Steps mended by views that come back: what a loop misses is put on few of its steps that changed the view.

    The path has the least sum of corrections of steps and of distances between places of equal views: not of their
    squares, so that most steps stay as they are. Found by reweighted least squares.
    """
    equal = (lookup.there & (lookup.distance < SAME)).to(made)
    pairs = made.new_zeros(*made.shape[:2], made.shape[1]).scatter_add_(2, lookup.index, equal)
    pairs = pairs + pairs.mT
    still = (made == 0).all(-1)
    path, of_steps, of_pairs = made.cumsum(1), torch.where(still, FIRM, 1.0).to(made), pairs
    for _ in range(ROUNDS):
        path = _settled(path, made, of_steps, of_pairs)
        off = (_steps_of(path) - made).norm(dim=-1)
        of_steps = torch.where(still, FIRM, 1 / (off + SMALL))
        of_pairs = pairs / (torch.cdist(path, path, compute_mode="donot_use_mm_for_euclid_dist") + SMALL)
    return _steps_of(path).masked_fill(still[..., None], 0.0)


def _settled(path: Poses, made: Poses, of_steps: PerStep, of_pairs: Float[Tensor, "batch time time"]) -> Poses:
    """The path of the least sum of weighed squares, by conjugate gradients: a GPU need not be waited for.

    They are preconditioned by the path as if no view came back, which two sums solve, so that few are enough.
    """

    def pulls(path: Poses, made: Poses | float) -> Poses:
        """Half the gradient of the sum."""
        strain = of_steps[..., None] * (_steps_of(path) - made)
        return strain - pad(strain[:, 1:], (0, 0, 0, 1)) + held * path - of_pairs @ path

    def freely(pull: Poses) -> Poses:
        """The path that a pull would lead to, without equal views."""
        later = pull.sum(1, keepdim=True) - pull.cumsum(1) + pull
        return (later / of_steps[..., None]).cumsum(1)

    held = of_pairs.sum(-1, keepdim=True)
    left = -pulls(path, made)
    ahead = direction = freely(left)
    now = (left * ahead).sum((1, 2), keepdim=True)
    for _ in range(DESCENTS):
        bent = pulls(direction, 0.0)
        share = now / (direction * bent).sum((1, 2), keepdim=True).clamp_min(TINY)
        path, left = path + share * direction, left - share * bent
        ahead = freely(left)
        before, now = now, (left * ahead).sum((1, 2), keepdim=True)
        direction = ahead + now / before.clamp_min(TINY) * direction
    return path


def _steps_of(path: Poses) -> Poses:
    """From each place to the next, the first from the start."""
    return path.diff(dim=1, prepend=torch.zeros_like(path[:, :1]))
