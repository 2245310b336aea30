"""The page people read, its figures and its films."""

from gtmsm.evaluation.gallery import Gallery, RoomsGallery
from gtmsm.evaluation.report.write import write_report

__all__ = ["Gallery", "RoomsGallery", "write_report"]
