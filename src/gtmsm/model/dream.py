"""An imagined walk."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.memory import Memory
from gtmsm.model.recall import Forecast
from gtmsm.tensors import Belief

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel


@dataclass
class Dream:
    """An imagined walk: poses now, pixels when somebody looks."""

    walk: Belief
    memory: Memory
    model: "WorldModel" = field(repr=False)
    generator: torch.Generator | None = None

    @property
    def poses(self) -> Float[Tensor, "batch time S"]:
        """Where the walk leads."""
        return self.walk.mean

    @cached_property
    def prior(self) -> Forecast:
        """p(z_t | s_t, m) at every pose."""
        return self.model.read(self.memory, Belief(self.model.motion.place(self.walk.mean), self.walk.covariance))

    @property
    def retrieved(self) -> Int[Tensor, "batch time"]:
        """The heaviest memory entry of every pose: what the frame rests on most, unless the dream is sampled."""
        return self.prior.heaviest

    @cached_property
    def codes(self) -> Float[Tensor, "batch time Z"]:
        """A code for every pose: the prior's point estimate, or a sample where the dream is sampled."""
        return self.prior.peak() if self.generator is None else self.prior.sample(self.generator)

    @cached_property
    def frames(self) -> Float[Tensor, "batch time channel height width"]:
        """What would be seen."""
        return self.model.vae.decode(self.codes)
