"""An imagined walk."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from gtmsm.model.recall import Forecast
from gtmsm.tensors import Codes, Frames, States


@dataclass
class Dream:
    """An imagined walk: poses are computed at once, frames when they are first read."""

    poses: States
    """The state after each action."""
    read: Callable[[], Forecast] = field(repr=False)
    """Reads memory along the walk."""
    decode: Callable[[Tensor], Tensor] = field(repr=False)
    """Decodes codes to frames."""
    generator: torch.Generator | None = None
    tracked: bool = field(default_factory=torch.is_grad_enabled, repr=False)
    """Whether gradients were recorded when it was made: only then are they recorded for frames."""

    @cached_property
    def prior(self) -> Forecast:
        """p(z_t | s_t, m) at each pose."""
        with self._as_made():
            return self.read()

    @property
    def retrieved(self) -> Int[Tensor, "batch time"]:
        """The memory entry that contributes most to the frame at each pose, unless the dream is sampled."""
        return self.prior.heaviest

    @cached_property
    def codes(self) -> Codes:
        """A code for each pose: the prior's point estimate, or a sample if the dream is sampled."""
        with self._as_made():
            return self.prior.peak() if self.generator is None else self.prior.sample(self.generator)

    @cached_property
    def frames(self) -> Frames:
        """The predicted frames."""
        with self._as_made():
            return self.decode(self.codes)

    def _as_made(self) -> AbstractContextManager[None]:
        """Record no gradients unless they were recorded when it was made, and still are."""
        return torch.set_grad_enabled(self.tracked and torch.is_grad_enabled())
