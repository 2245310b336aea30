"""What recognising places is good for: walks that slip, starts that are unknown, pictures out of nowhere (App. D)."""

from typing import Any

import torch

from gtmsm.config import config, require
from gtmsm.evaluation.survey import survey_of
from gtmsm.evaluation.trials import InWorld, Trials
from gtmsm.model.gtmsm import WorldModel
from gtmsm.worlds.slip import SlipConfig, Slippery, Slipping, slipping, unwrapped
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World


@config
class LandmarkEvaluationConfig:
    """How a model that recognises places is scored; one that does not is not."""

    walks: int = 32
    """Held-out walks of each kind."""
    steps: int = 1000
    """Of the long walks in which actions slip."""
    slips: tuple[float, ...] = (0.0, 0.05, 0.1)
    """Probabilities that an action goes wrong on these."""
    lost: int = 4
    """Agents put anywhere into each place that was memorised."""
    lost_steps: int = 20
    """Steps they have to find out where they are."""
    pictures: int = 16
    """Single pictures to be found in each memory, and as many of other places."""

    def __post_init__(self) -> None:
        """Refuse what cannot be scored."""
        for name in ("walks", "steps", "lost", "lost_steps", "pictures"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; give at least 1")
        require(len(self.slips) >= 1, "slips is empty; give at least one probability, 0 for none")
        for value in self.slips:
            require(0 <= value <= 1, f"slips holds {value}; expected probabilities from 0 to 1")


@torch.no_grad()
def score_landmarks(
    model: WorldModel,
    world: World,
    walker: Walker,
    settings: LandmarkEvaluationConfig,
    tau: int,
    seed: int,
    device: torch.device,
    in_world: InWorld,
) -> dict[str, Any]:
    """What landmarks are worth in the places of `world`, of which tau steps are memorised; from seeds alone."""
    survey = survey_of(world)
    trials = Trials(model, survey, tau, in_world)
    walks, steps = settings.walks, settings.steps

    def chance(i: int) -> torch.Generator:
        return torch.Generator(device).manual_seed(seed + i)

    clumsy = survey.clumsy(walker)
    return {
        "slip": [
            {"probability": p} | trials.long_walks(_slippery(world, p), walker, chance(2), walks, steps)
            for p in settings.slips
        ],
        "bump": None if clumsy is None else trials.long_walks(unwrapped(world), clumsy, chance(2), walks, steps),
        "unknown_start": trials.unknown_start(world, walker, chance(3), walks, settings.lost, settings.lost_steps),
        "localise": trials.localise(world, walker, chance(4), walks, settings.pictures),
        "walks": settings.walks,
        "memorised": tau,
        "unit": survey.unit,
        "right": survey.right,
    }


def _slippery(world: World, probability: float) -> World:
    """The same world with other slips."""
    repeat = world.config.repeat if isinstance(world, Slipping) else SlipConfig().repeat
    inner = unwrapped(world)
    assert isinstance(inner, Slippery)
    return slipping(inner, SlipConfig(probability=probability, repeat=repeat))
