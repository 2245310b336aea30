"""Find where a picture was seen in a walk that is stored as a file; the answer as text and as a figure."""

from gtmsm.find.localise import find_picture
from gtmsm.find.walk import record_walk

__all__ = ["find_picture", "record_walk"]
