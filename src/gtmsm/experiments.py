"""The paper's experiments with the paper's numbers, as presets whose every number a flag can override."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import tyro

from gtmsm.config import config, require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.score import EvaluationConfig, glance
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.training.curriculum import CurriculumConfig
from gtmsm.training.prospect import ProspectConfig
from gtmsm.training.train import TrainingConfig
from gtmsm.training.update import OptimiserConfig
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import BUILTIN, ImageSet, load_images
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig


@config
class Experiment:
    """A world, who walks in it, a model, and how it is trained and scored."""

    images: str = BUILTIN
    """"builtin" (views of photographs inside scikit-image), a .npz with `train` and `test`, or a folder of pictures."""
    seed: int = 0
    """Of weights, walks and noise: the same seed on the same machine gives the same run."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")] = TrainingConfig()
    world: ImageWalkConfig = ImageWalkConfig()
    walker: PoissonWalkerConfig = PoissonWalkerConfig()
    model: WorldModelConfig = WorldModelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        require_seed(self.seed)
        size = self.model.motion.state_size
        require(size == 2, f"state_size is {size}; an image is walked in 2 dimensions")
        neighbours, tau = self.model.recall.neighbours, self.training.curriculum.tau
        require(
            neighbours <= tau, f"neighbours is {neighbours} but tau is {tau}; memory would hold fewer than K entries"
        )
        require(
            neighbours <= self.evaluation.tau,
            f"neighbours is {neighbours} but evaluation.tau is {self.evaluation.tau}; memory would be too small",
        )


PRESETS: dict[str, tuple[str, Experiment]] = {
    "image-walk": ("section 4.1 and App. A.1 at the paper's sizes; for a GPU", Experiment()),
    "image-walk-small": (
        "the same, small enough for two CPU cores and two minutes; what `gtmsm demo` trains",
        Experiment(
            training=TrainingConfig(
                updates=3_000,
                optimiser=OptimiserConfig(batch=32, anneal_updates=3_000),
                curriculum=CurriculumConfig(warm_up=600, grow=(800, 600, 400)),
                prospect=ProspectConfig(candidates=256, restarts=2),
                watch_every=200,
                save_every=500,
            ),
            evaluation=EvaluationConfig(clips=100),
        ),
    ),
}
"""Name: what it is, and its numbers."""


@dataclass(frozen=True)
class Setting:
    """An experiment set up on a device: the worlds, the walker, and an untrained model."""

    experiment: Experiment
    images: ImageSet
    train_world: ImageWalk
    test_world: ImageWalk
    walker: PoissonWalker
    device: torch.device

    def source(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Fresh clips to train on."""
        return record(self.train_world, self.walker, n, steps, generator)

    def watch(self) -> Callable[[WorldModel], dict[str, float]]:
        """A quick look at held-out clips, for the progress display."""
        full = self.experiment.evaluation
        brief = EvaluationConfig(tau=full.tau, horizon=min(64, full.horizon), clips=min(16, full.clips), seed=1)
        return partial(glance, world=self.test_world, walker=self.walker, settings=brief, device=self.device)

    def build_model(self) -> WorldModel:
        """Fresh weights, by the experiment's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.experiment.seed)
            model = WorldModel(self.experiment.model, self.train_world.frame_shape, len(self.train_world.action_names))
        return model.to(self.device)


def set_up(experiment: Experiment, device: torch.device, images: str | None = None) -> Setting:
    """Load the images (those of the experiment, unless others are given) and open the worlds."""
    loaded = load_images(images or experiment.images, experiment.world.size)
    return Setting(
        experiment,
        loaded,
        ImageWalk(loaded.train.to(device), experiment.world),
        ImageWalk(loaded.test.to(device), experiment.world),
        PoissonWalker(experiment.walker),
        device,
    )
