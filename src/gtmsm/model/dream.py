"""An imagined walk."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from gtmsm.model.recall import Forecast
from gtmsm.tensors import Codes, Frames, States


@dataclass
class Dream:
    """An imagined walk: poses at once, frames when they are asked for."""

    poses: States
    """Where the walk leads."""
    read: Callable[[], Forecast] = field(repr=False)
    """Reads memory along the walk."""
    decode: Callable[[Tensor], Tensor] = field(repr=False)
    """A code to a frame."""
    generator: torch.Generator | None = None

    @cached_property
    def prior(self) -> Forecast:
        """p(z_t | s_t, m) at every pose."""
        return self.read()

    @property
    def retrieved(self) -> Int[Tensor, "batch time"]:
        """The heaviest memory entry of every pose: what the frame rests on most, unless the dream is sampled."""
        return self.prior.heaviest

    @cached_property
    def codes(self) -> Codes:
        """A code for every pose: the prior's point estimate, or a sample where the dream is sampled."""
        return self.prior.peak() if self.generator is None else self.prior.sample(self.generator)

    @cached_property
    def frames(self) -> Frames:
        """What would be seen."""
        return self.decode(self.codes)
