"""Walking to a goal in a real environment: plan, act, look, and plan again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import config, require_whole
from gtmsm.explore.explorer import Action, Explorer, Frame
from gtmsm.model.planning import Plan, PlanConfig
from gtmsm.tensors import Belief

REACH = 2
"""Radius within which other places are compared with the inferred one, in units of the tolerance of a goal."""
CONVINCING = 0.6
"""Fraction of the squared error of the view at the inferred place below which another place replaces it."""


@config
class TravelConfig:
    """Settings of a journey."""

    every: int = 4
    """Steps between plans. A new plan is also made after a step that does not lead to the planned pose."""
    steps: int = 64
    """Maximum number of steps."""
    plan: PlanConfig = PlanConfig()

    def __post_init__(self) -> None:
        """Refuse journeys of no steps."""
        for name in ("every", "steps"):
            require_whole(name, getattr(self, name))


@dataclass(frozen=True)
class Journey:
    """The result of a journey."""

    arrived: bool
    """Whether the inferred pose is at the goal."""
    choices: tuple[int, ...]
    """The action of each step; -1: none."""
    plans: tuple[Plan, ...]
    """For each step, the plan that its action was taken from."""
    reason: str
    """Why the agent did not arrive, in words; empty if it did."""


@torch.no_grad()
def travel(
    explorer: Explorer,
    goal: Frame,
    act: Callable[[int], Frame],
    settings: TravelConfig | None = None,
    seed: int = 0,
    choices: Sequence[Action] | np.ndarray | Tensor | None = None,
) -> Journey:
    """Let an agent walk to `goal`, a picture or a pose; `act` does an action (-1: none) and returns what is seen.

    Actions are numbers, or indices into `choices` where these are given. The journey ends when the inferred pose is at
    the goal, when the goal is not known, or after the maximum number of steps.
    """
    settings = settings or TravelConfig()
    generator = torch.Generator(explorer.here.mean.device).manual_seed(seed)
    done: list[int] = []
    plans: list[Plan] = []
    plan = explorer.plan(goal, settings.plan, None, generator, choices)
    blind = explorer.model.landmarks is None and not explorer.model.motion.walls
    sights = _Sights(explorer, plan.near) if blind else None
    while plan.choices:
        begun = len(done)
        for t, choice in enumerate(plan.choices[: settings.every]):
            if len(done) == settings.steps:
                return Journey(False, tuple(done), tuple(plans), f"not there after {settings.steps} steps")
            seen = act(choice)
            explorer.step(seen, None if choice < 0 else plan.actions[t])
            done.append(choice)
            plans.append(plan)
            if sights is not None:
                sights.correct(explorer, seen)
            if _astray(explorer, plan, t):
                break
        left, known = replace(plan, choices=plan.choices[len(done) - begun :]), plan.goal
        # Nothing corrects such a memory, so the pose found for a goal picture is kept.
        plan = explorer.plan(known.pose if blind else goal, settings.plan, left, generator, choices)
        if blind:
            plan = replace(plan, goal=known, confidence=known.known if plan.found else 0.0)
    return Journey(plan.found, tuple(done), tuple(plans), plan.reason)


def _astray(explorer: Explorer, plan: Plan, t: int) -> bool:
    """Whether the agent is not at the pose that the plan predicted for this step."""
    return bool((explorer.here.mean[0] - plan.poses[t])[:2].norm() > plan.near)


class _Sights:
    """Corrects the pose of an agent without landmarks and walls: a nearby place may explain better what it sees.

    After a bump the agent is not where its actions would have led it. Only entries memorised before the journey are
    compared, because the poses of later entries may be wrong for the same reason.
    """

    def __init__(self, explorer: Explorer, near: float) -> None:
        self.model, self.memory = explorer.model, explorer._memorised().snapshot()
        axis = near * torch.arange(-REACH, REACH + 1).to(explorer.here.mean)
        self.offsets = torch.cartesian_prod(axis, axis)
        self.usual: list[float] = []

    def correct(self, explorer: Explorer, seen: Frame) -> None:
        """Move `explorer.here` to the nearby place whose imagined view is closest to `seen`, if it is far closer.

        Nearby places are compared only if the error at the inferred place is well above its median so far.
        """
        here, frame = explorer.here.mean, explorer._frame(seen)
        error = float(self._errors(here, frame)[0])
        usual = sorted(self.usual)[len(self.usual) // 2] if self.usual else 0.0
        if error > usual / CONVINCING:
            states = here.repeat(len(self.offsets), 1)
            states[:, :2] += self.offsets
            errors, away = self._errors(states, frame)
            # Of places that show the same, the one nearest to a memorised view.
            best = int(away.masked_fill(errors > 1.0001 * errors.min(), torch.inf).argmin())
            if errors[best] < CONVINCING * error:
                explorer._correct(states[best : best + 1, : self.model.motion.pose_size])
                error = float(errors[best])
        self.usual.append(error)

    def _errors(
        self, states: Float[Tensor, "n S"], frame: Float[Tensor, "channel height width"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Mean squared difference between a frame and what is imagined at each of these states.

        The second value is the squared distance of each from the nearest memorised place.
        """
        forecast = self.model.read(self.memory, Belief(self.model.motion.place(states)[:, None]))
        imagined = self.model.vae.decode(forecast.peak())[:, 0]
        return (imagined - frame).square().mean((1, 2, 3)), forecast.neighbours.distance2[:, 0].amin(-1)
