"""Examiners: the parts of scoring that are specific to a kind of world."""

from gtmsm.episodes.recorded import RecordedWorld
from gtmsm.errors import InputError
from gtmsm.evaluation.examine.examiner import Examiner
from gtmsm.evaluation.examine.image_walk import ImageWalkExaminer
from gtmsm.evaluation.examine.recorded import RecordedExaminer
from gtmsm.evaluation.examine.rooms import RoomsExaminer
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.slip import unwrapped
from gtmsm.worlds.world import World

__all__ = ["Examiner", "ImageWalkExaminer", "RecordedExaminer", "RoomsExaminer", "examiner_for"]

EXAMINERS: dict[type, type[Examiner]] = {
    ImageWalk: ImageWalkExaminer, Rooms: RoomsExaminer, RecordedWorld: RecordedExaminer,
}  # fmt: skip


def examiner_for(world: World, tau: int, metric: bool = False) -> Examiner:
    """The examiner for this kind of world and walks of which tau steps are memorised; `metric`: see `Examiner`."""
    kind = type(unwrapped(world))
    if kind not in EXAMINERS:
        raise InputError(f"walks in a {kind.__name__} cannot be scored; give an ImageWalk or Rooms")
    return EXAMINERS[kind](world, tau, metric)
