"""Experiments as dataclasses: a model, a world, a walker, and settings of training and evaluation."""

from dataclasses import replace
from typing import Annotated, Literal

import tyro

from gtmsm.config import config, require, require_seed
from gtmsm.episodes.split import HoldOut
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.model.settings import WorldModelConfig
from gtmsm.training.curriculum import plan_stages
from gtmsm.training.train import TrainingConfig
from gtmsm.worlds.image_walk import ImageWalkConfig
from gtmsm.worlds.images import BUILTIN
from gtmsm.worlds.rooms import RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker, ScavengerWalkerConfig
from gtmsm.worlds.slip import SlipConfig
from gtmsm.worlds.walkers import PoissonWalkerConfig, SpinWalker, SpinWalkerConfig, Walker


@config
class Experiment:
    """A model, and how it is trained and scored; subclasses add the world and the walker."""

    seed: int = 0
    """Seed of weights, walks and noise: the same seed on the same CPU gives the same run, on a GPU up to rounding."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")] = TrainingConfig()
    begin_with: str = ""
    """Run folder or name of shipped weights to initialise the model from; parts that it lacks are initialised anew."""
    model: WorldModelConfig = WorldModelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    slip: SlipConfig = SlipConfig()

    @property
    def test_slip(self) -> SlipConfig:
        """How steps slip in the walks to score on."""
        return replace(self.slip, probability=self.evaluation.slip)

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        require_seed(self.seed)
        objective, training, form = self.training.objective, self.training, self.model.landmark.form
        k, tau, scored = self.model.recall.neighbours, training.curriculum.tau, self.evaluation.tau
        require(k <= tau, f"neighbours is {k} but tau is {tau}; memory would hold fewer than K entries")
        require(k <= scored, f"neighbours is {k} but evaluation.tau is {scored}; memory would be too small")
        require(
            form != "paper" or objective.poses_from_bound,
            "the paper's form of landmarks learns from the bound alone: give --poses-from-bound",
        )
        require(
            form == "off" or training.optimiser.batch >= 2,
            "batch is 1, but what is strange is learned from another walk of the batch; give at least 2",
        )
        deep = self.model.recall.prior == "rays" or form != "off"
        require(
            deep or not training.optimiser.muon,
            f"muon is {training.optimiser.muon}, but there are no matrices for it; leave it 0, or use prior rays",
        )
        fits = form != "off" or not objective.recognition_only
        require(fits, "recognition_only needs landmarks: give a form of them")
        require(
            not objective.doubled or (form == "bayes" and not self.model.motion.has_heading),
            f"doubled is {objective.doubled}, but such pairs of views are learned from by landmarks of form bayes, in "
            "models without a heading; leave it 0",
        )
        require(
            not objective.doubled or (objective.recognition > 0 and not objective.recognition_only),
            f"doubled is {objective.doubled}, but it is learned with all of the model, as a part of recognition; give "
            "--recognition above 0, and leave out --recognition-only",
        )
        shortest = min(stage.steps for stage in plan_stages(training.curriculum, self.model.recall, training.updates))
        require(
            not objective.displacement or objective.displacement_after < shortest,
            f"displacement_after is {objective.displacement_after} but the shortest clips trained on have {shortest} "
            "steps; leave some of them to learn from",
        )


@config
class ImageWalkExperiment(Experiment):
    """Agents that walk over images (section 4.1)."""

    images: str = BUILTIN
    """"builtin" (views of photographs inside scikit-image), a .npz with `train` and `test`, or a folder of pictures."""
    world: ImageWalkConfig = ImageWalkConfig()
    walker: PoissonWalkerConfig = PoissonWalkerConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion = self.model.motion
        require(not motion.has_heading, f"kind is {motion.kind}; who walks over an image has no heading: use walled")
        require(motion.state_size == 2, f"state_size is {motion.state_size}; an image is walked in 2 dimensions")
        weight = self.training.objective.displacement
        require(
            weight == 0 or self.world.obstacles > 0 or self.slip.probability > 0,
            f"displacement is {weight}; walls make true displacements no target on images: leave it 0, or put "
            "something in the way with --world.obstacles or --slip.probability (App. D)",
        )


@config
class RoomsWalkerConfig:
    """Walker through rooms."""

    kind: Literal["spin", "scavenger"] = "scavenger"
    """spin: turns on the spot (section 4.2.1); scavenger: walks from object to object (section 4.2.2)."""
    spin: SpinWalkerConfig = SpinWalkerConfig()
    scavenger: ScavengerWalkerConfig = ScavengerWalkerConfig()

    def build(self) -> Walker:
        """The walker."""
        return SpinWalker(self.spin) if self.kind == "spin" else ScavengerWalker(self.scavenger)


@config
class PoolConfig:
    """Clips rendered once, before training, on the device that trains."""

    clips: int = 8_192
    """Number of clips (App. A.2: 100,000)."""
    steps: int = 300
    """Steps of each clip (App. A.2: 80 for the rotating agent, 300 for the walking one)."""

    def __post_init__(self) -> None:
        """Refuse an empty pool."""
        require(self.clips >= 1, f"clips is {self.clips}; training needs at least 1")
        require(self.steps >= 2, f"steps is {self.steps}; a clip needs at least 2")


@config
class RoomsExperiment(Experiment):
    """Agents with a heading that walk through rooms (section 4.2)."""

    world: RoomsConfig = RoomsConfig()
    walker: RoomsWalkerConfig = RoomsWalkerConfig()
    pool: PoolConfig = PoolConfig()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion, training = self.model.motion, self.training
        require(motion.has_heading, f"kind is {motion.kind}; an agent in rooms has a heading: use turning, for one")
        longest = training.curriculum.tau + training.curriculum.horizon
        require(
            self.pool.steps >= longest,
            f"pool.steps is {self.pool.steps}, shorter than tau + horizon = {longest}; make clips longer, or memorise "
            "and predict fewer steps",
        )
        searched = training.prospect.tau + training.prospect.horizon
        require(
            not training.curriculum.prospect or self.pool.steps >= searched,
            f"pool.steps is {self.pool.steps}, shorter than the {searched} steps that prospecting looks at; make clips "
            "longer, or lower prospect.tau and prospect.horizon",
        )
        metric = training.objective.displacement > 0
        require(
            metric == self.evaluation.metric_poses,
            "only the displacement loss teaches poses in the world's units: give --displacement 0 with "
            "--evaluation.no-metric-poses, or a weight with --evaluation.metric-poses",
        )
        require(
            metric or self.model.recall.choice == "nearest" or training.prospect.loops > 0,
            "choice is visible, which asks for poses in units of a wall's height: that needs --displacement above 0, "
            "or --prospect.loops, by which a step is about a tenth of one",
        )
        view, true = self.model.recall.field_of_view, self.world.field_of_view
        require(view == true, f"model.recall.field_of_view is {view} but the world's is {true}; give the same")


@config
class OwnExperiment(Experiment):
    """Recorded episodes of any world."""

    data: str = ""
    """Path of the store of episodes to train on; `gtmsm data convert` and `gtmsm record` make one."""
    hold_out: HoldOut = "places"
    """What is held out for validation and test: whole places, if there are many, or else whole episodes."""
    unit: float = 1.0
    """Length, in the units of recorded poses, that counts as 1 in training; scores are in the recorded units."""
    from_start: bool = False
    """Cut clips only from the start of episodes: walls are learned at positions relative to the start."""

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        super().__post_init__()
        motion = self.model.motion
        require(
            motion.has_heading or motion.state_size == 2,
            f"state_size is {motion.state_size}; recorded positions have 2 numbers: leave it 2",
        )
        require(self.unit > 0, f"unit is {self.unit}; give a length above 0")
        require(self.slip == SlipConfig() and not self.evaluation.slip, "recorded steps slip or not: leave out --slip")
        require(
            self.model.landmark.form == "off",
            "landmarks are scored in walks of their own, and recordings have none; leave --model.landmark.form off",
        )
        metric = self.training.objective.displacement > 0
        require(
            metric == self.evaluation.metric_poses,
            "only the displacement loss teaches poses in your units: give --displacement 0 with "
            "--evaluation.no-metric-poses, or a weight with --evaluation.metric-poses",
        )
        require(
            metric or self.model.recall.choice == "nearest" or self.training.prospect.loops > 0,
            "choice is visible, which asks for the length of a step: that needs --displacement above 0, or "
            "--prospect.loops",
        )
