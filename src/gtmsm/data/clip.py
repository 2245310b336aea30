"""A clip: what an agent did and saw, with the truth beside it for whoever scores."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError


@dataclass(frozen=True)
class Clip:
    """A batch of walks. Frame t is what action t led to, so the starting frame is not part of it."""

    x: Float[Tensor, "batch time channel height width"]
    """Frames in [0, 1]."""
    a: Float[Tensor, "batch time A"]
    """Actions; one-hot where the world's actions are discrete."""
    true_pose: Float[Tensor, "batch time D"]
    """Where the agent really was. The model never reads it; the scores do."""

    @property
    def steps(self) -> int:
        """How many steps long."""
        return self.x.shape[1]

    def split(self, tau: int) -> "tuple[Clip, Clip]":
        """The tau steps to memorise, and the rest, to predict."""
        if not 0 < tau < self.steps:
            raise InputError(
                f"tau is {tau}; memorising and predicting a clip of {self.steps} steps needs 0 < tau < {self.steps}"
            )
        return self[:, :tau], self[:, tau:]

    def __getitem__(self, index: object) -> "Clip":
        """The same index into every field."""
        return Clip(self.x[index], self.a[index], self.true_pose[index])  # type: ignore[index]
