"""World models that remember places."""

from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtmsm.config import Device
from gtmsm.data.clip import Clip
from gtmsm.errors import InputError
from gtmsm.explore import Explorer
from gtmsm.explore.dream_env import register_dream
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.model.planning import Plan, PlanConfig
from gtmsm.tensors import Belief, Gaussian
from gtmsm.worlds.gym import register_envs

if TYPE_CHECKING:
    from gtmsm.episodes.own_loop import Recorder
    from gtmsm.run import Run

__version__ = version("gtmsm")
__all__ = [
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
    """Train a model on the recorded episodes in the store `data`, score it, and return the run that is left.

    What to train is proposed from the episodes; `changes` say otherwise. They are named as the flags of `gtmsm train
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
    """Recording needs packages that not everybody has installed."""
    if name == "Recorder":
        from gtmsm.episodes.own_loop import Recorder

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_envs()
register_dream()
