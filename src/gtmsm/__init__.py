"""World models that remember places."""

from importlib.metadata import version

from gtmsm.data.clip import Clip
from gtmsm.errors import InputError
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, Gaussian
from gtmsm.worlds.gym import register_envs

__version__ = version("gtmsm")
__all__ = [
    "Belief",
    "Clip",
    "Dream",
    "Gaussian",
    "InputError",
    "LongMemory",
    "Memory",
    "WorldModel",
    "WorldModelConfig",
]

register_envs()
