"""The curriculum of training: first codes, then motion, then walls, then the full horizon.

From a random M the bound leads to a local optimum in which one axis is learned and the other collapses onto it. And
walls must be learned on short walks first, or every later pose is wrong. Hence: warm up codes on short clips, search
for the motion (prospect.py), then double the memory until it has its full length.
"""

from dataclasses import dataclass, replace

from gtmsm.config import config, require
from gtmsm.model.recall import RecallConfig


@config
class CurriculumConfig:
    """Stages of training, up to the full horizon."""

    tau: int = 256
    """Steps to memorise (App. A.1)."""
    horizon: int = 32
    """Steps to predict in training (App. A.1)."""
    warm_up: int = 1_000
    """Updates on very short clips, for the codes; the motion is searched for after them."""
    warm_up_tau: int = 0
    """Steps to memorise in the warm-up; 0: tau / 16."""
    prospect: bool = True
    """Search for the motion's parameters after the warm-up, instead of training them from a random start."""
    grow: tuple[int, ...] = (2_000, 1_500, 1_500)
    """Updates at ..., tau / 8, tau / 4, tau / 2, before the full tau; empty: the full tau at once."""
    read_all_stages: int = 1
    """Stages of growth that, like the warm-up, read all of memory softly (delta 1e-2), so that distant entries give
    gradients, too; with 0 the warm-up reads only K entries as well."""

    motion_rate: float = 1.0
    """Learning rate of the motion relative to the rest; 0 holds the motion as the search found it."""
    wall_rate: float = 5.0
    """Learning rate of sigma_d, the network of the walls, relative to the rest; it does not learn in the warm-up,
    when the motion is not known yet."""

    landmark_rate: float = 2.0
    """Learning rate of the networks of landmarks relative to the rest."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.tau >= 1, f"tau is {self.tau}; give at least 1 step to memorise")
        require(self.horizon >= 1, f"horizon is {self.horizon}; give at least 1 step to predict")
        require(self.warm_up >= 0, f"warm_up is {self.warm_up}; give 0 or more updates")
        require(self.warm_up_tau >= 0, f"warm_up_tau is {self.warm_up_tau}; give steps, or 0 for tau / 16")
        require(
            self.warm_up_tau <= self.tau,
            f"warm_up_tau is {self.warm_up_tau}, longer than tau = {self.tau}; give at most that",
        )
        require(self.motion_rate >= 0, f"motion_rate is {self.motion_rate}; give 0 or more")
        require(self.landmark_rate > 0, f"landmark_rate is {self.landmark_rate}; give a positive one")
        require(self.wall_rate > 0, f"wall_rate is {self.wall_rate}; give a positive one")
        require(self.read_all_stages >= 0, f"read_all_stages is {self.read_all_stages}; give 0 or more")
        require(all(n > 0 for n in self.grow), f"grow is {self.grow}; every stage needs at least 1 update")


@dataclass(frozen=True)
class Stage:
    """A stage of training, with clips of one length."""

    name: str
    begin: int
    """The first update of the stage, counted from 0."""
    end: int
    """The first update after the stage."""
    tau: int
    horizon: int
    reading: RecallConfig
    motion_rate: float
    wall_rate: float
    landmark_rate: float = 1.0

    @property
    def steps(self) -> int:
        """Length of its clips, in steps."""
        return self.tau + self.horizon


def plan_stages(settings: CurriculumConfig, reading: RecallConfig, updates: int) -> list[Stage]:
    """The stages of `updates` updates: warm-up, growth, and the full horizon for all that remain."""
    softly = replace(reading, neighbours=0, delta=max(1e-2, reading.delta))
    plan: list[tuple[str, int, int, int, RecallConfig, float]] = []
    if settings.warm_up:
        short = settings.warm_up_tau or max(1, settings.tau // 16)
        read = softly if settings.read_all_stages else reading
        plan.append(("warm up", settings.warm_up, short, min(settings.horizon, short), read, 0.0))
    for i, length in enumerate(settings.grow):
        tau = max(1, settings.tau >> (len(settings.grow) - i))
        sharper = replace(reading, delta=max(10.0 ** -(2 + i), reading.delta))
        read = softly if i < settings.read_all_stages else sharper
        plan.append((f"grow {tau}", length, tau, settings.horizon, read, settings.wall_rate))
    plan.append((f"full {settings.tau}", updates, settings.tau, settings.horizon, reading, settings.wall_rate))
    stages, begin = [], 0
    for name, length, tau, horizon, read, wall_rate in plan:
        end = min(begin + length, updates)
        fitting = replace(read, neighbours=min(read.neighbours, tau))  # a short memory may hold fewer than K
        # Until the motion has been searched for, there are no poses to learn the recognition of places from.
        landmark_rate = 0.0 if settings.prospect and name == "warm up" else settings.landmark_rate
        rates = settings.motion_rate, wall_rate, landmark_rate
        stages.append(Stage(name, begin, end, tau, horizon, fitting, *rates))
        begin = end
    return [stage for stage in stages if stage.end > stage.begin]
