"""World models that remember places."""

from importlib import import_module
from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from gtmsm.config import Device
from gtmsm.errors import InputError

if TYPE_CHECKING:
    from gtmsm.atlas import Atlas
    from gtmsm.data.clip import Clip
    from gtmsm.episodes.own_loop import Recorder
    from gtmsm.explore import Explorer
    from gtmsm.model.dream import Dream
    from gtmsm.model.gtmsm import WorldModel
    from gtmsm.model.long_memory import LongMemory
    from gtmsm.model.memory import Memory
    from gtmsm.model.planning import Plan, PlanConfig
    from gtmsm.model.settings import WorldModelConfig
    from gtmsm.run import Run
    from gtmsm.tensors import Belief, Gaussian

__version__ = version("gtmsm")
__all__ = [
    "Atlas",
    "Belief",
    "Clip",
    "Dream",
    "Explorer",
    "Gaussian",
    "InputError",
    "LongMemory",
    "Memory",
    "Plan",
    "PlanConfig",
    "Recorder",
    "WorldModel",
    "WorldModelConfig",
    "train",
]
LATE = {
    "atlas": ("Atlas",),
    "data.clip": ("Clip",),
    "episodes.own_loop": ("Recorder",),
    "explore": ("Explorer",),
    "model.dream": ("Dream",),
    "model.gtmsm": ("WorldModel",),
    "model.long_memory": ("LongMemory",),
    "model.memory": ("Memory",),
    "model.planning": ("Plan", "PlanConfig"),
    "model.settings": ("WorldModelConfig",),
    "tensors": ("Belief", "Gaussian"),
}
"""Names that are imported on first use: PyTorch takes seconds, and recording needs optional packages."""
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    # T = 512, the steps of a test sequence (section 4.1)
    "ImageWalk-v0": {"entry_point": "gtmsm.worlds.gym:ImageWalkEnv", "max_episode_steps": 512},
    "Rooms-v0": {"entry_point": "gtmsm.worlds.gym:RoomsEnv", "max_episode_steps": 512},
    "Maze-v0": {"entry_point": "gtmsm.worlds.gym:RoomsEnv", "max_episode_steps": 512, "kwargs": {"plan": "maze"}},
    "Doom-v0": {"entry_point": "gtmsm.worlds.doom:DoomEnv", "max_episode_steps": 512},
    "MemoryMaze-v0": {"entry_point": "gtmsm.worlds.memory_maze:MemoryMazeEnv", "max_episode_steps": 512},
    "Dream-v0": {
        "entry_point": "gtmsm.explore.dream_env:DreamEnv",
        "vector_entry_point": "gtmsm.explore.dream_env:DreamVectorEnv",
    },
}
"""Known to `gymnasium.make` as gtmsm/NAME."""


def train(
    data: str | PathLike[str],
    preset: str = "own",
    run: str | PathLike[str] | None = None,
    *,
    device: Device = "auto",
    evaluate: bool = True,
    quiet: bool = False,
    **changes: Any,
) -> "Run":
    """Train a model on the recorded episodes in the store `data`, score it, and return the run.

    The settings are proposed from the episodes; `changes` override them. They are named as the flags of `gtmsm train
    own`, with _ for a dash and __ for a dot:

        run = gtmsm.train("episodes", updates=2_000, model__motion__kind="turning")
        model = gtmsm.WorldModel.load(run.folder)
    """
    from gtmsm.run import train_own  # the training engine takes seconds to import

    if preset != "own":
        raise InputError(f'preset is "{preset}"; recordings are trained on by "own", others by `gtmsm train`')
    folder = None if run is None else Path(run)
    return train_own(fspath(data), folder, device, evaluate, quiet, changes)


def __getattr__(name: str) -> Any:
    """Import a name of `LATE` on first use."""
    for module, names in LATE.items():
        if name in names:
            return getattr(import_module(f"gtmsm.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _name, _settings in ENVIRONMENTS.items():
    if f"gtmsm/{_name}" not in gymnasium.registry:
        gymnasium.register(f"gtmsm/{_name}", **_settings)
