"""What is timed, what it is held against, and what came of it."""

import math
from dataclasses import dataclass
from typing import Literal

from gtmsm.bench.clock import Call
from gtmsm.bench.work import Work

UPDATE = "update"


@dataclass(frozen=True)
class Goal:
    """How fast it is meant to be, on one H200."""

    kind: Literal["milliseconds", "rate", "times the FLOP floor", "times the reference"]
    bound: float

    @property
    def at_most(self) -> bool:
        """Whether less is better."""
        return self.kind in ("milliseconds", "times the FLOP floor")


@dataclass(frozen=True)
class Reference:
    """Another way to the same result, timed in the same run."""

    name: str
    call: Call


@dataclass(frozen=True)
class Task:
    """A call, after its set-up."""

    work: str
    """What it does, in a few words."""
    size: str
    call: Call
    units: int
    """What one call makes: so many frames, steps, ..."""
    unit: str
    """Their name, in the plural."""
    least: Work
    goal: Goal | None = None
    reference: Reference | None = None
    graph: bool = False
    """Whether to time it inside a CUDA graph, as it runs in training."""
    note: str = ""
    """What else there is to know of it, below the table."""


@dataclass(frozen=True)
class Against:
    """What the other way took."""

    name: str
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Row:
    """A speed, and the floor beside it; times are in seconds."""

    name: str
    work: str
    size: str
    seconds: float
    """The median."""
    repeats: int
    units: int
    unit: str
    rate: float
    """Units per second."""
    flops: int
    bytes: int
    precision: str
    bound: str = ""
    """What the floor comes from: memory, or the precision of arithmetic."""
    compute_floor: float = math.nan
    floor: float = math.nan
    times_floor: float = math.nan
    peak_bytes: int | None = None
    """Memory that a call takes beyond its inputs, where it is held against a reference."""
    against: Against | None = None
    goal: Goal | None = None
    note: str = ""

    @property
    def times_reference(self) -> float | None:
        """How many times faster than the other way."""
        return None if self.against is None else self.against.seconds / self.seconds

    @property
    def reached(self) -> float | None:
        """Where it stands, in the words of its goal."""
        if self.goal is None:
            return None
        return {
            "milliseconds": 1e3 * self.seconds,
            "rate": self.rate,
            "times the FLOP floor": self.seconds / self.compute_floor,
            "times the reference": self.times_reference,
        }[self.goal.kind]

    @property
    def met(self) -> bool | None:
        """Whether its goal is met; None where it has none."""
        if self.goal is None or self.reached is None:
            return None
        return self.reached <= self.goal.bound if self.goal.at_most else self.reached >= self.goal.bound
