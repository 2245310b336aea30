"""The paper's experiments as presets whose every number a flag can override.

Numbers are the paper's wherever docs/deviations.md does not say otherwise.
"""

from dataclasses import replace

from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import ImageWalkExperiment, PoolConfig, RoomsExperiment, RoomsWalkerConfig
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.training.curriculum import CurriculumConfig
from gtmsm.training.loss import ObjectiveConfig
from gtmsm.training.prospect import ProspectConfig
from gtmsm.training.train import TrainingConfig
from gtmsm.training.update import OptimiserConfig
from gtmsm.worlds.image_walk import ImageWalkConfig
from gtmsm.worlds.scavenger import ScavengerWalkerConfig
from gtmsm.worlds.slip import SlipConfig
from gtmsm.worlds.walkers import PoissonWalkerConfig


def _rotate() -> RoomsExperiment:
    """Section 4.2.1 and App. A.2."""
    return RoomsExperiment(
        walker=RoomsWalkerConfig(kind="spin"),
        pool=PoolConfig(clips=8_192, steps=80),
        training=TrainingConfig(
            updates=3_000,
            optimiser=OptimiserConfig(batch=64, anneal_updates=3_000, precision="bfloat16"),
            objective=ObjectiveConfig(foresight=10.0),
            curriculum=CurriculumConfig(
                tau=33, horizon=16, warm_up=600, warm_up_tau=16, grow=(), read_all_stages=0, motion_rate=0.0
            ),
            prospect=ProspectConfig(tau=33, horizon=45, neighbours=4, yardstick="spread"),
        ),
        model=WorldModelConfig(
            vae=FrameVAEConfig(coder="conv", width=256, code_size=64),
            motion=MotionConfig(kind="turning", noise=1e-3),
            recall=RecallConfig(prior="query", neighbours=4, delta=1e-4),
        ),
        evaluation=EvaluationConfig(tau=33, horizon=45, clips=500),
    )


def _rotate_small() -> RoomsExperiment:
    """The rotating agent on two CPU cores: dense layers, which a CPU is good at, and fewer of everything."""
    rotate = _rotate()
    return replace(
        rotate,
        world=replace(rotate.world, train_places=1_024, test_places=64, antialias=1),
        pool=PoolConfig(clips=2_048, steps=80),
        training=replace(
            rotate.training,
            optimiser=OptimiserConfig(batch=32, anneal_updates=3_000),
            curriculum=replace(rotate.training.curriculum, warm_up=300),
            prospect=replace(rotate.training.prospect, clips=16, angles=2_048),
            watch_every=250,
            save_every=500,
        ),
        model=replace(
            rotate.model,
            vae=FrameVAEConfig(coder="dense", width=256, code_size=64),
            recall=replace(rotate.model.recall, width=256),
        ),
        evaluation=replace(rotate.evaluation, clips=100),
    )


def _rotate_strong() -> RoomsExperiment:
    """Better pictures of the arc that was never seen: spatial codes, and a prior in which rays attend to rays."""
    rotate = _rotate()
    return replace(
        rotate,
        training=replace(
            rotate.training,
            optimiser=replace(rotate.training.optimiser, batch=32, ramp_updates=300, clip_norm=1_000.0),
            objective=ObjectiveConfig(foresight=30.0, targets=10),
        ),
        model=replace(
            rotate.model,
            vae=FrameVAEConfig(coder="spatial", width=256, code_size=256),
            recall=RecallConfig(prior="rays", neighbours=6, width=128, layers=4),
        ),
    )


def _walk() -> RoomsExperiment:
    """Section 4.2.2 and App. A.2."""
    return RoomsExperiment(
        training=TrainingConfig(
            updates=5_000,
            optimiser=OptimiserConfig(batch=32, anneal_updates=5_000, precision="bfloat16"),
            curriculum=CurriculumConfig(
                tau=150, horizon=32, warm_up=0, grow=(), read_all_stages=0, prospect=False, motion_rate=3.0
            ),
            objective=ObjectiveConfig(displacement=1e5, displacement_after=16, poses_from_bound=False),
            watch_every=2_000,
            save_every=2_000,
        ),
        model=WorldModelConfig(
            vae=FrameVAEConfig(coder="conv", width=256, code_size=64),
            motion=MotionConfig(kind="gliding", noise=1e-3),
            recall=RecallConfig(prior="query", neighbours=4, delta=1e-4),
        ),
        evaluation=EvaluationConfig(tau=150, horizon=150, clips=200, metric_poses=True),
    )


def _walk_free() -> RoomsExperiment:
    """The walking agent without the displacement loss."""
    walk = _walk()
    return replace(
        walk,
        training=replace(
            walk.training,
            objective=ObjectiveConfig(),
            curriculum=replace(walk.training.curriculum, prospect=True, warm_up=1_000, warm_up_tau=32),
            prospect=ProspectConfig(
                candidates=2_048, rounds=60, clips=64, tau=64, horizon=32, neighbours=4, yardstick="spread"
            ),
        ),
        evaluation=replace(walk.evaluation, metric_poses=False),
    )


def _walk_strong() -> RoomsExperiment:
    """Better pictures: spatial codes, and a prior in which rays attend to rays."""
    walk = _walk()
    return replace(
        walk,
        pool=PoolConfig(clips=16_384, steps=300),
        training=replace(
            walk.training,
            updates=9_000,
            optimiser=OptimiserConfig(
                batch=12,
                learning_rate=1e-3,
                final_learning_rate=1e-5,
                anneal_updates=9_000,
                ramp_updates=500,
                clip_norm=1_000.0,
                precision="bfloat16",
            ),
            curriculum=replace(walk.training.curriculum, horizon=150),
            objective=replace(walk.training.objective, displacement_after=0, foresight=30.0, targets=28),
        ),
        model=WorldModelConfig(
            vae=FrameVAEConfig(coder="spatial", width=256, code_size=256),
            motion=walk.model.motion,
            recall=RecallConfig(prior="rays", neighbours=10, choice="visible", width=256, layers=6),
        ),
    )


def _obstacles() -> ImageWalkExperiment:
    """App. D: obstacles that no transition model can know, steps that slip, and landmarks against both."""
    return ImageWalkExperiment(
        world=ImageWalkConfig(obstacles=2),
        walker=PoissonWalkerConfig(look_first=True),
        slip=SlipConfig(probability=0.1),
        training=TrainingConfig(
            updates=4_000,
            optimiser=OptimiserConfig(batch=48, anneal_updates=4_000),
            curriculum=CurriculumConfig(
                tau=96,
                horizon=32,
                warm_up=800,
                warm_up_tau=16,
                grow=(),
                prospect=False,
                motion_rate=10.0,
                wall_rate=10.0,
            ),
            objective=ObjectiveConfig(displacement=10.0, poses_from_bound=False),
        ),
        model=WorldModelConfig(motion=MotionConfig(noise=0.05, fence=0.0), landmark=LandmarkConfig(form="bayes")),
        evaluation=EvaluationConfig(metric_poses=True),
    )


def _obstacles_small() -> ImageWalkExperiment:
    """The same on two CPU cores."""
    large = _obstacles()
    training = large.training
    return replace(
        large,
        training=replace(
            training,
            updates=1_200,
            optimiser=OptimiserConfig(batch=16, anneal_updates=1_200),
            curriculum=replace(training.curriculum, tau=48, warm_up=500),
            watch_every=200,
            save_every=400,
        ),
        model=replace(large.model, landmark=replace(large.model.landmark, width=128, matches=8)),
        evaluation=replace(large.evaluation, clips=50),
    )


def _obstacles_free() -> ImageWalkExperiment:
    """The same without true displacements: a step has failed where the model recognises that it has."""
    large = _obstacles()
    training = large.training
    return replace(
        large,
        slip=SlipConfig(),
        training=replace(
            training,
            objective=ObjectiveConfig(regret=10.0, poses_from_bound=False),
            curriculum=replace(training.curriculum, prospect=True, motion_rate=1.0),
            # Four of five actions move by a unit: units are steps. Few steps at a time, before many have failed.
            prospect=ProspectConfig(length=2.0, tau=12, horizon=6, neighbours=3, clips=128),
        ),
        evaluation=replace(large.evaluation, metric_poses=False),
    )


def _walk_landmarks() -> RoomsExperiment:
    """What places look like, for a model that walks already: its agents may bump."""
    walk = _walk_strong()
    return replace(
        walk,
        begin_with="weights/walk-strong",
        walker=replace(walk.walker, scavenger=ScavengerWalkerConfig(may_bump=True)),
        pool=PoolConfig(clips=14_000, steps=300),
        training=replace(
            walk.training,
            updates=11_000,
            optimiser=replace(walk.training.optimiser, batch=20, anneal_updates=11_000, ramp_updates=200),
            curriculum=replace(walk.training.curriculum, landmark_rate=1.0),
            objective=replace(walk.training.objective, recognition_only=True),
        ),
        model=replace(
            walk.model,
            landmark=LandmarkConfig(
                form="bayes",
                matches=16,
                width=768,
                recent=16,
                steady=0.1,
                steady_turn=0.003,
                stray=0.3,
                stray_turn=0.15,
                doubt=5.0,
                grain=0.02,
                reach=3.0,
                tolerance=0.23,
            ),
        ),
        evaluation=replace(walk.evaluation, landmarks=LandmarkEvaluationConfig(walks=16)),
    )


HORIZON_IN = {"rooms": 300}
"""Steps to predict in places of another kind, where the paper says how many (App. C)."""

PRESETS: dict[str, tuple[str, ImageWalkExperiment | RoomsExperiment]] = {
    "image-walk": (
        "section 4.1 and App. A.1 at the paper's sizes; for a GPU",
        ImageWalkExperiment(training=TrainingConfig(optimiser=OptimiserConfig(precision="bfloat16"))),
    ),
    "image-walk-small": (
        "the same, small enough for two CPU cores and a minute and a half; what `gtmsm demo` trains",
        ImageWalkExperiment(
            training=TrainingConfig(
                updates=2_500,
                optimiser=OptimiserConfig(batch=32, anneal_updates=2_500),
                curriculum=CurriculumConfig(warm_up=600, grow=(800, 600, 400)),
                prospect=ProspectConfig(candidates=256, restarts=2),
                watch_every=200,
                save_every=500,
            ),
            evaluation=EvaluationConfig(clips=100),
        ),
    ),
    "obstacles": (
        "App. D: image walks with obstacles and steps that slip, corrected by landmarks; for a GPU",
        _obstacles(),
    ),
    "obstacles-small": (
        "the same, small enough for two CPU cores; what `gtmsm demo obstacles` trains",
        _obstacles_small(),
    ),
    "obstacles-free": (
        "obstacles without true displacements; does not find its motion yet (docs/notebook.md)",
        _obstacles_free(),
    ),
    "rotate-small": (
        "section 4.2.1, small enough for two CPU cores; what `gtmsm demo rotate` trains",
        _rotate_small(),
    ),
    "rotate": ("section 4.2.1: an agent that turns on the spot; for a GPU", _rotate()),
    "rotate-strong": ("the same with better pictures: spatial codes, rays that attend to rays", _rotate_strong()),
    "walk": (
        "section 4.2.2: an agent that walks through a room, with the displacement loss; for a GPU",
        _walk(),
    ),
    "walk-strong": (
        "walk with better pictures: spatial codes, rays that attend to rays; displacement loss, for a GPU",
        _walk_strong(),
    ),
    "walk-landmarks": (
        "walk-strong, taught to recognise places, so that agents may bump (App. D); for a GPU, in the repository",
        _walk_landmarks(),
    ),
    "walk-free": ("walk without the displacement loss", _walk_free()),
}
"""Name: what it is, and its numbers."""
