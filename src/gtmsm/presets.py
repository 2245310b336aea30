"""The paper's experiments as presets; every setting can be overridden by a flag.

Settings are the paper's unless docs/deviations.md says otherwise.
"""

from collections.abc import Mapping
from typing import Any

from gtmsm.config import changed
from gtmsm.experiments import ImageWalkExperiment, OwnExperiment, RoomsExperiment

HORIZON_IN = {"rooms": 300}
"""Steps to predict in places with another floor plan, as in the paper (App. C)."""

PRESETS: dict[str, tuple[str, ImageWalkExperiment | RoomsExperiment | OwnExperiment]] = {}
"""Presets by name: a description, and the experiment."""


def _preset(name: str, base: type | str, about: str, numbers: Mapping[str, Any]) -> None:
    """Add a preset: changes to the defaults of an experiment, or to an earlier preset."""
    PRESETS[name] = about, changed(base if isinstance(base, type) else PRESETS[base][1], numbers)


_preset("image-walk", ImageWalkExperiment,
    "section 4.1 and App. A.1 at the paper's sizes; for a GPU", {
    "training.optimiser": {"precision": "bfloat16"},
})  # fmt: skip
_preset("image-walk-small", ImageWalkExperiment,
    "the same, small enough for two CPU cores and a minute and a half; what `gtmsm demo` trains", {
    "training": {"updates": 1_500, "watch_every": 200, "save_every": 500},
    "training.optimiser": {"batch": 32, "anneal_updates": 1_500, "learning_rate": 3e-3},
    "training.curriculum": {"warm_up": 400, "grow": (400, 300, 200)},
    "training.prospect": {"candidates": 256, "restarts": 2},
    "evaluation": {"clips": 100},
})  # fmt: skip
_preset("obstacles", ImageWalkExperiment,
    "App. D: image walks with obstacles and steps that slip, corrected by landmarks; for a GPU", {
    "world": {"obstacles": 2},
    "walker": {"look_first": True},
    "slip": {"probability": 0.1},
    "training": {"updates": 4_000},
    "training.optimiser": {"batch": 48, "anneal_updates": 4_000},
    "training.curriculum": {"tau": 96, "horizon": 32, "warm_up": 800, "warm_up_tau": 16, "grow": (), "prospect": False},
    "training.curriculum.motion_rate": 10.0,
    "training.curriculum.wall_rate": 10.0,
    "training.objective": {"displacement": 10.0, "poses_from_bound": False},
    "model.motion": {"noise": 0.05, "fence": 0.0},
    "model.landmark": {"form": "bayes", "watch": True, "watch_odds": 4.0, "closure": 64},
    "evaluation": {"metric_poses": True},
})  # fmt: skip
# A step that does not change the view was blocked; views that come back determine what actions do.
_preset("obstacles-free", "obstacles",
    "obstacles without true displacements: the motion from views that come back; for a GPU", {
    "slip": {"probability": 0.0},
    "training.objective": {"displacement": 0.0, "regret": 10.0},
    "training.curriculum": {"prospect": True, "motion_rate": 0.0},
    # Length 2, since four of five actions move by one unit: units are steps. The other settings are for the search by
    # short walks, if loops find no motion.
    "training.prospect": {"loops": 96, "length": 2.0, "tau": 12, "horizon": 6, "neighbours": 3, "clips": 128},
    "model.landmark": {"watch": False, "closure": 0},
    "evaluation": {"metric_poses": False},
})  # fmt: skip
# Pairs of views that are two steps apart teach what a doubled step shows. Where steps slip, the relative pose of two
# views is less certain with every move between them.
_preset("obstacles-free-slips", "obstacles-free",
    "obstacles-free with steps that slip; it notices slips as they happen; for a GPU", {
    "slip": {"probability": 0.1},
    "training.objective": {"doubled": 0.3, "reckoning": 0.5},
    "model.landmark": {"watch": True, "closure": 64},
    "evaluation": {"slip": 0.1},
})  # fmt: skip
_preset("obstacles-small", "obstacles-free",
    "obstacles-free, small enough for two CPU cores; what `gtmsm demo obstacles` trains", {
    "training": {"updates": 1_200, "watch_every": 200, "save_every": 400},
    "training.optimiser": {"batch": 16, "anneal_updates": 1_200},
    "training.curriculum": {"tau": 48, "warm_up": 100},
    "model.landmark": {"width": 128, "matches": 8},
    "evaluation": {"clips": 50},
})  # fmt: skip
_preset("rotate", RoomsExperiment,
    "section 4.2.1: an agent that turns on the spot; for a GPU", {
    "walker": {"kind": "spin"},
    "pool": {"clips": 8_192, "steps": 80},
    "training": {"updates": 3_000},
    "training.optimiser": {"batch": 64, "anneal_updates": 3_000, "precision": "bfloat16"},
    "training.objective": {"foresight": 10.0},
    "training.curriculum": {"tau": 33, "horizon": 16, "warm_up": 600, "warm_up_tau": 16, "grow": ()},
    "training.curriculum.read_all_stages": 0,
    "training.curriculum.motion_rate": 0.0,
    "training.prospect": {"tau": 33, "horizon": 45, "neighbours": 4, "yardstick": "spread"},
    "model.vae": {"coder": "conv", "width": 256, "code_size": 64},
    "model.motion": {"kind": "turning", "noise": 1e-3},
    "model.recall": {"prior": "query", "neighbours": 4, "delta": 1e-4},
    "evaluation": {"tau": 33, "horizon": 45, "clips": 500},
})  # fmt: skip
_preset("rotate-strong", "rotate",
    "the same with better pictures: spatial codes, rays that attend to rays", {
    "training.optimiser": {"batch": 32, "ramp_updates": 300, "clip_norm": 1_000.0},
    "training.objective": {"foresight": 30.0, "targets": 10},
    "model.vae": {"coder": "spatial", "code_size": 256},
    "model.recall": {"prior": "rays", "neighbours": 6, "width": 128, "layers": 4},
})  # fmt: skip
# Dense layers, which are fast on a CPU, and smaller sizes throughout.
_preset("rotate-small", "rotate",
    "section 4.2.1, small enough for two CPU cores; what `gtmsm demo rotate` trains", {
    "world": {"train_places": 1_024, "test_places": 64, "antialias": 1},
    "pool": {"clips": 2_048},
    "training": {"watch_every": 250, "save_every": 500},
    "training.optimiser": {"batch": 32, "precision": "float32"},
    "training.curriculum": {"warm_up": 300},
    "training.prospect": {"clips": 16, "angles": 2_048},
    "model.vae": {"coder": "dense"},
    "model.recall": {"width": 256},
    "evaluation": {"clips": 100},
})  # fmt: skip
_preset("walk", RoomsExperiment,
    "section 4.2.2: an agent that walks through a room, with the displacement loss; for a GPU", {
    "training": {"updates": 5_000, "watch_every": 2_000, "save_every": 2_000},
    "training.optimiser": {"batch": 32, "anneal_updates": 5_000, "precision": "bfloat16"},
    "training.curriculum": {"tau": 150, "horizon": 32, "warm_up": 0, "grow": (), "read_all_stages": 0},
    "training.curriculum.prospect": False,
    "training.curriculum.motion_rate": 3.0,
    "training.objective": {"displacement": 1e5, "displacement_after": 16, "poses_from_bound": False},
    "model.vae": {"coder": "conv", "width": 256, "code_size": 64},
    "model.motion": {"kind": "gliding", "noise": 1e-3},
    "model.recall": {"prior": "query", "neighbours": 4, "delta": 1e-4, "map_size": 5},
    "evaluation": {"tau": 150, "horizon": 150, "clips": 200, "metric_poses": True},
})  # fmt: skip
AS_WRITTEN = {
    "training.optimiser": {"learning_rate": 3e-3, "final_learning_rate": 5e-5, "anneal_updates": 100_000},
    "training.curriculum.motion_rate": 1.0,
    "training.objective": {"displacement_after": 0, "poses_from_bound": True},
    "model.motion": {"kind": "drifting", "literal": True, "noise": 1e-2},
}
"""Changes of `walk` to section 4.2.2 and App. A.2 as written: equation, noise, schedule, and a motion that the bound
trains, too. The map is that of `walk`."""
_preset("walk-paper", "walk", "section 4.2.2 and App. A.2 to the letter; for a GPU", AS_WRITTEN)
_preset("walk-strong", "walk",
    "walk with better pictures: spatial codes, rays that attend to rays; displacement loss, for a GPU", {
    "world.train_places": 8_192,
    "pool": {"clips": 32_768},
    "training": {"updates": 18_000, "watch_every": 4_500, "save_every": 4_500},
    "training.optimiser": {"batch": 12, "learning_rate": 1e-3, "final_learning_rate": 1e-5, "anneal_updates": 18_000},
    "training.optimiser.ramp_updates": 500,
    "training.optimiser.muon": 3.0,
    "training.optimiser.clip_norm": 1_000.0,
    "training.curriculum": {"horizon": 150},
    "training.objective": {"displacement_after": 0, "foresight": 30.0, "targets": 28},
    "model.vae": {"coder": "spatial", "code_size": 256},
    "model.recall": {"prior": "rays", "neighbours": 10, "choice": "visible", "width": 256, "layers": 6, "map_size": 0},
})  # fmt: skip
# Steps and pixels as in published scores on DMLab (TECO and others); patches of 8x8 pixels keep their number the same.
_preset("walk-strong-64", "walk-strong",
    "walk-strong at 64x64 pixels; for a GPU", {
    "world.pixels": 64,
    "pool": {"clips": 8_192},
    "training": {"updates": 10_000},
    "training.optimiser": {"anneal_updates": 10_000},
    "training.curriculum": {"tau": 144, "horizon": 156},
    "model.vae": {"patch": 8, "code_size": 1_024},
    "evaluation": {"tau": 144, "horizon": 156},
})  # fmt: skip
# Trains the recognition of places only, in a trained model.
_preset("walk-landmarks", "walk-strong",
    "walk-strong, taught to recognise places, so that agents may bump (App. D); for a GPU", {
    "begin_with": "walk-strong",
    "walker.scavenger": {"may_bump": True},
    "slip.probability": 0.1,  # otherwise views before and after doubled turns would never be compared
    "world.train_places": 16_384,
    "pool": {"clips": 12_000},
    "training": {"updates": 12_000},
    "training.optimiser": {"batch": 20, "anneal_updates": 12_000, "ramp_updates": 200},
    "training.curriculum": {"landmark_rate": 1.0},
    "training.objective": {"recognition_only": True, "targets": 75},
    "model.landmark": {"form": "bayes", "matches": 16, "width": 768, "recent": 16, "watch": True, "closure": 64},
    "model.landmark.steady": 0.001,
    "model.landmark.steady_turn": 0.0003,
    "model.landmark.surprise": 0.006,
    "model.landmark.surprise_turn": 0.015,
    "model.landmark.surprise_worth": 3.0,
    "model.landmark.surprise_again": 0.85,
    "model.landmark.stray": 0.1,
    "model.landmark.stray_turn": 0.1,
    "model.landmark.doubt": 0.0,
    "model.landmark.grain": 0.02,
    "model.landmark.last_grain": 0.008,
    "model.landmark.reach": 3.0,
    "model.landmark.rendered": 6,
    "model.landmark.tolerance": 0.23,
    "evaluation.landmarks": {"walks": 16},
})  # fmt: skip
# No displacements: the motion is estimated from views that look alike, then held.
_FREE = {
    "training.objective": {"displacement": 0.0, "displacement_after": 0},
    "training.curriculum": {"prospect": True, "motion_rate": 0.0},
    "training.prospect": {"candidates": 2_048, "loops": 300, "loop_clips": 2_048, "yardstick": "spread"},
    "evaluation": {"metric_poses": False},
}
_preset("walk-free", "walk", "walk from frames and actions alone, without displacements", _FREE)
_preset("walk-strong-free", "walk-strong", "walk-strong from frames and actions alone; for a GPU", _FREE)
_preset("own", OwnExperiment,
    "your own recordings: --data PATH; looks at them and proposes every other number", {
})  # fmt: skip
