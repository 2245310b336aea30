"""How often steps slip, learned on the way: a hidden Markov chain of two states, as planned and otherwise.

After a step that went as planned the next one slips with a probability of which a Beta distribution is known. After one
that slipped it does so with a probability that is given, since bumps come in rows. Counts are expected ones, by the
probability that each step slipped, given all that was seen up to it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LEAST, MOST = 0.001, 0.5
"""Between which a learned probability lies: nobody is so sure of steps that no view could tell otherwise."""


class Habits(NamedTuple):
    """What is known of slips before a walk; of the position and, by itself, of a heading if there is one."""

    chance: tuple[float, ...]
    """Probability that a step slips after one that went as planned."""
    worth: float = 0.0
    """Number of steps that count as much as this does; 0: it is never learned."""
    again: float = 0.0
    """Probability that a step slips after one that did, for the position; that of a heading does not depend on it."""


class Slips(NamedTuple):
    """What the steps of a walk so far have told; a column of memory holds it after each step."""

    begun: Float[Tensor, "*batch G"]
    """Expected number of steps that slipped after one that went as planned ..."""
    tried: Float[Tensor, "*batch G"]
    """... of so many after one that went as planned."""
    last: Float[Tensor, "*batch G"]
    """Probability that the last step slipped."""

    @classmethod
    def none(cls, like: Float[Tensor, "*batch G"]) -> "Slips":
        """Of a walk that has not begun."""
        nothing = torch.zeros_like(like)
        return cls(nothing, nothing, nothing)

    @classmethod
    def of_column(cls, column: Float[Tensor, "*batch H"]) -> "Slips":
        """What `column` holds."""
        return cls(*column.chunk(3, dim=-1))

    @property
    def column(self) -> Float[Tensor, "*batch H"]:
        """All of it, side by side."""
        return torch.cat(self, dim=-1)

    def at_rest(self) -> "Slips":
        """The same before a walk that begins somewhere else: its first step follows none that slipped."""
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
        """After one more step, which slipped with this probability."""
        as_planned = 1 - self.last
        return Slips(self.begun + as_planned * slipped, self.tried + as_planned, slipped)
