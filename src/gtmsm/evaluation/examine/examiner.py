"""What scoring needs to know of a kind of world."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.evaluation.gallery import Gallery, RoomsGallery
from gtmsm.model.gtmsm import WorldModel


@runtime_checkable
class Examiner(Protocol):
    """What is particular to a kind of world; it looks at the walk that was recorded last."""

    privileges: str
    """What a model was given beyond frames and actions."""
    poses: str
    """How inferred poses are compared with true ones."""

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a memorised place."""

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> Bool[Tensor, "batch future"] | None:
        """Whether what was retrieved is right; None where places are never exactly the same."""

    def true_places(self, clip: Clip) -> Float[Tensor, "batch time P"]:
        """Where the agent was, in coordinates in which it is near or far."""

    def known_places(
        self, model: WorldModel, clip: Clip, walk: Float[Tensor, "batch time S"]
    ) -> Float[Tensor, "batch time P"]:
        """The same in the coordinates of the model, whose own belief is `walk`."""

    def judge(self, clip: Clip, frames: Tensor) -> dict[str, Float[Tensor, "batch future"]]:
        """More errors of predicted frames, by name."""

    def masks(self, clip: Clip) -> dict[str, Bool[Tensor, "batch future"]]:
        """Steps of special interest, by name; what `judge` finds is averaged over the first of them."""

    def note(
        self,
        clip: Clip,
        walk: Float[Tensor, "batch time S"],
        imagined: Tensor,
        reckoned: Float[Tensor, "batch time S"] | None = None,
    ) -> None:
        """Take a batch of walks to heart, for `scores` and `gallery`; `reckoned`: by actions alone."""

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch D"]:
        """Poses of the model from the start of its walk, in the world's units; after `note`."""

    def scores(self) -> dict[str, Any]:
        """Of all walks noted: how well poses were inferred."""

    def gallery(self, model: WorldModel) -> Gallery | RoomsGallery:
        """The first few walks noted, for people."""
