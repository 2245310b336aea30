"""How often steps slip, learned during a walk: a hidden Markov chain with two states, as planned and slipped.

After a step that went as planned, the next one slips with a probability that has a Beta distribution. After a step that
slipped, the probability has a given minimum, since bumps come in rows. Counts are expected counts, by the probability
that each step slipped given all frames up to it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LEAST, MOST = 0.001, 0.5
"""Bounds of a learned probability, so that views can always contradict it."""


class Habits(NamedTuple):
    """Prior of slips before a walk; of the position and, independently, of the heading if there is one."""

    chance: tuple[float, ...]
    """Probability that a step slips after one that went as planned."""
    worth: float = 0.0
    """Number of steps whose evidence counts as much as `chance`; 0: it is never learned."""
    again: float = 0.0
    """Minimum probability that a step slips after one that did, for the position; it does not apply to the heading."""


class Slips(NamedTuple):
    """Statistics of the steps of a walk so far; a column of memory holds them after each step."""

    begun: Float[Tensor, "*batch G"]
    """Expected number of steps that slipped after a step that went as planned."""
    tried: Float[Tensor, "*batch G"]
    """Expected number of all steps after a step that went as planned."""
    last: Float[Tensor, "*batch G"]
    """Probability that the last step slipped."""

    @classmethod
    def none(cls, like: Float[Tensor, "*batch G"]) -> "Slips":
        """The statistics of a walk that has not begun."""
        nothing = torch.zeros_like(like)
        return cls(nothing, nothing, nothing)

    @classmethod
    def of_column(cls, column: Float[Tensor, "*batch H"]) -> "Slips":
        """The statistics that `column` holds."""
        return cls(*column.chunk(3, dim=-1))

    @property
    def column(self) -> Float[Tensor, "*batch H"]:
        """All statistics, side by side."""
        return torch.cat(self, dim=-1)

    def at_rest(self) -> "Slips":
        """The same before a walk that begins somewhere else: its first step does not follow a slip."""
        return self._replace(last=torch.zeros_like(self.last))

    def chance(self, habits: Habits) -> Float[Tensor, "*batch G"]:
        """Probability that the next step slips."""
        prior = torch.stack([torch.full_like(self.last[..., 0], chance) for chance in habits.chance], dim=-1)
        if not habits.worth:
            return prior
        begins = ((habits.worth * prior + self.begun) / (habits.worth + self.tried)).clamp(LEAST, MOST)
        again = torch.cat([begins[..., :1].clamp_min(habits.again), begins[..., 1:]], dim=-1)
        return begins + self.last * (again - begins)

    def then(self, slipped: Float[Tensor, "*batch G"]) -> "Slips":
        """The statistics after one more step, which slipped with probability `slipped`."""
        as_planned = 1 - self.last
        return Slips(self.begun + as_planned * slipped, self.tried + as_planned, slipped)
