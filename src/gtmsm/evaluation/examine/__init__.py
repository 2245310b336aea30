"""What is particular to scoring each kind of world."""

from gtmsm.evaluation.examine.examiner import Examiner
from gtmsm.evaluation.examine.image_walk import ImageWalkExaminer
from gtmsm.evaluation.examine.rooms import RoomsExaminer

__all__ = ["Examiner", "ImageWalkExaminer", "RoomsExaminer"]
