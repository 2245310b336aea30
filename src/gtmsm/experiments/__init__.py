"""Experiments: a world, a walker, a model, and settings of training and evaluation."""

from dataclasses import replace
from pathlib import Path

import torch

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.experiments.experiment import (
    Experiment,
    ImageWalkExperiment,
    OwnExperiment,
    PoolConfig,
    RoomsExperiment,
    RoomsWalkerConfig,
)
from gtmsm.experiments.own import OwnSetting, as_chosen, fingerprint_of, name_of, open_store, proposed
from gtmsm.experiments.setting import ImageWalkSetting, Places, RoomsSetting, Setting
from gtmsm.worlds.floorplan import Plan
from gtmsm.worlds.images import ImageSet, load_images, load_picture

__all__ = [
    "Experiment",
    "ImageWalkExperiment",
    "ImageWalkSetting",
    "OwnExperiment",
    "OwnSetting",
    "Places",
    "PoolConfig",
    "RoomsExperiment",
    "RoomsSetting",
    "RoomsWalkerConfig",
    "Setting",
    "as_chosen",
    "fingerprint_of",
    "in_other_places",
    "name_of",
    "open_store",
    "proposed",
    "set_up",
]


def in_other_places(experiment: Experiment, plan: Plan) -> RoomsExperiment:
    """The same experiment in places with another floor plan: App. C tests the walk in several rooms, T = 450."""
    if not isinstance(experiment, RoomsExperiment):
        on = "is about recordings" if isinstance(experiment, OwnExperiment) else "walks over images"
        raise InputError(f"this run {on}, and no rooms can be walked with it; leave out --places")
    return replace(experiment, world=replace(experiment.world, plan=plan))


def set_up(
    experiment: Experiment,
    device: torch.device,
    images: str | None = None,
    picture: Path | None = None,
    data: str | None = None,
) -> ImageWalkSetting | RoomsSetting | OwnSetting:
    """Set up the worlds of an experiment on a device.

    `images`, `picture` (a single one) or `data` (recorded episodes) replace the experiment's own.
    """
    if isinstance(experiment, OwnExperiment):
        require(images is None and picture is None, "recordings have no images; leave out --images and --picture")
        return OwnSetting(experiment, open_store(data or experiment.data), device)
    require(data is None, "this run is not about recorded episodes; leave out --data")
    if isinstance(experiment, ImageWalkExperiment):
        size = experiment.world.size
        only = None if picture is None else load_picture(picture, size)[None]
        loaded = load_images(images or experiment.images, size) if only is None else ImageSet(only, only, only, "", "")
        return ImageWalkSetting(experiment, loaded, device)
    if not isinstance(experiment, RoomsExperiment):
        raise InputError(f"a {type(experiment).__name__} has no world; use a preset of `gtmsm train`")
    require(images is None, "rooms have no images; leave out --images")
    require(picture is None, f"a run that walks through rooms cannot show {picture}; leave out --picture")
    return RoomsSetting(experiment, device)
