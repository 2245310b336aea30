"""A world that every rival can learn: to and fro between two cells of an image, after a step of rest or at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys  # noqa: F401  (shapes are checked in what is imported after it)
from lightning_fabric import Fabric

from gtmsm import contest
from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.score import EvaluationConfig
from gtmsm.experiments import ImageWalkExperiment, ImageWalkSetting
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.rivals.rival import Rival, RivalConfig
from gtmsm.training.curriculum import CurriculumConfig
from gtmsm.training.train import TrainingConfig
from gtmsm.training.update import OptimiserConfig
from gtmsm.worlds.image_walk import MOVES, ImageWalkConfig
from gtmsm.worlds.images import ImageSet

TAU, HORIZON = 4, 4
SWINGS = torch.tensor([[0, 1], [2, 3]])
"""Up and down, or left and right."""
WAIT = MOVES.index((0, 0))
EXPERIMENT = ImageWalkExperiment(
    world=ImageWalkConfig(size=8, crop=4, stride=4),
    model=WorldModelConfig(
        vae=FrameVAEConfig(width=32, code_size=4), motion=MotionConfig(kind="free"), recall=RecallConfig(neighbours=2)
    ),
    training=TrainingConfig(
        updates=400,
        optimiser=OptimiserConfig(batch=16, learning_rate=6e-3, final_learning_rate=6e-4, anneal_updates=400),
        curriculum=CurriculumConfig(tau=TAU, horizon=HORIZON, warm_up=0, grow=(), prospect=False),
        watch_every=1_000,
        save_every=1_000,
    ),
    evaluation=EvaluationConfig(tau=TAU, horizon=HORIZON, clips=64),
)


def to_and_fro(world: object, steps: int, generator: torch.Generator) -> torch.Tensor:
    """A walker between two cells; half of the agents wait for a step before they go on to swing as planned."""
    which, waits = torch.randint(2, (2, len(world.pose), 1), generator=generator)
    t = torch.arange(steps)
    swinging = SWINGS[which[:, 0]].gather(1, (t - waits * (t > TAU)) % 2)
    return torch.where((waits == 1) & (t == TAU), WAIT, swinging)


def colours(n: int, seed: int) -> torch.Tensor:
    """Images of four plain colours."""
    drawn = torch.randint(256, (n, 3, 2, 2), generator=torch.Generator().manual_seed(seed))
    return drawn.byte().repeat_interleave(4, -1).repeat_interleave(4, -2)


@pytest.fixture(scope="session")
def setting() -> ImageWalkSetting:
    pictures = ImageSet(colours(512, 0), colours(16, 2), colours(64, 1), "colours", "")
    made = ImageWalkSetting(EXPERIMENT, pictures, torch.device("cpu"))
    made.walker = to_and_fro
    return made


@pytest.fixture(scope="session")
def walking(setting: ImageWalkSetting) -> WorldModel:
    """A GTM-SM whose motion is known: what a rival may borrow."""
    model = setting.build_model()
    with torch.no_grad():
        model.motion.M.copy_(torch.tensor(MOVES).float().mT)
    return model


def one_process() -> Fabric:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


SIZES = {"width": 16, "layers": 1, "heads": 2, "neighbours": 3, "rows": 8, "stochastic": 8, "cells": 8}


@pytest.fixture(scope="session")
def make(setting: ImageWalkSetting, walking: WorldModel) -> Callable[..., Rival]:
    """A rival by its kind, untrained."""

    def built(kind: str, seed: int = 0, **sizes: int) -> Rival:
        if kind == "ssm":
            pytest.importorskip("mambapy")
        borrowed = walking if kind == "grid-map" else None
        return contest.build(setting, RivalConfig(kind=kind, **SIZES | sizes), seed, borrowed)

    return built


@pytest.fixture(scope="session")
def train(setting: ImageWalkSetting, walking: WorldModel) -> Callable[..., Rival]:
    """Train a rival in a folder, as `reproduce` does."""

    def trained(
        kind: str, folder: Path, updates: int, width: int = 16, rate: float = 1.0, batch: int = 16, **training: int
    ) -> Rival:
        if kind == "ssm":
            pytest.importorskip("mambapy")
        optimiser = replace(EXPERIMENT.training.optimiser, anneal_updates=updates, batch=batch)
        settings = replace(EXPERIMENT.training, **{"updates": updates, "optimiser": optimiser, **training})
        borrowed = walking if kind == "grid-map" else None
        rival = RivalConfig(kind=kind, **SIZES | {"width": width}, rate=rate)
        return contest.train_rival(
            setting, rival, settings, folder, fabric=one_process(), seed=0, borrowed=borrowed
        )[0]  # fmt: skip

    return trained


@pytest.fixture(scope="session")
def clip(setting: ImageWalkSetting) -> Clip:
    """Walks on images that nobody was trained on."""
    return record(setting.test_world, setting.walker, 64, TAU + HORIZON, torch.Generator().manual_seed(5))
