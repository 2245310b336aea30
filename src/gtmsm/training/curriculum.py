"""What to train on when: first codes, then motion, then walls, then the full horizon.

From a random M the bound has a trap: one axis is learned, the other folds onto it. And walls are learned
on short walks first, or every later pose is wrong. Hence: warm up the codes on short clips, prospect for the
motion (prospect.py), then double the memory until it has its full length.
"""

from dataclasses import dataclass

from gtmsm.config import config, require
from gtmsm.model.recall import RecallConfig


@config
class CurriculumConfig:
    """How training gets from nothing to the full horizon."""

    tau: int = 256
    """Steps to memorise (App. A.1)."""
    horizon: int = 32
    """Steps to predict while training (App. A.1)."""
    warm_up: int = 1_000
    """Updates on very short clips (tau / 16), for the codes; the motion is searched for after them."""
    prospect: bool = True
    """Search for the motion's parameters after the warm-up, instead of hoping for a good random start."""
    grow: tuple[int, ...] = (2_000, 1_500, 1_500)
    """Updates at ..., tau / 8, tau / 4, tau / 2, before the full tau; empty: the full tau at once."""
    read_all_first: bool = True
    """Read all of memory, softly (delta 1e-2), in the warm-up and the first stage of growth: far places pull, too."""

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot be walked."""
        require(self.tau >= 1, f"tau is {self.tau}; give at least 1 step to memorise")
        require(self.horizon >= 1, f"horizon is {self.horizon}; give at least 1 step to predict")
        require(self.warm_up >= 0, f"warm_up is {self.warm_up}; give 0 or more updates")
        require(all(n > 0 for n in self.grow), f"grow is {self.grow}; every stage needs at least 1 update")


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one kind of clip."""

    name: str
    begin: int
    """The first update of it, counted from 0."""
    end: int
    """The first update after it."""
    tau: int
    horizon: int
    reading: RecallConfig

    @property
    def steps(self) -> int:
        """Length of its clips."""
        return self.tau + self.horizon


def plan_stages(settings: CurriculumConfig, reading: RecallConfig, updates: int) -> list[Stage]:
    """The stages of `updates` updates: warm-up, growth, and the full horizon for all that remain."""
    softly = RecallConfig(neighbours=0, delta=max(1e-2, reading.delta), distance=reading.distance)
    plan: list[tuple[str, int, int, int, RecallConfig]] = []
    if settings.warm_up:
        short = max(1, settings.tau // 16)
        plan.append(("warm up", settings.warm_up, short, min(settings.horizon, short), softly))
    for i, length in enumerate(settings.grow):
        tau = max(1, settings.tau >> (len(settings.grow) - i))
        sharper = RecallConfig(
            neighbours=reading.neighbours,
            delta=max(10.0 ** -(2 + i), reading.delta),
            distance=reading.distance,
        )
        plan.append((f"grow {tau}", length, tau, settings.horizon, softly if i == 0 else sharper))
    plan.append((f"full {settings.tau}", updates, settings.tau, settings.horizon, reading))
    stages, begin = [], 0
    for name, length, tau, horizon, read in plan:
        end = min(begin + length, updates)
        if not settings.read_all_first and read is softly:
            read = reading
        k = min(read.neighbours, tau)  # a short memory may hold fewer than K
        stages.append(
            Stage(name, begin, end, tau, horizon, RecallConfig(neighbours=k, delta=read.delta, distance=read.distance))
        )
        begin = end
    return [stage for stage in stages if stage.end > stage.begin]
